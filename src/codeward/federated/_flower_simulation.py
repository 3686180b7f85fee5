"""Federations on simulated Flower nodes: a SuperLink, its app, and an end that reaches all their processes."""

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeward._cores import count_cores
from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward._progress import Shown, show_progress
from codeward.data import Samples
from codeward.federated._federation import FederatedResult, FederationPlan
from codeward.federated._federation_folder import FederationFolder
from codeward.federated._local_training import save_samples


class ProcessTree:
    """A process and all that descend from it.

    Flower's SuperLink starts its helpers in a session of their own, and these start Ray: ending the SuperLink, or its
    process group, leaves a running simulation behind. Descendants are therefore noted while their parents live
    (`note`); psutil knows each by number and time of birth, so that a number that was given to somebody else is never
    signalled.

    Parameters
    ----------
    command : sequence of str
        The first word is looked up in the environment's ``PATH``.
    environment : mapping
    folder : Path
        Working directory.
    log : Path
        Gets what the process prints.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> None:
        import psutil

        found = shutil.which(command[0], path=environment["PATH"])
        if found is None:
            raise InputError(f"{command[0]} is missing: pip install 'codeward[flower]'")
        with log.open("wb") as out:
            # A session of its own: Ctrl-C reaches this process alone, which then ends the tree.
            self.process = psutil.Popen(
                [found, *command[1:]],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.known: set[Any] = set()

    @property
    def running(self) -> bool:
        """Whether the first process still runs."""
        return self.process.poll() is None

    def note(self) -> None:
        """Remember all that descend from the process now."""
        import psutil

        for process in [self.process, *self.known]:
            with suppress(psutil.NoSuchProcess):
                self.known.update(process.children(recursive=True))

    def end(self, patience: float = 15.0) -> None:
        """End the process and everything noted: politely first, after ``patience`` seconds not."""
        self.note()
        _end_processes([self.process, *self.known], patience)


def _end_processes(rest: list[Any], patience: float) -> None:
    import psutil

    for signal in ("terminate", "kill"):
        for process in rest:
            with suppress(psutil.NoSuchProcess):
                getattr(process, signal)()
        _, rest = psutil.wait_procs(rest, timeout=patience)
        if not rest:
            return


def end_leftovers(home: Path, patience: float = 15.0) -> None:
    """End what a simulation that was killed left running: a second server would write into the same folder.

    Its processes are known by their environment, which says the folder (``FLWR_HOME``) and who started them
    (`name_starter`). Where that one still lives, somebody trains there, and this one does not.
    """
    import psutil

    left = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it is gone, or somebody else's
            told = process.environ()
            if told.get("FLWR_HOME") == str(home) and STARTER in told:
                left.append((process, told[STARTER]))
    for _, starter in left:
        number = int(starter.split()[0])
        with suppress(psutil.NoSuchProcess):
            if number != os.getpid() and name_starter(number) == starter:
                raise InputError(f"{home.parent}: process {number} is training there; wait for it, or end it first")
    _end_processes([process for process, _ in left], patience)


def name_starter(number: int) -> str:
    """Return what tells a process from all others that have or had its number: number and time of birth."""
    import psutil

    return f"{number} {psutil.Process(number).create_time()}"


_LOG = logging.getLogger("codeward.federated")

#: Who started a simulation, in the environment of its processes.
STARTER = "CODEWARD_SIMULATION_STARTER"

#: Nothing leaves the machine and nothing is installed: telemetry, update checks, run-time dependencies, usage reports.
#: Ray listens on loopback only and never joins a cluster that happens to run here. One thread a client, so that results
#: do not depend on the number of cores.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}

SERVER_APP = "codeward.federated.server_app:app"
CLIENT_APP = "codeward.federated.client_app:app"

_APP = """\
[project]
name = "codeward-simulation"
version = "1.0.0"
description = "A federation of codeward, simulated"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "codeward"

[tool.flwr.app.components]
serverapp = {server}
clientapp = {client}

[tool.flwr.app.config]
{config}
"""

_CONNECTION = """\
[superlink]
default = "simulation"

[superlink.simulation]
address = "127.0.0.1:{port}"
insecure = true
"""


@dataclass(frozen=True)
class SimulatedFederation:
    """One federation of a simulation.

    Attributes
    ----------
    label : str
        Its folder in the working folder: ``server`` (see `FederationFolder`), ``data`` with one file a user, and
        whatever else its clients read.
    users : sequence of Samples
        One a column of the plan's code.
    plan : FederationPlan

    Examples
    --------
    >>> from codeward.codes import Code
    >>> from codeward.federated import FederatedSettings
    >>> from codeward.training import TrainingSettings
    >>> plan = FederationPlan(Code([[1]]), TrainingSettings(), FederatedSettings(), (1, 28, 28), seed=0)
    >>> SimulatedFederation("attackers2", [], plan).label
    'attackers2'
    """

    label: str
    users: Sequence[Samples]
    plan: FederationPlan


def simulate_federation(
    users: Sequence[Samples],
    plan: FederationPlan,
    folder: str | os.PathLike[str],
    client_app: str = CLIENT_APP,
    cores: int | None = None,
    progress: Shown = None,
) -> FederatedResult:
    """Train one federation with one simulated Flower node a user; see `simulate_federations`.

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.codes import Code
    >>> from codeward.federated import FederatedSettings
    >>> from codeward.training import TrainingSettings
    >>> plan = FederationPlan(Code(np.eye(3, dtype=int)), TrainingSettings(), FederatedSettings(), (1, 8, 8), seed=0)
    >>> simulate_federation([], plan, "runs/work")
    Traceback (most recent call last):
    codeward._errors.InputError: ...
    """
    one = SimulatedFederation("federation", users, plan)
    return simulate_federations([one], folder, client_app, cores, progress)[0]


def simulate_federations(
    federations: Sequence[SimulatedFederation],
    folder: str | os.PathLike[str],
    client_app: str = CLIENT_APP,
    cores: int | None = None,
    progress: Shown = None,
) -> list[FederatedResult]:
    """Train federations one after the other on simulated Flower nodes, one a user.

    Each is equal, bit for bit, to `train_federated`. Starting takes about half a minute (SuperLink, ``flwr run``, Ray
    and a client process a core, each with torch), once for all of them. Rounds that an interrupted call finished in the
    same folder are not trained again.

    Parameters
    ----------
    federations : sequence of SimulatedFederation
    folder : path-like
        Working folder: the Flower app, its home, logs, and a folder for each federation.
    client_app : str
        Reference to the ClientApp; experiments put attackers in with one of their own.
    cores : int, optional
        Clients that train at a time; by default one a core that this process may use.
    progress : Progress or bool, optional
        Show rounds on stderr.

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.codes import Code
    >>> from codeward.federated import FederatedSettings
    >>> from codeward.training import TrainingSettings
    >>> plan = FederationPlan(Code(np.eye(3, dtype=int)), TrainingSettings(), FederatedSettings(), (1, 8, 8), seed=0)
    >>> simulate_federations([SimulatedFederation("without-attackers", [], plan)], "runs/work")
    Traceback (most recent call last):
    codeward._errors.InputError: ...
    """
    work = Path(folder).resolve()
    end_leftovers(work / "home")
    waiting: dict[FederationFolder, FederationPlan] = {}
    for one in federations:
        if len(one.users) != one.plan.code.n_users:
            raise InputError(
                f"federation: {len(one.users)} users' data for a code with {one.plan.code.n_users} columns"
            )
        server = FederationFolder(work / one.label / "server")
        server.save_plan(one.plan)
        if not server.finished:
            waiting[server] = one.plan
            for user, samples in enumerate(one.users):
                save_samples(work / one.label / "data" / f"user{user}.npz", samples)
    if waiting:
        _simulate(waiting, work, client_app, cores, progress)
    return [FederationFolder(work / one.label / "server").load_result() for one in federations]


def _simulate(
    waiting: Mapping[FederationFolder, FederationPlan],
    work: Path,
    client_app: str,
    cores: int | None,
    progress: Shown,
) -> None:
    with socket.socket() as probe:  # a free one
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    values = {"simulation": str(work), "federations": ",".join(server.path.parent.name for server in waiting)}
    # JSON strings are TOML strings.
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
    app = _APP.format(server=json.dumps(SERVER_APP), client=json.dumps(client_app), config=lines)
    write_text_atomic(work / "app" / "pyproject.toml", app)
    write_text_atomic(work / "home" / "config.toml", _CONNECTION.format(port=port))
    tools = Path(sys.executable).parent
    environment = os.environ | QUIET | {
        "FLWR_HOME": str(work / "home"), STARTER: name_starter(os.getpid()),
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
    }  # fmt: skip
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess",
               "--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]  # fmt: skip
    link = ProcessTree(command, environment, work, work / "superlink.log")
    resources = {
        "num-supernodes": max(plan.code.n_users for plan in waiting.values()),
        "client-resources-num-cpus": 1,
        "client-resources-num-gpus": 0.0,
        "init-args-num-cpus": cores or count_cores(),
        "init-args-log-to-driver": "false",
    }
    text = " ".join(f"{key}={value}" for key, value in resources.items())
    command = ["flwr", "run", str(work / "app"), "simulation", "--stream", "--federation-config", text]
    try:
        _await_port(link, port, work)
        _follow_app(waiting, ProcessTree(command, environment, work, work / "run.log"), link, work, progress)
    finally:
        link.end()


def _follow_app(
    waiting: Mapping[FederationFolder, FederationPlan], run: ProcessTree, link: ProcessTree, work: Path, progress: Shown
) -> None:
    """Follow the rounds of the app until it ends."""
    seen = dict.fromkeys(waiting, 0)
    with show_progress("federated", sum(plan.settings.rounds for plan in waiting.values()), progress) as bar:
        try:
            while True:
                ended = not run.running
                for server, plan in waiting.items():
                    for report in server.read_rounds()[seen[server] :]:
                        seen[server] += 1
                        link.note()
                        counted = f"{len(report['counted'])} of {plan.code.n_users} users counted"
                        bar.advance(1, f"rounds, {counted}, {len(report['refusals'])} refusals")
                        for refusal in report["refusals"]:  # said here as the server's process logged it there
                            where = "" if refusal["model"] is None else f" for model {refusal['model']}"
                            told = (report["round"], plan.names[refusal["user"]], where, refusal["reason"])
                            _LOG.warning("round %d: refused from user %s%s: %s", *told)
                # The results are on disk before Flower has closed its stream, which takes it some seconds.
                if ended or all(server.finished for server in waiting):
                    break
                time.sleep(0.2)
        finally:
            run.end()
    if not all(server.finished for server in waiting):
        reason = _last_line(work / "run.log")
        _, own, message = reason.partition(f"{InputError.__module__}.{InputError.__name__}: ")
        if own:
            raise InputError(message)
        raise RuntimeError(f"the simulation ended without a result: {reason}; see {work}/run.log")


def _await_port(link: ProcessTree, port: int, work: Path, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and link.running:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the SuperLink did not start: {_last_line(work / 'superlink.log')}; see {work}/superlink.log")


def _last_line(file: Path) -> str:
    """Return what a log says went wrong: its last exception, else a framed error, else its last line."""
    lines = [line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    framed = " ".join(line.strip("│ ") for line in lines if line.startswith("│"))
    return errors[-1] if errors else framed or (lines or ["no output"])[-1]
