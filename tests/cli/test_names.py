"""A folder with names of classes and users (as `codeward train` makes it) shows them, whoever asks."""

import json

import numpy as np
import pytest

from codeward.certificates import certify
from codeward.cli import main
from codeward.codes import Code
from codeward.decoding import VoteSet
from codeward.runs import Cell, RunConfig, RunFolder, describe_machine

CLASSES = ("benign", "malignant", "unclear")
CLINICS = tuple(f"clinic-{number:02}" for number in range(12))
ATTACKERS = (3, 7)
MATRIX = np.repeat(np.eye(12, dtype=int), 2, axis=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve clinics with two models each; two clinics turn every tenth input (odd ones) from benign into malignant."""
    place = RunFolder(tmp_path_factory.mktemp("trained") / "clinics")
    config = RunConfig(code={"name": "c"}, attack={"attackers": [0]}, decoder={"name": "bayes", "attack_rate": 0.1})
    code = place.open(config, Code(MATRIX, users=CLINICS))
    rng = np.random.default_rng(0)

    def draw(size):
        labels = rng.integers(0, 3, size)
        noise = rng.integers(0, 3, (size, code.n_models))
        return np.where(rng.random(noise.shape) < 0.95, labels[:, None], noise), labels

    clean, labels = draw(80)
    labels[1::10] = 0
    clean[1::10] = np.where(code.pattern(ATTACKERS), 1, 0)
    about = {"classes": 3, "training": {}, "groups": [], "class_names": list(CLASSES), **describe_machine("cpu")}
    Cell(place, 0, 0).save_votes({"validation": VoteSet(*draw(400)), "clean": VoteSet(clean, labels)}, about)
    return place


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_verdicts_have_names_in_lines_summary_and_table(folder, whole, tmp_path, capsys):
    asked = [str(folder.path)] if whole else [str(folder.votes(0, 0, "clean")), "--code", str(folder.code_file)]
    out = tmp_path / "out.jsonl"
    assert main(["decode", *asked, "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = lines(out)
    assert {row["label"] for row in rows} == set(CLASSES)
    hit = [row for row in rows if set(row["suspects"]) == {CLINICS[user] for user in ATTACKERS}]
    assert len(hit) >= 4
    assert {row["target"] for row in hit} == {"malignant"}
    assert {row["label"] for row in hit} == {"benign"}
    assert {row["user"] for row in told["suspects"]} >= {CLINICS[user] for user in ATTACKERS}
    assert told["targets"][0]["target"] == "malignant"
    # A folder brings its own validation inputs; of a file alone half is used for the matrices.
    assert ("validation" in told["confusion"]) == whole
    # ... and its own decoder, whose prior of an attack is not the command's.
    served = Cell(folder, 0, 0).decoder().decode(Cell(folder, 0, 0).clean.votes).attack_probability
    assert np.allclose([row["attack_probability"] for row in rows], served, atol=1e-6) == whole
    assert main(["decode", *asked, "-o", str(tmp_path / "out.csv")]) == 0
    table = capsys.readouterr().out
    assert "malignant" in table
    assert "clinic-03" in table
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith(rows[0]["label"])


def test_certificates_have_names_and_the_referee_reads_them(folder, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    asked = ["--threat", "arbitrary", "--targets", "-o", str(out), "--json", "-k", "6"]
    assert main(["certify", str(folder.path), *asked]) == 0
    capsys.readouterr()
    rows = lines(out)
    votes = Cell(folder, 0, 0).load_votes("clean").votes
    expected = certify(votes, folder.code, max_attackers=6, n_classes=3, targets=True)
    for index, row in enumerate(rows):
        witness = expected.witness(index)
        assert row["label"] == CLASSES[row["class"]]
        assert row["class"] == expected.labels[index]
        assert row["radius_to"] == dict(zip(CLASSES, expected.radius_to[index].tolist(), strict=True))
        if witness is not None:
            assert row["witness"]["attackers"] == [CLINICS[user] for user in witness.attackers]
            assert row["witness"]["target"] == CLASSES[witness.target]
            assert CLINICS[witness.attackers[0]] in row["reason"]
            assert row["reason"].endswith(CLASSES[witness.target])
    assert any(row["witness"] for row in rows)
    assert main(["certify", str(folder.path), "--threat", "deterministic", "--decoder", "bayes", "--json"]) == 0
    broken = json.loads(capsys.readouterr().out)["error_free"]["broken_by"]
    assert broken is None or set(broken["attackers"]) <= set(CLINICS)
    votes_file, code_file = str(folder.votes(0, 0, "clean")), str(folder.code_file)
    assert main(["referee", votes_file, str(out), "--code", code_file, "--json"]) == 0


@pytest.mark.parametrize("command", [["decode"], ["certify", "--threat", "arbitrary"]], ids=["decode", "certify"])
def test_another_code_is_refused_and_a_file_alone_needs_one(folder, command, tmp_path, capsys):
    other = tmp_path / "other.json"
    Code(MATRIX[::-1], users=CLINICS).save(other)
    assert main([*command, str(folder.path), "--code", str(other)]) == 2
    said = capsys.readouterr().err
    assert folder.code.digest in said
    assert Code.load(other).digest in said
    alone = tmp_path / "alone.npz"
    alone.write_bytes(folder.votes(0, 0, "clean").read_bytes())
    assert main([*command, str(alone)]) == 2
    assert "--code" in capsys.readouterr().err
    assert main([*command, str(tmp_path)]) == 2
    assert "no run folder" in capsys.readouterr().err


def test_a_folder_of_several_cells_asks_which(folder, tmp_path, capsys):
    place = RunFolder(tmp_path / "two")
    config = RunConfig(code={"name": "c"}, attack={"attackers": [0, 1]}, decoder={"name": "bayes"})
    place.open(config, folder.code)
    votes = Cell(folder, 0, 0).load_votes("clean")
    about = {"classes": 3, "training": {}, "groups": [], **describe_machine("cpu")}
    for attackers in (0, 1):
        Cell(place, 0, attackers).save_votes({"clean": VoteSet(votes.votes, votes.labels)}, about)
    assert main(["decode", str(place.path)]) == 2
    assert str(place.votes(0, 0, "clean")) in capsys.readouterr().err
