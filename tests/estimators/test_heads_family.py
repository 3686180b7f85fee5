"""`train --backbone`: heads in a folder like any other."""

import json

import numpy as np
import pytest

from codeward import InputError
from codeward.cli import main
from codeward.estimators import CodedClassifier, load_sub_models
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


def test_a_classifier_on_a_network_file_is_saved_loaded_and_revoked(tmp_path, monkeypatch, capsys):
    """``CodedClassifier(backbone="encoder.onnx")``, the whole way; the file is found again by its hash."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y, users = X[:600] / 16, y[:600], np.array([f"site-{place % 8}" for place in range(600)])
    weights = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k]) for n, k in (("x", 64), ("y", 48))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "own", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    file = tmp_path / "encoder.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(file))
    monkeypatch.chdir(tmp_path)
    told = {"n_attackers": 1, "classes": range(10), "decoder": "plurality", "random_state": 0}
    guard = CodedClassifier(backbone="encoder.onnx", **told).fit(X[:500], y[:500], users[:500])
    assert guard.score(X[500:], y[500:]) > 0.6  # features by chance
    card = guard.save(tmp_path / "run")
    assert "encoder.onnx" in card.assumed["backbone"]
    assert "trusted" in card.assumed["backbone"]
    again = CodedClassifier.load(tmp_path / "run")
    assert np.array_equal(again.votes(X[500:]), guard.votes(X[500:]))
    capsys.readouterr()
    assert main(["revoke", str(tmp_path / "run"), "site-3", "-o", str(tmp_path / "without"), "--yes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["records"][0]["work"]["reused"] == len(told["untouched"]) > 0
    left = CodedClassifier.load(tmp_path / "without")
    column = guard.code_.users.index("site-3")
    same = np.flatnonzero(~guard.code_.matrix[:, column].astype(bool))
    assert np.array_equal(left.votes(X[500:])[:, same], guard.votes(X[500:])[:, same])
    file.write_bytes(file.read_bytes() + b"\x00")
    with pytest.raises(InputError):
        CodedClassifier.load(tmp_path / "run").votes(X[:1])
