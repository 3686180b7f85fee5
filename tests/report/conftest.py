"""A run to report, and its report."""

import pytest

from codeward.report import build_report


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    from codeward.experiments import run_experiment
    from codeward.runs import load_config

    place = tmp_path_factory.mktemp("report") / "run"
    # The paper's recipe: after two of its epochs models err often enough for a page that promises nothing.
    settings = ["code.name=d", "decoder.name=bayes", "training.recipe=paper", "training.epochs=2"]
    settings += ["training.device=cpu", "repeats=2", "attack.attackers=[0,1,3]", "attack.groups=2"]
    for _ in run_experiment(load_config(None, settings), place):
        pass
    return place


@pytest.fixture(scope="session")
def report(folder):
    return build_report(folder)
