"""`codeward features`."""

import json

import numpy as np
import pytest

from codeward.cli import main


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    file = tmp_path / "data.npz"
    np.savez(
        file,
        images=rng.integers(0, 255, (12, 1, 16, 16), dtype=np.uint8),
        labels=np.arange(12) % 3,
        groups=np.array(list("aabbccddeeff")),
    )
    return file


def test_features_of_a_file_are_written_and_kept(images, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CODEWARD_DATA", str(tmp_path / "data"))
    out = tmp_path / "features.npz"
    for known in (False, True):
        assert main(["features", str(images), "-o", str(out), "--backbone", "gradients", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["from_cache"] is known
        assert told["trust"] == "nobody to trust"
    with np.load(out) as found:
        assert found["X"].shape == (12, 2048)
        assert (found["X"] * 4096 == np.rint(found["X"] * 4096)).all()
        assert found["y"].tolist() == [str(label % 3) for label in range(12)]
        assert found["groups"].tolist() == list("aabbccddeeff")


def test_a_file_of_features_says_who_settled_how_inputs_are_read(tmp_path, capsys):
    """Two users hand in numbers, one a word: one more word and the column is names for everybody."""
    rows = [f"{'x' if user == 2 else place % 2},{place % 2},u{user}" for user in range(3) for place in range(20)]
    file, out = tmp_path / "own.csv", tmp_path / "features.npz"
    file.write_text("\n".join(["a,y,user", *rows]), encoding="utf-8")
    told = ["--backbone", "hashed-table", "--no-cache", "--json"]
    assert main(["features", str(file), "-o", str(out), *told]) == 0
    assert main(["train", str(out), "-k", "1", "--backbone", "features", "-o", str(tmp_path / "run"), "--json"]) == 0
    card = json.loads(capsys.readouterr().out.splitlines()[-1])["card"]
    assert "1 of them could have changed that" in card["warnings"][0]
    assert card["certified"] == []


def test_names_are_listed(capsys):
    assert main(["features", "list"]) == 0
    assert "efficientnet-lite0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backbone", "nothing"], "choose strokes"),
        (["--backbone", "hashed-text"], "hashed-text: input 0 is no text"),
        (["--backbone", "hashed-table"], "hashed-table: expected a table"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments, says, images, tmp_path, capsys):
    status = main(["features", str(images), "-o", str(tmp_path / "f.npz"), "--no-cache", "--quiet", *arguments])
    err = capsys.readouterr().err
    assert status == 2
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "f.npz").exists()


def test_another_ending_is_refused(images, capsys):
    assert main(["features", str(images), "-o", "f.csv"]) == 2
    assert "written as .npz" in capsys.readouterr().err
