import csv
import json
import re

import numpy as np
import pytest

from codeward._errors import UnmetError
from codeward.certificates import Floor, certify, certify_agreement, certify_collective
from codeward.cli import main
from codeward.codes import Code, named_code
from codeward.decoding import BayesDecoder, estimate_confusion, save_votes


@pytest.fixture
def files(tmp_path):
    code = named_code("c")
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 4, 60)
    votes = np.where(rng.random((60, code.n_models)) < 0.9, labels[:, None], rng.integers(0, 4, (60, code.n_models)))
    code.save(tmp_path / "c.csv")
    save_votes(tmp_path / "votes.npz", votes, labels)
    return tmp_path, code, votes, labels


def call(files, *more):
    folder = files[0]
    return main(["certify", str(folder / "votes.npz"), "--code", str(folder / "c.csv"), *map(str, more)])


def test_lines_follow_the_contract_in_input_order(files, capsys):
    folder, code, votes, labels = files
    assert call(files, "--threat", "arbitrary", "-o", folder / "out.jsonl", "--json") == 0
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    expected = certify(votes, code)
    assert [row["label"] for row in rows] == expected.labels.tolist()
    assert [row["radius"] for row in rows] == expected.radius.tolist()
    assert {(row["threat"], row["decoder"]) for row in rows} == {("arbitrary", "plurality")}
    witness = expected.witness(0)
    assert rows[0]["witness"] == {"attackers": list(witness.attackers), "target": witness.target}
    out = json.loads(capsys.readouterr().out)
    right = expected.labels == labels
    assert out["certified"]["0"] == pytest.approx(right.mean())
    assert out["certified"]["1"] == pytest.approx((right & (expected.radius >= 1)).mean())
    assert out["measure"] == "certified accuracy"


def test_csv_and_npz_say_the_same_and_blocks_do_not_matter(files, monkeypatch, capsys):
    folder, code, votes, _ = files
    monkeypatch.setattr("codeward.cli._certify.CHUNK", 7)
    assert call(files, "--threat", "arbitrary", "-o", folder / "out.csv") == 0
    assert call(files, "--threat", "arbitrary", "-o", folder / "out.npz") == 0
    expected = certify(votes, code)
    with (folder / "out.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [int(row["radius"]) for row in rows] == expected.radius.tolist()
    with np.load(folder / "out.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["radius"], expected.radius)
        np.testing.assert_array_equal(arrays["attackers"], expected.attackers)
        assert str(arrays["threat"]) == "arbitrary"
    assert "certified accuracy" in capsys.readouterr().out


def test_bayes_is_fitted_on_even_and_measured_on_odd_inputs(files, capsys):
    folder, code, votes, labels = files
    assert (
        call(files, "--threat", "deterministic", "--decoder", "bayes", "-k", 1, "-o", folder / "b.npz", "--json") == 0
    )
    decoder = BayesDecoder(code, estimate_confusion(votes[::2], labels[::2], 4))
    expected = certify(votes, code, threat="deterministic", decoder=decoder, max_attackers=1)
    with np.load(folder / "b.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["radius"], expected.radius)
    out = json.loads(capsys.readouterr().out)
    assert out["measured_inputs"] == 30
    assert out["certified"]["0"] == pytest.approx((expected.labels == labels)[1::2].mean())
    assert "even-numbered" in out["confusion"]
    kept = certify_agreement(code, decoder, 4, max_attackers=1)
    assert (out["error_free"]["attackers"], out["error_free"]["searched"]) == (kept.n_attackers, 1)
    assert (out["error_free"]["broken_by"] is None) == (kept.witness is None)
    assert call(files, "--threat", "deterministic", "--decoder", "bayes", "-k", 1) == 0
    assert f"up to k = {kept.n_attackers} (of 1 tried)" in capsys.readouterr().out
    assert call(files, "--threat", "deterministic", "--json") == 0
    assert json.loads(capsys.readouterr().out)["error_free"] is None


def test_consensus_collective_and_plot(files, capsys):
    folder, code, votes, labels = files
    options = ["--threat", "arbitrary", "--decoder", "consensus", "--attackers", 2, "--errors", 1, "-k", 2]
    assert call(files, *options, "--collective", "--plot", folder / "p.svg", "--json") == 0
    out = json.loads(capsys.readouterr().out)
    expected = certify_collective(votes, code, 1, labels=labels, decoder="consensus", decoder_attackers=2, n_errors=1)
    assert out["collective"]["1"]["changed_at_most"] == expected.changed
    assert out["collective"]["1"]["pointwise"] == expected.pointwise
    assert (folder / "p.svg").read_text().startswith("<svg xmlns")
    assert call(files, *options, "--collective") == 0
    assert "collective" in capsys.readouterr().out


def test_a_class_that_no_vote_names_counts_where_the_file_or_the_user_says_so(tmp_path, capsys):
    code = Code([[1, 0], [0, 1]])
    code.save(tmp_path / "c.csv")
    votes, labels = np.array([[0, 0], [1, 1]] * 4), np.array([0, 1] * 4)
    save_votes(tmp_path / "scored.npz", votes, labels, scores=np.zeros((8, 2, 5)))
    save_votes(tmp_path / "plain.npz", votes, labels)
    options = ["--code", str(tmp_path / "c.csv"), "--threat", "deterministic", "--decoder", "bayes", "--json"]
    for name, more, expected in (("scored", [], 5), ("plain", ["--classes", "4"], 4), ("plain", [], 2)):
        assert main(["certify", str(tmp_path / f"{name}.npz"), *options, *more]) == 0
        assert json.loads(capsys.readouterr().out)["classes"] == expected
    assert main(["certify", str(tmp_path / "scored.npz"), *options, "--classes", "4"]) == 2
    assert "scores are of 5" in capsys.readouterr().err


def test_votes_of_another_code_are_refused_unless_forced(files, capsys):
    folder, code, votes, labels = files
    save_votes(folder / "votes.npz", votes, labels, code_digest=named_code("d").digest)
    assert call(files, "--threat", "arbitrary") == 2
    assert "digest" in capsys.readouterr().err
    assert call(files, "--threat", "arbitrary", "--force") == 0
    save_votes(folder / "votes.npz", votes, labels, code_digest=code.digest)
    assert call(files, "--threat", "arbitrary") == 0


def test_two_groups_are_certified_under_deterministic(files, capsys):
    options = ["--decoder", "groups", "-k", 1, "--json"]
    assert call(files, "--threat", "deterministic", *options) == 0
    assert json.loads(capsys.readouterr().out)["decoder"] == "groups"
    assert call(files, "--threat", "arbitrary", *options) == 2


def test_users_keep_their_names(tmp_path, capsys):
    Code(np.eye(3, dtype=int), users=["ann", "bob", "cy"]).save(tmp_path / "c.json")
    save_votes(tmp_path / "v.csv", [[1, 1, 0]])
    target = tmp_path / "o.jsonl"
    arguments = ["certify", str(tmp_path / "v.csv"), "--code", str(tmp_path / "c.json"), "--threat", "arbitrary"]
    assert main([*arguments, "-o", str(target)]) == 0
    assert json.loads(target.read_text())["witness"]["attackers"] == ["ann"]
    assert "certified share" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threat", "rude"], "--threat"),
        (["--threat", "arbitrary", "--decoder", "bayes"], "same target"),
        (["--threat", "arbitrary", "--decoder", "oracle"], "--decoder"),
        (["--threat", "arbitrary", "--decoder", "consensus"], "--attackers"),
        (["--threat", "arbitrary", "-k", "0"], "--max-attackers"),
        (["--threat", "arbitrary", "--time-limit", "-1"], "--time-limit"),
        (["--threat", "arbitrary", "-o", "x.txt"], ".jsonl"),
        (["--threat", "arbitrary", "--plot", "x.txt"], ".svg"),
        (["--threat", "arbitrary", "--classes", "2"], "votes"),
    ],
)
def test_bad_requests_get_one_line_and_exit_2(files, capsys, options, words):
    assert call(files, *options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_votes_that_do_not_fit_the_code_get_one_line_and_exit_2(files, tmp_path, capsys):
    save_votes(tmp_path / "narrow.npz", np.zeros((3, 4), dtype=int))
    arguments = ["certify", str(tmp_path / "narrow.npz"), "--code", str(tmp_path / "c.csv"), "--threat", "arbitrary"]
    assert main(arguments) == 2
    assert "4 votes an input" in capsys.readouterr().err


def test_help_teaches_with_an_example(capsys):
    assert main(["certify", "--help"]) == 0
    assert "Example" in capsys.readouterr().out


def test_a_floor_is_held_or_one_line_and_status_1(files, capsys):
    folder, code, votes, labels = files
    found = certify(votes, code)
    share = float(((found.labels == labels) & (found.radius >= 1)).mean())
    ask = ("--threat", "arbitrary", "--json", "-o", folder / "out.jsonl")
    assert call(files, *ask, "--fail-under", f"k=1:{share - 1e-5:.6f}", "--fail-under", "k=0:0") == 0
    (folder / "out.jsonl").unlink()
    capsys.readouterr()
    assert call(files, *ask, "--fail-under", "k=0:0", "--fail-under", f"k=1:{share + 0.01:.6f}") == 1
    out = capsys.readouterr()
    assert (folder / "out.jsonl").exists()  # the work is there to look at
    assert json.loads(out.out)["certified"]["1"] == pytest.approx(share)
    assert len(out.err.strip().splitlines()) == 1
    assert "below the" in out.err
    # Past every radius nothing is certified.
    assert call(files, *ask, "--fail-under", "k=99:0.01") == 1


def test_a_floor_missed_by_little_is_not_shown_as_reached():
    floor = Floor(1, 0.8)
    floor.check(8 / 10, 10)
    for n_inputs in (10, 3_000, 1_000_000):
        count = n_inputs * 8 // 10 - 1
        with pytest.raises(UnmetError) as told:
            floor.check(count / n_inputs, n_inputs)
        reached, asked = re.findall(r"[\d.]+%", str(told.value))
        assert float(reached[:-1]) < float(asked[:-1]) == 80
        assert f"({count:,} of {n_inputs:,} inputs)" in str(told.value)


@pytest.mark.parametrize("text", ["1:0.8", "k=1", "k=1:80", "k=-1:0.5", "k=1:nan", "k=1:1e-3", "k=one:0.5", ""])
def test_a_floor_that_says_nothing_is_refused(files, capsys, text):
    assert call(files, "--threat", "arbitrary", "--fail-under", text) == 2
    assert "k=1:0.80" in capsys.readouterr().err


def test_a_floor_needs_labels(files, capsys):
    folder, _, votes, _ = files
    save_votes(folder / "votes.npz", votes)
    assert call(files, "--threat", "arbitrary", "--fail-under", "k=1:0.5") == 2
    assert "labels" in capsys.readouterr().err


def test_run_off_and_targets_from_the_command_line(files, capsys):
    folder, code, votes, labels = files
    scores = np.random.default_rng(1).random((60, code.n_models, 4)) + 2 * np.eye(4)[votes]
    save_votes(folder / "votes.npz", votes, labels, scores=scores.astype(np.float32))
    ask = ("--threat", "arbitrary", "--decoder", "runoff", "--targets", "-k", 3)
    for name in ("out.jsonl", "out.csv", "out.npz"):
        assert call(files, *ask, "-o", folder / name, "--collective", "--json") == 0
    expected = certify(scores.astype(np.float32), code, decoder="runoff", max_attackers=3, targets=True)
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [row["radius"] for row in rows] == expected.radius.tolist()
    assert [row["radius_to"] for row in rows] == expected.radius_to.tolist()
    witness = expected.witness(0)
    assert rows[0]["witness"]["opponent"] == witness.opponent
    with np.load(folder / "out.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["radius_to"], expected.radius_to)
        np.testing.assert_array_equal(arrays["opponent"], expected.opponents)
    with (folder / "out.csv").open() as handle:
        assert next(csv.DictReader(handle))["radius_to"] == " ".join(map(str, expected.radius_to[0]))
    out = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert out["decoder"] == "runoff"
    at_once = certify_collective(scores.astype(np.float32), code, 1, labels=labels, decoder="runoff")
    assert out["collective"]["1"]["changed_at_most"] == at_once.changed


def test_run_off_needs_scores_and_arbitrary(files, capsys):
    assert call(files, "--threat", "arbitrary", "--decoder", "runoff") == 2
    assert "scores" in capsys.readouterr().err
    assert call(files, "--threat", "deterministic", "--decoder", "runoff") == 2
    assert "arbitrary" in capsys.readouterr().err
