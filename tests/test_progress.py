"""One rule for progress: the caller's object, True for a bar, else nothing."""

import numpy as np
import pytest

from codeward._progress import show_progress
from codeward.codes import Code
from codeward.data import load_dataset
from codeward.federated import FederatedSettings, FederationPlan, train_federated
from codeward.training import PRESETS


class Counted:
    done = 0.0

    def advance(self, amount=1, note=""):
        self.done += amount


@pytest.mark.parametrize("shown", [None, False])
def test_nothing_is_shown_unless_asked_for(shown, capsys, monkeypatch):
    monkeypatch.setattr("codeward._progress.PLAIN_INTERVAL", 0.0)
    with show_progress("job", 2, shown) as bar:
        bar.advance()
    assert capsys.readouterr().err == ""


def test_true_shows_a_bar_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr("codeward._progress.PLAIN_INTERVAL", 0.0)
    with show_progress("job", 2, True) as bar:
        bar.advance()
    assert capsys.readouterr().err.startswith("job: 1/2")


def test_a_federation_advances_its_callers_progress_and_shows_nothing(capsys):
    train = load_dataset("digits").train.take(np.arange(60))
    settings = FederatedSettings(rounds=2, local_epochs=1)
    plan = FederationPlan(Code([[1, 1]]), PRESETS["digits"], settings, train.images.shape[1:], 0)
    counted = Counted()
    train_federated([train.take(np.arange(start, 60, 2)) for start in range(2)], plan, progress=counted)
    assert counted.done == 4  # replies: two users, two rounds
    assert capsys.readouterr().err == ""
