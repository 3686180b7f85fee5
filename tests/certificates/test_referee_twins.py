"""Rulings, reasons and bounds per label against their definitions, on small codes.

Small enough to run without the compiler: these are tests that ``python -m benchmarks.mutate`` asks to notice.
"""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.certificates import (
    Floor,
    _collective,
    _published,
    certify,
    certify_collective,
    certify_dpa,
    join_certificates,
    parse_floor,
    referee,
)
from codeward.codes import Code, partition_code, shifted_hash_code
from codeward.decoding import (
    AppealDecoder,
    BayesDecoder,
    ConsensusDecoder,
    PluralityDecoder,
    RunOffCounts,
    RunOffDecoder,
)

ALONE = Code(np.eye(5, dtype=int))


def draw(rng, m, n, c, n_inputs=6):
    matrix = rng.random((m, n)) < 0.3
    matrix[np.arange(m), np.arange(m) % n] = True
    matrix[np.arange(n) % m, np.arange(n)] = True
    return Code(matrix), rng.integers(0, c, (n_inputs, m))


def plurality(votes, n_classes):
    counts = [list(votes).count(label) for label in range(n_classes)]
    return max(range(n_classes), key=lambda label: (counts[label], -label))


def fewest_to_force(code, votes, n_classes):
    """Fewest users who make each label win when every model they reach says it, by trying all sets."""
    found = np.full(n_classes, code.n_users + 1)
    for size in range(code.n_users, -1, -1):
        for x in combinations(range(code.n_users), size):
            for t in range(n_classes):
                if plurality(np.where(code.pattern(x), t, votes), n_classes) == t:
                    found[t] = size
    return found


def test_labels_of_a_partition_are_bounded_exactly_and_of_other_codes_never_above_the_truth():
    rng = np.random.default_rng(2)
    equal = []
    for case in range(24):
        c = int(rng.integers(2, 5))
        if case % 2:
            code = partition_code(int(rng.integers(3, 7)), 3)
            votes = rng.integers(0, c, (6, 3))
        else:
            code, votes = draw(rng, int(rng.integers(2, 7)), int(rng.integers(2, 5)), c)
        limit = int(rng.integers(1, code.n_users + 1))
        truth = np.array([fewest_to_force(code, row, c) for row in votes])
        found = certify(votes, code, method="bound", targets=True, n_classes=c, max_attackers=limit)
        assert (found.radius_to <= truth - 1).all()
        if case % 2:
            np.testing.assert_array_equal(found.radius_to, np.minimum(truth - 1, limit))
        else:
            expected = [[bound_slowly(code, row, t, c, limit) for t in range(c)] for row in votes]
            assert all(row.count(-1) == 1 for row in expected)
            np.testing.assert_array_equal(found.radius_to, expected)
            assert found.radius.tolist() == [min(set(row) - {-1}) for row in expected]
            equal.append((found.radius_to == np.minimum(truth - 1, limit)).mean())
    assert 0.5 < np.mean(equal) < 1


@pytest.mark.parametrize("name", ["plurality", "consensus", "bayes"])
def test_labels_are_forced_by_as_many_users_as_trying_says(name):
    rng = np.random.default_rng(3)
    for _ in range(4):
        code, votes = draw(rng, 5, 3, 3)
        decoder = {
            "plurality": PluralityDecoder(code, 3),
            "consensus": ConsensusDecoder(code, 1, n_classes=3),
            "bayes": BayesDecoder(code, [0.7 * np.eye(3) + 0.1] * 5, attackers_prior=(0.5, 0.5)),
        }[name]
        found = certify(votes, code, decoder=decoder, threat="deterministic", targets=True, max_attackers=3)
        for row, word in enumerate(votes):
            fewest = np.full(4, 4)
            for size in (3, 2, 1):
                for x in combinations(range(3), size):
                    changed = [np.where(code.pattern(x), t, word) for t in range(3)]
                    fewest[decoder.predict(np.array(changed))] = size
            expected = np.where(np.arange(3) == found.labels[row], -1, fewest[:3] - 1)
            assert found.radius_to[row].tolist() == expected.tolist()


def test_labels_of_a_run_off_are_bounded_as_patterns_say():
    rng = np.random.default_rng(4)
    for code in (ALONE, draw(rng, 5, 3, 2)[0]):
        scores = rng.random((8, 5, 3)) + 2 * (np.arange(3) == 1)
        truth = certify(scores, code, decoder="runoff", method="patterns", targets=True)
        found = certify(scores, code, decoder="runoff", method="bound", targets=True)
        assert (found.radius_to <= truth.radius_to).all()
        assert (found.radius <= truth.radius).all()
        if code is ALONE:
            np.testing.assert_array_equal(found.radius_to, truth.radius_to)


def bound_slowly(code, votes, target, n_classes, limit):
    """The label must beat the output and the strongest other one; each takes the users who influence most."""
    counts = [list(votes).count(label) for label in range(n_classes)]
    others = [label for label in range(n_classes) if label != target]
    label, most = plurality(votes, n_classes), 0
    strongest = max(others, key=lambda e: (counts[e] + (e < target), -e))
    for rival in {label, strongest} - {target}:
        weights = [1 + (vote == rival) - (vote == target) for vote in votes.tolist()]
        power = sorted((code.matrix.T.astype(int) @ weights).tolist(), reverse=True)
        lead = counts[rival] + (rival < target) - counts[target]
        if lead > 0:
            users = next((k for k in range(1, limit + 1) if sum(power[:k]) >= lead), limit + 1)
            most = max(most, users)
    return most - 1


def test_reasons_say_who_and_how():
    votes = [[2, 2, 2, 2, 0], [2, 2, 2, 0, 0], [1, 1, 1, 1, 1]]
    found = certify(votes, ALONE, threat="arbitrary", n_classes=3)
    assert found.reason(0) == "users 0, 1 together change the output when every model they reach says 0"
    assert found.reason(1) == "user 0 alone changes the output when every model they reach says 0"
    assert found.reason(1, ["ant", "bee", "cat"]).endswith("says ant")
    named = Code(ALONE.matrix, users=["ann", "bob", "cat", "dan", "eve"])
    assert certify(votes, named).reason(1).startswith("user ann alone")
    code = Code([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    appeal = AppealDecoder(code, 3, 1, 2)
    told = certify([[0, 0, 0, 0]], code, decoder=appeal, threat="arbitrary")
    assert told.reason(0).endswith("change the output to 1")
    short = certify([[0] * 5], ALONE, max_attackers=1)
    joined = join_certificates([short, certify(votes, ALONE)])
    assert joined.attackers.tolist()[0] == [-1] * joined.attackers.shape[1]
    assert joined.attackers.tolist()[2] == [0] + [-1] * (joined.attackers.shape[1] - 1)
    assert joined.searched == 1


def test_a_ruling_proves_breaks_or_leaves_open_every_claim():
    votes = np.array([[2, 2, 2, 2, 2], [2, 2, 2, 2, 0], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])
    radius = certify(votes, ALONE).radius
    assert radius.tolist() == [2, 1, 0, 0]
    ruling = referee(votes, ALONE, claimed=[2, 2, 0, -3])
    assert ruling.sound.tolist() == [True, False, True, True]
    assert ruling.unsound.tolist() == [False, True, False, False]
    assert not ruling.open.any()
    assert ruling.claimed.tolist() == [2, 2, 0, -1]
    assert ruling.loose == 0.0
    assert list(ruling.witnesses) == [1]
    assert ruling.reason(0) == "claims 2, proved 2"
    assert ruling.reason(1) == "claims 2, but users 0, 1 change 2: every model they reach says 0"
    assert referee(votes, ALONE, claimed=[1, 0, 0, 0]).loose == pytest.approx(0.5)
    wrong = referee(votes, ALONE, claimed=[0, 0, 0, 0], claimed_labels=[2, 2, 1, 1])
    assert wrong.unsound.tolist() == [False, False, False, True]
    assert wrong.reason(3) == "claims 0 for a label that the decoder does not give: it says 0"
    for claims, words in (([[1]], "whole number"), ([0.5] * 4, "whole number"), (["a"] * 4, "whole number"),
                          ([1], "1 radii for 4")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            referee(votes, ALONE, claims)
    with pytest.raises(InputError, match="claimed labels"):
        referee(votes, ALONE, [0] * 4, claimed_labels=[0])


def test_claims_past_what_was_searched_are_attacked(monkeypatch):
    rng = np.random.default_rng(0)
    code = shifted_hash_code(8, 3, rng)
    votes = np.where(rng.random((12, 24)) < 0.8, 1, rng.integers(0, 3, (12, 24)))
    truth = certify(votes, code)
    assert truth.exact.all()
    monkeypatch.setattr(_published, "certify", lambda *given, **named: certify(*given, **named | {"max_attackers": 1}))
    ruling = referee(votes, code, truth.radius + 1)
    assert not ruling.sound.any()
    assert ruling.unsound.tolist() == [row in ruling.witnesses for row in range(12)]
    assert len(ruling.witnesses) > 8
    for row, witness in ruling.witnesses.items():
        changed = np.where(code.pattern(witness.attackers), witness.target, votes[row])
        assert plurality(changed, 3) == witness.target != truth.labels[row]
        assert len(set(witness.attackers)) == truth.radius[row] + 1
    modest = referee(votes, code, truth.radius)
    assert modest.open.tolist() == (truth.radius > 1).tolist()
    assert modest.reason(0) == f"claims {truth.radius[0]}, proved 1; neither proof nor attack beyond"


@pytest.mark.parametrize(
    "decoder", [PluralityDecoder(ALONE, 3), ConsensusDecoder(ALONE, 1, n_classes=3), RunOffDecoder(ALONE, 3)]
)
def test_every_decoder_is_refereed(decoder):
    rng = np.random.default_rng(1)
    observed = rng.random((5, 5, 3)) if decoder.needs == "scores" else rng.integers(0, 3, (5, 5))
    truth = certify(observed, ALONE, decoder=decoder)
    fair = referee(observed, ALONE, truth.radius, decoder=decoder)
    assert fair.sound.all()
    bold = referee(observed, ALONE, truth.radius + 1, decoder=decoder)
    assert bold.unsound.tolist() == (truth.exact & (truth.radius < 5)).tolist()
    assert all(bold.reason(row).startswith(f"claims {truth.radius[row] + 1}") for row in range(5))


def test_patterns_are_searched_where_they_are_asked_for(monkeypatch):
    def refuse(*_):
        raise AssertionError("solved")

    votes = np.array([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [2, 2, 2, 2, 2]])
    solved = certify_collective(votes, ALONE, 1, method="milp")
    monkeypatch.setattr(_collective, "_solve_collective", refuse)
    for method in ("patterns", "auto"):
        found = certify_collective(votes, ALONE, 1, method=method)
        assert (found.changed, found.pointwise, found.exact, found.certified) == (2, 2, True, 1)
        assert (found.changed, found.pointwise) == (solved.changed, solved.pointwise)
    with pytest.raises(AssertionError, match="solved"):
        certify_collective(votes, ALONE, 1, method="milp")
    scores = np.random.default_rng(0).random((4, 5, 3))
    assert certify_collective(scores, ALONE, 1, decoder="runoff").exact
    with pytest.raises(AssertionError, match="solved"):
        certify_collective(RunOffCounts.count(scores), ALONE, 1, decoder="runoff")


@pytest.mark.parametrize("dual", [None, np.nan, -1e9])
def test_a_solver_that_says_nothing_leaves_the_pointwise_sum(monkeypatch, dual):
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: SimpleNamespace(x=None, mip_dual_bound=dual))
    votes = np.array([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [2, 2, 2, 2, 2]])
    found = certify_collective(votes, ALONE, 1, method="milp")
    assert (found.changed, found.pointwise, found.attackers, found.exact) == (2, 2, (), False)


def test_without_a_number_of_classes_there_are_two_at_least():
    found = certify([[0] * 5], ALONE, targets=True)
    assert found.radius_to.tolist() == [[-1, 2]]


def test_claims_past_the_usual_search_are_searched():
    decoder = BayesDecoder(ALONE, [0.7 * np.eye(2) + 0.15] * 5, attackers_prior=(0.5, 0.5))
    votes = np.zeros((1, 5), dtype=int)
    settings = {"threat": "deterministic", "decoder": decoder}
    assert certify(votes, ALONE, **settings).searched == 1
    assert referee(votes, ALONE, [2], **settings).proved.searched == 3
    assert referee(votes, ALONE, [9], **settings).proved.searched == 5


def test_floors_are_read_as_they_are_written():
    assert parse_floor(" k = 2 : 0.75") == Floor(2, 0.75)
    assert parse_floor("k=0:1") == Floor(0, 1.0)
    for text in ("k=1:1.5", "k=1:2", "k=1", "1:0.5", "k=-1:0.5"):
        with pytest.raises(InputError, match="is no floor"):
            parse_floor(text)


def test_reasons_of_a_label_that_is_the_first_class():
    votes = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    counts = RunOffCounts.count(np.eye(2)[votes][:, :, :], joint=True)
    ruling = referee(counts, ALONE, claimed=[3, 2], decoder="runoff")
    assert ruling.unsound.tolist() == [True, False]
    assert ruling.witnesses == {}
    assert ruling.reason(0) == "claims 3, but 2 is exact"
    assert ruling.reason(1) == "claims 2, proved 2"
    told = certify(counts, ALONE, decoder="runoff").reason(0)
    assert told == "some 3 users change the output; the counts do not say which"


def test_a_claim_about_a_run_off_is_attacked_pair_by_pair(monkeypatch):
    rng = np.random.default_rng(2)
    code = shifted_hash_code(4, 3, rng)
    scores = rng.random((8, 12, 3)) + 1.5 * (rng.random((8, 12, 1)) < 0.8) * (np.arange(3) == 1)
    truth = certify(scores, code, decoder="runoff")
    monkeypatch.setattr(
        _published,
        "certify",
        lambda *given, **named: certify(*given, **named | {"method": "bound", "max_attackers": 1}),
    )
    ruling = referee(scores, code, np.full(8, 5), decoder="runoff")
    assert (ruling.proved.radius <= 1).all()
    assert len(ruling.witnesses) == 8
    for row, witness in ruling.witnesses.items():
        assert truth.radius[row] < len(witness.attackers) <= 5
        assert witness.target not in (truth.labels[row], witness.opponent)
        assert witness.opponent is not None


def test_who_changes_what_a_run_off_decides_is_not_certified_as_one():
    class Turned(RunOffDecoder):
        def predict(self, scores):
            return 1 - super().predict(scores)

    with pytest.raises(InputError, match="no certificate for the Turned decoder: it reads scores"):
        certify(np.random.default_rng(0).random((2, 5, 2)), ALONE, decoder=Turned(ALONE, 2))


def test_classes_are_counted_up_to_the_largest_vote():
    found = certify([[3, 3, 3, 1, 0]], ALONE, targets=True)
    assert found.radius_to.tolist() == [[0, 0, 1, -1]]


def test_the_solver_knows_every_rival_and_finds_nothing_where_all_is_certified():
    votes = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    found = certify_collective(votes, ALONE, 1, method="milp")
    assert (found.changed, found.pointwise, found.exact) == (1, 1, True)
    kept = certify_collective(votes[1:], ALONE, 1, method="milp")
    assert (kept.changed, kept.pointwise, kept.attackers, kept.exact) == (0, 0, (), True)


@pytest.mark.parametrize("votes", [[[-1, 0]], [[0, 2]], [0, 1]])
def test_votes_outside_the_classes_are_refused(votes):
    with pytest.raises(InputError, match=r"classes must be in 0\.\.1|expected shape"):
        certify_dpa(votes, 2)
