"""A small run folder and a trained one with models that a trigger works on, and their endpoint on a real port."""

import io
import threading
import time
from contextlib import contextmanager

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
