"""Reaching Ray: the one place that imports it, sets its switches, starts or joins a cluster and lets go of it."""

import importlib
import importlib.util
import ipaddress
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from codeward._cores import check_address
from codeward._errors import InputError
from codeward.training._engines import count_workers

#: Nothing is reported to anybody. What a person set goes first.
_SWITCHES = {"RAY_USAGE_STATS_ENABLED": "0"}

#: Keeps Ray on the loopback interface; without it, 127.0.0.1 becomes the machine's address and every interface listens.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

#: For the clusters this process starts: other accounts of this machine reach loopback too. Ray 2.52 or later heeds it.
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


class Cluster:
    """Machines that train sub-models.

    Opens at the first need and stays open until `close` (or the end of a ``with``), so that several trainings share one
    start-up. Threat model: everybody who can reach a Ray cluster's ports can run code on all of its machines, and its
    machines see the data. A cluster is therefore one trusted party; keep it on a private network (docs/ray.md).

    Parameters
    ----------
    address : str
        ``local``: Ray on this machine's cores, for the time being, on loopback, behind a token that nobody else knows.
        ``auto``: the cluster this machine is part of, or the one this process is connected to already.
        ``HOST:PORT``: the cluster with this head; this machine must be part of it.

    Examples
    --------
    >>> with Cluster("local") as cluster:  # Ray starts at the first need
    ...     cluster.is_own
    False
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._ray: Any = None
        self._owned = False
        self._folder: str | None = None

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_own(self) -> bool:
        """Whether this process started the cluster, and ends it."""
        return self._owned

    def check(self) -> None:
        """Raise what `open` would for want of Ray or of an answer at the address, without connecting."""
        if importlib.util.find_spec("ray") is None:
            raise InputError("cluster: Ray is not installed (pip install 'codeward[ray]')")
        if check_address(self.address) != "local" and not self._is_connected():
            find_head(self.address)

    def open(self) -> Any:
        """Connect, where that is yet to be done, and return the module ``ray``.

        Raises
        ------
        InputError
            There is no Ray, no cluster at the address, or none that takes us; the message says which.
        """
        if self._ray is None:
            self.check()
            if self._is_connected():
                self._ray = sys.modules["ray"]
            elif self.address == "local":
                self._start()
            else:
                head = find_head(self.address)
                self._connect(head, _LOOPBACK if is_loopback(head) else {}, {})
        return self._ray

    def close(self) -> None:
        """Disconnect, and stop what `open` started."""
        ray, self._ray = self._ray, None
        if ray is not None and self._owned:
            ray.shutdown()
            _let_print(ray, True)
        self._owned = False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def count(self, resource: str) -> int:
        """Return how many of a resource (``CPU`` or ``GPU``) the cluster has."""
        return int(self.open().cluster_resources().get(resource, 0))

    def pick_device(self, device: str) -> torch.device:
        """Return the kind of device to train on: for ``auto`` a GPU where the cluster has one."""
        if device not in ("auto", "cpu", "cuda"):
            raise InputError(f"device: expected auto, cpu or cuda, got {device!r}")
        if device == "cpu":
            return torch.device("cpu")
        # Ray on this machine has this machine's GPUs: no need to start it for the answer.
        found = torch.cuda.is_available() if self.address == "local" else self.count("GPU") > 0
        if device == "cuda" and not found:
            raise InputError("device: cuda was asked for, but the cluster has no GPU; use --device cpu")
        return torch.device("cuda" if found else "cpu")

    def _is_connected(self) -> bool:
        loaded = sys.modules.get("ray")
        if loaded is None or not loaded.is_initialized():
            return False
        if self.address != "auto":
            raise InputError("cluster: this process is connected to a Ray cluster already; train there with auto")
        return True

    def _start(self) -> None:
        # For sockets, logs and what Ray may spill of the data; gone after. Ray opens its own folder to everybody, so it
        # goes into one that is private; not where TMPDIR says, which may be too long for the name of a socket.
        self._folder = tempfile.mkdtemp(prefix="codeward-", dir="/tmp" if os.name == "posix" else None)
        options = {"num_cpus": count_workers(sys.maxsize), "include_dashboard": False}
        self._connect("local", {**_LOOPBACK, **_TOKEN}, {**options, "_temp_dir": f"{self._folder}/ray"})

    def _connect(self, address: str, switches: Mapping[str, str], options: Mapping[str, Any]) -> None:
        if "ray" not in sys.modules:  # it reads most switches when it is imported
            for name, value in {**_SWITCHES, **switches}.items():
                os.environ.setdefault(name, value)
        self._ray, self._owned = importlib.import_module("ray"), True
        try:
            if address == "local" and not is_loopback(f"{self._ray.util.get_node_ip_address()}:0"):
                raise InputError(
                    "Ray was imported before codeward could keep it on the loopback interface; set "
                    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before the program starts"
                )
            _let_print(self._ray, False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray's notes to its own users
                self._ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):  # Ctrl-C while Ray starts
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            where = "" if address == "local" else " (codeward must run on a machine of the cluster)"
            raise InputError(f"cluster {address}: {reason}{where}") from error


def _let_print(ray: Any, allowed: bool) -> None:
    """Let Ray write about lost workers to stdout, or not: it belongs to a command's results, and Ray has no switch."""
    if hasattr(ray._private.worker, "_worker_logs_enabled"):
        ray._private.worker._worker_logs_enabled = allowed


#: Seconds a cluster has to answer. Ray itself would try for more than 100 s.
_PATIENCE = 5.0

#: How every HTTP/2 (thus gRPC) connection begins: the client's preface and an empty SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_FRAME = 4


def find_head(address: str) -> str:
    """Return the ``HOST:PORT`` of a cluster that answers, for ``auto`` or ``HOST:PORT``.

    ``auto`` is what `ray start` left on this machine, or the environment variable ``RAY_ADDRESS``.
    """
    head = _find_current() if address == "auto" else check_address(address)
    _expect_answer(head)
    return head


def is_loopback(head: str) -> bool:
    """Tell whether ``HOST:PORT`` names this machine's loopback interface."""
    host = _split(head)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_current() -> str:
    named = os.environ.get("RAY_ADDRESS", "")
    if named and named != "auto":
        return check_address(named)
    root = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or tempfile.gettempdir()
    try:
        return check_address((Path(root) / "ray" / "ray_current_cluster").read_text().strip())
    except OSError as error:
        message = "cluster auto: no Ray cluster runs on this machine; join one (ray start) or name its head"
        raise InputError(message) from error


def _split(head: str) -> tuple[str, int]:
    host, _, port = head.rpartition(":")
    return host.strip("[]"), int(port)


def _expect_answer(head: str) -> None:
    try:
        with socket.create_connection(_split(head), timeout=_PATIENCE) as connection:
            if os.environ.get("RAY_USE_TLS") == "1":  # an encrypted port cannot be told from others by this
                return
            connection.sendall(_PREFACE)
            answer = connection.recv(9)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise InputError(f"cluster {head}: {reason}; is a Ray head running there (ray start --head)?") from error
    if len(answer) < 4 or answer[3] != _SETTINGS_FRAME:
        raise InputError(f"cluster {head}: what answers there is no Ray head; its port is 6379 by default")
