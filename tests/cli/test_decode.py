"""``codeward decode`` from the outside."""

import json
from inspect import signature

import numpy as np
import pytest

from codeward.cli import _decode as command
from codeward.cli import main
from codeward.codes import Code
from codeward.decoding import Assumptions, BayesDecoder, decode_batch, estimate_confusion, save_votes
from codeward.runs import DecoderSection


@pytest.fixture
def case(tmp_path):
    """A code with named users, votes with labels: the last 40 of 200 inputs are triggered by user 1 (target 3)."""
    rng = np.random.default_rng(0)
    code = Code(
        [[1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]], users=list("abcd")
    )
    code.save(tmp_path / "code.json")
    labels = rng.integers(0, 4, 200)
    wrong = rng.random((200, 6)) < 0.1
    votes = np.where(wrong, (labels[:, None] + rng.integers(1, 4, (200, 6))) % 4, labels[:, None])
    votes[160:, code.column(1)] = 3
    save_votes(tmp_path / "votes.npz", votes, labels)
    return code, votes, labels, tmp_path


def run(capsys, *arguments):
    status = main(["decode", *map(str, arguments)])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_verdicts_stream_to_jsonl_in_input_order(case, capsys, monkeypatch):
    code, votes, labels, folder = case
    monkeypatch.setattr(command, "CHUNK", 13)  # many parts, of odd length
    out = folder / "verdicts.jsonl"
    status, shown, _ = run(capsys, folder / "votes.npz", "--code", folder / "code.json", "-o", out, "--json")
    assert status == 0
    summary = json.loads(shown)
    confusion = estimate_confusion(votes[::2], labels[::2], 4)
    expected = BayesDecoder(code, confusion).decode(votes)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["label"] for row in rows] == expected.labels.tolist()
    assert [row["target"] for row in rows] == expected.targets.tolist()
    assert [row["suspects"] for row in rows] == [["abcd"[u] for u in found] for found in expected.suspects]
    for row, sets, more in zip(rows, expected.suspect_sets, expected.more_sets.tolist(), strict=True):
        assert row["suspect_sets"] == [["abcd"[u] for u in found] for found in sets]
        assert row["best_set"] == row["suspect_sets"][0]
        assert row.get("more_sets", 0) == more
    np.testing.assert_allclose([row["attack_probability"] for row in rows], expected.attack_probability)
    assert summary["accuracy"] == pytest.approx((expected.labels == labels)[1::2].mean())
    assert summary["accuracy_inputs"] == 100
    assert summary["alarms"] == int(expected.alarms().sum())
    assert "even-numbered" in summary["confusion"]


def test_csv_and_npz_hold_the_same_verdicts(case, capsys):
    _, _, _, folder = case
    common = (folder / "votes.npz", "--code", folder / "code.json", "--accuracy", "0.9", "--json", "-o")
    assert run(capsys, *common, folder / "v.csv")[0] == 0
    assert run(capsys, *common, folder / "v.npz")[0] == 0
    stored = np.load(folder / "v.npz")
    lines = (folder / "v.csv").read_text().splitlines()
    assert lines[0] == "label,attack_probability,target,suspects,suspect_sets"
    cells = [line.split(",") for line in lines[1:]]
    assert [int(c[0]) for c in cells] == stored["label"].tolist()
    assert [float(c[1]) for c in cells] == stored["attack_probability"].tolist()
    named = [" ".join("abcd"[u] for u in row if u >= 0) for row in stored["suspects"]]
    assert [c[3] for c in cells] == named
    shown = [
        " | ".join(" ".join("abcd"[u] for u in x if u >= 0) or "nobody" for x in row if -2 not in x)
        for row in stored["suspect_sets"]
    ]
    assert [c[4] for c in cells] == shown
    assert "nobody" in shown[0]


def test_a_batch_and_a_false_alarm_rate(case, capsys):
    code, votes, labels, folder = case
    path = (folder / "votes.npz", "--code", folder / "code.json", "--json")
    status, shown, _ = run(capsys, *path, "--batch", "-o", folder / "b.npz")
    assert status == 0
    expected = decode_batch(BayesDecoder(code, estimate_confusion(votes[::2], labels[::2], 4)), votes)
    stored = np.load(folder / "b.npz")
    np.testing.assert_allclose(stored["attack_probability"], expected.attack_probability)
    assert [tuple(u for u in row if u >= 0) for row in stored["suspects"].tolist()] == list(expected.suspects)
    assert (1,) in expected.suspects
    status, shown, _ = run(capsys, *path, "--false-alarm-rate", "0.05")
    summary = json.loads(shown)
    alone = BayesDecoder(code, estimate_confusion(votes[::2], labels[::2], 4)).decode(votes).attack_probability
    assert np.mean(alone[::2] > summary["threshold"]) <= 0.05


def test_the_other_decoders_and_the_table(case, capsys):
    _, _, _, folder = case
    for extra in (("--decoder", "plurality"), ("--decoder", "consensus", "--attackers", "1", "--errors", "0")):
        status, shown, error = run(capsys, folder / "votes.npz", "--code", folder / "code.json", *extra)
        assert (status, error) == (0, "")
        assert "accuracy" in shown
        assert "200 inputs" in shown
        assert ("whatever the" in shown) == ("consensus" in extra)  # what each promises, and under which attack


def test_csv_votes_without_labels_need_an_assumption(case, capsys):
    _, votes, _, folder = case
    save_votes(folder / "bare.csv", votes)
    status, shown, error = run(capsys, folder / "bare.csv", "--code", folder / "code.json")
    assert (status, shown) == (2, "")
    assert "--accuracy" in error
    assert error.count("\n") == 1
    assert run(capsys, folder / "bare.csv", "--code", folder / "code.json", "--accuracy", "0.9")[0] == 0


@pytest.mark.parametrize(
    ("arrays", "extra", "message"),
    [
        ({"votes": np.zeros((4, 5), int)}, (), "5 votes an input"),
        ({"votes": np.zeros((0, 6), int)}, (), "no inputs"),
        ({"votes": np.full((4, 6), 9), "labels": np.zeros(4, int)}, ("--classes", "4"), "0..3"),
        ({"votes": np.zeros((4, 6), int), "labels": np.full(4, 7)}, ("--classes", "4"), "labels"),
        ({"votes": np.full((4, 6), np.nan)}, (), "not a whole number"),
        ({"votes": np.zeros((4, 6), int), "confusion": np.full((6, 2, 2), 0.7)}, (), "sums to 1.4"),
        ({"votes": np.zeros((4, 6), int), "confusion": np.full((6, 2, 2), 0.5)}, ("--classes", "3"), "--classes"),
        ({"votes": np.zeros((4, 6), int)}, ("--decoder", "consensus"), "--attackers"),
        ({"votes": np.zeros((4, 6), int)}, ("--decoder", "oracle"), "oracle"),
        ({"votes": np.zeros((4, 6), int)}, ("--decoder", "plurality", "--batch"), "--batch"),
        ({"votes": np.zeros((4, 6), int)}, ("--accuracy", "1.5"), "--accuracy"),
        ({"votes": np.zeros((4, 6), int)}, ("--accuracy", "0.9", "--max-attackers", "-1"), "--max-attackers"),
        ({"votes": np.zeros((4, 6), int)}, ("--accuracy", "0.9", "-o", "x.txt"), "jsonl"),
        ({"votes": np.zeros((4, 6), int)}, ("--accuracy", "0.9", "--validation", "v.npz"), "not both"),
        ({"votes": np.zeros((4, 6), int)}, ("--threshold", "0.5", "--false-alarm-rate", "0.1"), "not both"),
    ],
)
def test_bad_input_is_one_line_and_status_two(case, capsys, arrays, extra, message):
    _, _, _, folder = case
    np.savez(folder / "bad.npz", **arrays)
    status, shown, error = run(capsys, folder / "bad.npz", "--code", folder / "code.json", *extra)
    assert (status, shown) == (2, "")
    assert message in error
    assert error.count("\n") == 1


def test_a_failed_run_leaves_no_output_behind(case, capsys):
    _, votes, labels, folder = case
    spoilt = votes.astype(float)
    spoilt[150, 0] = np.nan
    np.savez(folder / "spoilt.npz", votes=spoilt, labels=labels)
    out = folder / "verdicts.jsonl"
    status, _, _ = run(capsys, folder / "spoilt.npz", "--code", folder / "code.json", "--classes", "4", "-o", out)
    assert status == 2
    assert not out.exists()


def test_confusion_matrices_come_from_a_validation_file(case, capsys):
    code, votes, labels, folder = case
    save_votes(folder / "clean.npz", votes[:160], labels[:160])
    save_votes(folder / "triggered.npz", votes[160:], labels[160:])
    out = folder / "verdicts.npz"
    arguments = (folder / "triggered.npz", "--code", folder / "code.json", "--validation", folder / "clean.npz")
    status, shown, _ = run(capsys, *arguments, "-o", out, "--json")
    assert status == 0
    expected = BayesDecoder(code, estimate_confusion(votes[:160], labels[:160], 4)).predict(votes[160:])
    assert (np.load(out)["label"] == expected).all()
    assert json.loads(shown)["accuracy"] == pytest.approx((expected == labels[160:]).mean())


def test_the_score_decoder_says_what_it_needs(case, capsys):
    _, votes, _, folder = case
    status, _, error = run(capsys, folder / "votes.npz", "--code", folder / "code.json", "--decoder", "soft")
    assert status == 2
    assert "--validation" in error
    save_votes(folder / "blind.npz", votes)
    arguments = (folder / "votes.npz", "--code", folder / "code.json", "--validation", folder / "blind.npz")
    for decoder in ("soft", "bayes"):
        status, _, error = run(capsys, *arguments, "--decoder", decoder)
        assert status == 2
        assert "no labels" in error


def test_votes_of_another_code_are_refused_unless_forced(case, capsys):
    code, votes, labels, folder = case
    other = Code(code.matrix[:, ::-1])
    save_votes(folder / "other.npz", votes, labels, code_digest=other.digest)
    arguments = (folder / "other.npz", "--code", folder / "code.json", "--accuracy", "0.9")
    status, shown, error = run(capsys, *arguments)
    assert (status, shown, error.count("\n")) == (2, "", 1)
    assert other.digest in error
    assert code.digest in error
    assert run(capsys, *arguments, "--force")[0] == 0
    save_votes(folder / "own.npz", votes, labels, code_digest=code.digest)
    arguments = (folder / "own.npz", "--code", folder / "code.json", "--validation", folder / "other.npz")
    assert other.digest in run(capsys, *arguments)[2]
    assert run(capsys, folder / "own.npz", "--code", folder / "code.json", "--accuracy", "0.9")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("with_scores", [True, False])
def test_the_score_decoder_is_fitted_on_the_validation_file(case, capsys, with_scores):
    _, votes, labels, folder = case
    hot = np.where(np.arange(4) == votes[:, :, None], 0.9, 0.1 / 3)
    scores = np.log(hot) if with_scores else None
    save_votes(folder / "clean.npz", votes[:160], labels[:160], None, None if scores is None else scores[:160])
    save_votes(folder / "new.npz", votes[160:], labels[160:], None, None if scores is None else scores[160:])
    arguments = (folder / "new.npz", "--code", folder / "code.json", "--validation", folder / "clean.npz")
    out = folder / "verdicts.npz"
    status, shown, error = run(capsys, *arguments, "--decoder", "soft", "-o", out, "--json")
    assert status == 0, error
    assert json.loads(shown)["accuracy"] > 0.5
    assert set(np.load(out)) >= {"label", "attack_probability", "target"}


def test_defaults_that_are_said_before_anything_is_imported_are_those_of_the_assumptions():
    section, options = (
        DecoderSection(),
        {name: option.default for name, option in signature(command.decode).parameters.items()},
    )
    said = {name: getattr(options[name], "default", None) for name in ("attack_rate", "success_rate", "second_rate")}
    assert said == {name: getattr(Assumptions(), name) for name in said}
    assert options["max_attackers"].default == section.max_attackers == Assumptions().max_attackers
    for name in ("attack_rate", "success_rate", "false_alarm_rate"):
        assert getattr(section, name) == getattr(Assumptions(), name)
