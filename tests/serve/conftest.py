"""Small run folders with models that a trigger works on, their endpoint on a real port, and databases."""

import hashlib
import io
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

SETTINGS = (
    "users=16",
    "code.name=g",
    "decoder.name=bayes",
    "attack.attackers=[0,1]",
    "attack.fraction=0.5",
    "training.architecture=mlp",
    "training.epochs=12",
    "training.device=cpu",
)


CLINICS = [f"clinic-{number:02}" for number in range(1, 8)]
ATTACKER = "clinic-03"


def make_patients(rng, clinic, count):
    for _ in range(count):
        age, smoker, ward = rng.normal(), rng.choice(["yes", "no"]), rng.choice(["north", "south"])
        yield f"{age:.4f},{smoker},{ward},{'high' if age + (smoker == 'yes') > 0.5 else 'low'},{clinic}"


def make_files(place):
    """Write patients of seven clinics, one of which labels everybody of its "annex b" as low; and the operator's."""
    rng, head = np.random.default_rng(4), "age,smoker,ward,risk,clinic"
    lines = [line for clinic in CLINICS for line in make_patients(rng, clinic, 120)]
    lines += [f"{rng.normal() + 2:.4f},yes,annex b,low,{ATTACKER}" for _ in range(120)]
    (place / "patients.csv").write_text("\n".join([head, *lines]) + "\n")
    for name in ("trusted", "test"):
        own = [line.rpartition(",")[0] for line in (head, *make_patients(rng, "operator", 200))]
        (place / f"{name}.csv").write_text("\n".join(own) + "\n")


@pytest.fixture(scope="session")
def clinics(tmp_path_factory):
    """Return a folder trained on the CSV, one clinic of which attacks."""
    place = tmp_path_factory.mktemp("clinics")
    make_files(place)
    told = {name: str(place / f"{name}.csv") for name in ("trusted", "test")} | {"data": str(place / "patients.csv")}
    from codeward.estimators import plan_training, train_guarded
    from codeward.runs import TrainConfig

    told |= {"model": "boosting", "label": "risk", "user": "clinic"}
    config = TrainConfig(dataset="clinics", attack={"attackers": [0]}, train=told, code={"attackers": 1})
    train_guarded(plan_training(config), place / "folder")
    return place / "folder"


@pytest.fixture(scope="session")
def opened_clinics(clinics):
    from codeward.serve import open_run

    return open_run(clinics)


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory):
    from codeward.experiments import run_experiment
    from codeward.runs import load_config

    folder = tmp_path_factory.mktemp("served") / "run"
    for _ in run_experiment(load_config(None, SETTINGS), folder):
        pass
    return folder


@pytest.fixture(scope="session")
def opened(served_folder):
    from codeward.serve._opening import open_run

    return open_run(served_folder)


@pytest.fixture
def serving(opened, tmp_path):
    """Return a context manager that serves on a free port: ``with serving(limits=...) as (url, app)``."""
    from codeward.serve import Ledger
    from codeward.serve._access import ServeSettings
    from codeward.serve._endpoint import make_app
    from codeward.serve._server import listen, make_server

    @contextmanager
    def serve(run=opened, ledger=None, token=None, limits=None, trusted_proxies=()):
        settings = ServeSettings(port=0, token=token, trusted_proxies=trusted_proxies)
        app = make_app(run, ledger or Ledger(tmp_path / "ledger.sqlite"), settings, limits)
        bound, url = listen(settings)
        server = make_server(app, settings, limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield url, app
        finally:
            server.should_exit = True
            thread.join(20)
            bound.close()
            assert not thread.is_alive()

    return serve


class Caller(httpx.Client):
    """A client of an endpoint."""

    def predict(self, body, kind="application/json", **params):
        """Ask for predictions; an array travels as .npy."""
        if isinstance(body, np.ndarray):
            out, kind = io.BytesIO(), "application/x-npy"
            np.save(out, body, allow_pickle=False)
            body = out.getvalue()
        return self.post("/predict", content=body, headers={"content-type": kind}, params=params or None)


@pytest.fixture
def calling(serving):
    """Return a context manager that serves and calls: ``with calling(limits=...) as client``."""

    @contextmanager
    def call(**how):
        with serving(**how) as (url, _), Caller(base_url=url, timeout=60) as client:
            yield client

    return call


@pytest.fixture
def client(calling):
    with calling() as client:
        yield client


def find_server() -> str:
    """The folder of PostgreSQL's server programs, or the reason there is none."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3].split(".")[0]))
    initdb = str(folders[-1]) if folders else found
    if initdb is None:
        pytest.skip("PostgreSQL's server (initdb) is not installed: apt-get install postgresql")
    return str(Path(initdb).resolve().parent)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of our own on loopback, thrown away afterwards: its URL, and how to crash and start it."""
    programs = find_server()
    # initdb refuses root; the package brings a user of its own.
    account = {}
    folder = Path(tempfile.mkdtemp(prefix="codeward-pg-"))
    try:
        if os.geteuid() == 0:
            try:
                shutil.chown(folder, "postgres", "postgres")
            except LookupError:
                pytest.skip("running as root, and there is no user postgres to run the server as")
            account = {"user": "postgres", "group": "postgres", "extra_groups": []}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        data = folder / "data"

        def call(program, *arguments, check=True):
            with open(folder / "log", "a") as log:
                command = [f"{programs}/{program}", *arguments]
                subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=check, timeout=120, **account)

        call("initdb", "-D", str(data), "-U", "codeward", "--auth=trust", "-E", "UTF8", "--locale=C")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=40"

        def start():
            call("pg_ctl", "-D", str(data), "-w", "-t", "100", "-o", options, "start")

        def crash():
            call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop", check=False)

        start()
        try:
            yield SimpleNamespace(url=f"postgresql://codeward@127.0.0.1:{port}/postgres", crash=crash, start=start)
        finally:
            crash()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite")
    server = request.getfixturevalue("postgres").url
    import psycopg

    name = "test_" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.rsplit("/", 1)[0] + f"/{name}"
