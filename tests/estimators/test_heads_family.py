"""`train --backbone`: heads in a folder like any other."""

import json

import numpy as np
import pytest

from codeward import InputError
from codeward.cli import main
from codeward.estimators import load_sub_models
from codeward.runs import Cell, RunFolder
from codeward.training.heads import HeadSet


@pytest.fixture
def digits(tmp_path):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    file = tmp_path / "digits.npz"
    images = np.round(bunch.images[:600] * 15.9).astype(np.uint8)[:, None]
    np.savez(file, images=images, labels=bunch.target[:600], groups=np.arange(600) % 12)
    return file


@pytest.mark.slow
def test_train_with_a_backbone_makes_a_folder_that_votes(digits, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    arguments = ["train", str(digits), "-o", str(out), "--backbone", "gradients", "--attackers", "1", "--json"]
    assert main(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert "gradients" in told["card"]["assumed"]["backbone"]
    assert "nobody is trusted" in told["card"]["assumed"]["backbone"]
    assert told["card"]["accuracy"]["count"] > 0.8 * told["card"]["accuracy"]["of"]
    cell = Cell(RunFolder(out), 0, 0)
    assert cell.about["family"] == "heads"
    models = load_sub_models(cell)
    assert isinstance(models, HeadSet)
    with np.load(digits) as data:
        assert models.votes(data["images"][:5]).shape == (5, cell.code.n_models)
    assert main(arguments) == 0  # nothing is made twice
    monkeypatch.setattr("codeward.training.backbones._stroke_features._VERSION", 99)
    with pytest.raises(InputError, match=r"backbone gradients has hash .*, the heads want"):
        load_sub_models(cell)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backbone", "nothing"], "choose strokes"),
        (["--backbone", "gradients", "--model", "cnn"], "exclude each other"),
        (["--backbone", "gradients", "--ridge", "0"], "ridge"),
        (["--backbone", "hashed-text"], "hashed-text"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments, says, digits, tmp_path, capsys):
    status = main(["train", str(digits), "-o", str(tmp_path / "run"), "--attackers", "1", *arguments])
    err = capsys.readouterr().err
    assert status == 2
    assert says in err
