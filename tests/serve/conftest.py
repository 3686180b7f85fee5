"""A small run folder with models that a trigger works on, and its guarded endpoint on a real port."""

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
        with serving(**how) as (url, _), Caller(base_url=url) as client:
            yield client

    return call


@pytest.fixture
def client(calling):
    with calling() as client:
        yield client
