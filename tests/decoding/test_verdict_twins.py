"""Verdicts joined, remembered and counted, against their definitions.

Small enough to run without the compiler: these are tests that ``python -m benchmarks.mutate`` asks to notice.
"""

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import (
    Decoded,
    PluralityDecoder,
    VerdictMemory,
    alarm_threshold,
    distinct_rows,
    roc_curve,
    tracking_score,
)
from codeward.decoding._attacker_sets import gather_attacker_sets, name_suspects, rank_sets
from codeward.decoding._decoded import first_best


def test_rows_are_told_apart_however_many_words_they_take():
    rng = np.random.default_rng(5)
    for n_models, n_classes, top in (
        (3, 2, 2),
        (70, 2, 2),
        (64, 3, 3),
        (2, 2**61, 9),
        (3, 1, 1),
        (62, 2, 2),
        (63, 2, 2),
    ):
        votes = rng.integers(0, top, (12, n_models))
        votes[1], votes[2], votes[3] = votes[0], votes[0], votes[0]
        votes[2, 0], votes[3, -1] = (votes[0, 0] + 1) % top, (votes[0, -1] + 1) % top
        distinct, inverse = distinct_rows(votes, n_classes)
        assert (distinct[inverse] == votes).all()
        assert len({tuple(row) for row in votes.tolist()}) == len(distinct) == inverse.max() + 1
        assert inverse[0] == inverse[1]
    for shape in ((0, 3), (3, 0)):
        distinct, inverse = distinct_rows(np.zeros(shape, dtype=np.int64), 2)
        assert distinct.shape == shape
        assert inverse.tolist() == [0] * shape[0]


def test_ties_within_rounding_go_to_the_lowest_index():
    values = np.array([[1.0, 1.0 + 1e-12], [1.0, 1.0 + 1e-6], [3.0, 2.0], [0.0, 0.0]])
    assert first_best(values).tolist() == [0, 1, 0, 0]


class Counting:
    """Plurality that notes how many vote vectors it was given."""

    needs = "votes"

    def __init__(self, n_classes):
        self.n_classes, self.asked = n_classes, []

    def decode(self, votes):
        self.asked.append(len(votes))
        return PluralityDecoder(n_classes=self.n_classes).decode(votes)

    def predict(self, votes):
        return self.decode(votes).labels


def test_a_memory_decodes_once_and_forgets_past_its_limit():
    a, b, c, d = [0, 0, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0]
    counting = Counting(2)
    memory = VerdictMemory(counting)
    assert memory.n_classes == 2
    assert memory.predict([a, b, a]).tolist() == [0, 1, 0]
    assert memory.decode([b, c, a]).labels.tolist() == [1, 1, 0]
    assert memory.decode([c, b, a]).labels.tolist() == [1, 1, 0]
    assert counting.asked == [2, 1]
    # No users, two classes, room for twenty sets and eight more: thirty numbers an input, so three are kept.
    counting = Counting(2)
    memory = VerdictMemory(counting, limit=90)
    for votes, asked in (
        ([a, b], [2]),
        ([c], [2, 1]),
        ([a, b, c], [2, 1]),
        ([a, d], [2, 1, 1, 2]),
        ([d], [2, 1, 1, 2]),
    ):
        wanted = PluralityDecoder(n_classes=2).decode(votes)
        found = memory.decode(votes)
        assert found.labels.tolist() == wanted.labels.tolist()
        assert found.attack_probability.tolist() == wanted.attack_probability.tolist()
        assert counting.asked == asked
    assert memory.decode([a]).labels.tolist() == [0]
    assert counting.asked == [2, 1, 1, 2]
    # Numbers of base two, lowest first: the wrong votes of the first two have those of the right ones beside them.
    for votes in ([a, [0, 2, 0]], [[0, 1, 0], [0, -1, 1]], [[0, 2, 0]], [[0, -1, 0]], [0, 1]):
        with pytest.raises(InputError):
            memory.decode(votes)
    assert len(memory.decode(np.zeros((0, 3), dtype=int))) == 0
    assert memory.decode([[0.0, 1.0, 1.0]]).labels.tolist() == [1]
    free = Counting(None)
    assert VerdictMemory(free).decode([a, a]).labels.tolist() == [0, 0]
    assert free.asked == [2]
    many = VerdictMemory(Counting(300))
    assert many.decode([[256, 256, 0], [0, 0, 256], [299, 299, 1]]).labels.tolist() == [256, 0, 299]


def test_suspects_are_listed_by_level_then_by_their_users():
    rng = np.random.default_rng(8)
    matrix = np.vstack([np.eye(9, dtype=int), rng.random((3, 9)) < 0.5])
    matrix[:, 7], matrix[:, 8] = matrix[:, 1], matrix[:, 0]  # users whom no pattern tells apart
    code = Code(matrix[:7])
    for prior in ((0.2, 0.4, 0.4), (0.0, 1.0)):
        sets = gather_attacker_sets(code, np.array(prior))
        # Levels far apart, ties and hopeless ones; more sets near the best than are shown.
        masses = rng.choice([1.0, 0.8, 0.3, 0.05, 1e-6], size=(12, sets.weights.size)) * sets.weights
        masses[0], masses[1, 1:] = 0.0, 0.0
        found = name_suspects(sets, masses)
        names = [tuple(user for user in row if user >= 0) for row in sets.users.tolist()]
        for row, mass in enumerate(masses):
            by_set = {}
            for p in range(sets.weights.size):
                for s in range(sets.starts[p], sets.starts[p + 1]):
                    by_set[names[s]] = mass[p] * sets.set_weights[s] / sets.weights[p]
            best = max(by_set.values())
            near = sorted(
                (x for x, value in by_set.items() if value > 0 and value >= best / 20 * (1 - 1e-9)),
                key=lambda x: (-round(float(np.log(by_set[x] / best)), 6), len(x), x),
            )
            assert list(found.sets[row]) == near[:20]
            assert found.more[row] == max(len(near) - 20, 0)
            assert set(found.certain[row]) == (set.intersection(*map(set, near)) if near else set())
            alone = rank_sets({x: by_set[x] for x in sorted(by_set, key=lambda x: (len(x), x))})
            assert alone == (found.certain[row], found.sets[row], found.more[row])
        assert max(found.more) > 0 or len(prior) == 2
    assert rank_sets({(1,): 2.0, (0,): 2.0}, unlisted=3) == ((), ((1,), (0,)), 3)


def test_some_patterns_keep_their_sets_and_share_the_prior():
    code = Code([[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]])
    sets = gather_attacker_sets(code, np.array([0.2, 0.5, 0.3]))

    def listed(found, p):
        here = slice(found.starts[p], found.starts[p + 1])
        return found.users[here].tolist(), (found.set_weights[here] / found.weights[p]).tolist()

    rows = np.array([3, 1, 2])
    some = sets.take(rows)
    for place, row in enumerate(rows.tolist()):
        assert listed(some, place) == listed(sets, row)
        assert (some.words[place] == sets.words[row]).all()
        assert some.best_sets[place] == sets.best_sets[row]
        assert some.weights[place] / some.weights[0] == pytest.approx(sets.weights[row] / sets.weights[3])
    assert some.weights.sum() == pytest.approx(sets.weights.sum())


def test_other_labels_overrule_where_they_are_verdicts():
    found = PluralityDecoder(n_classes=2).decode([[0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 0]])
    taken = found.overruled(np.array([0, -1, 1, 0]))
    assert taken.labels.tolist() == [0, 0, 1, 0]
    assert taken.label_probability[[0, 3]].tolist() == [[1.0, 0.0]] * 2
    assert (taken.label_probability[[1, 2]] == found.label_probability[[1, 2]]).all()


def test_verdicts_are_joined_and_taken():
    found = PluralityDecoder(n_classes=2).decode([[0, 1, 1], [0, 0, 0], [1, 1, 1]])
    joined = Decoded.concatenate([found, found.take([2, 0])])
    assert joined.labels.tolist() == [1, 0, 1, 1, 1]
    assert joined.alarms().tolist() == [True, False, False, False, True]
    assert found.take(np.array([True, False, True])).labels.tolist() == [1, 1]
    assert not found.alarms(1.0).any()
    assert len(found.take(np.zeros(3, dtype=bool))) == 0
    assert len(found.take(np.zeros(3, dtype=bool)).take([])) == 0
    with pytest.raises(InputError, match="no verdicts"):
        Decoded.concatenate([])


def test_curves_thresholds_and_tracking_count_by_definition():
    clean, triggered = [0.1, 0.2, 0.2, 0.6], [0.2, 0.6, 0.9]
    curve = roc_curve(clean, triggered)
    assert curve.thresholds.tolist() == [0.9, 0.6, 0.2, 0.1, -np.inf]
    assert curve.fpr == pytest.approx([np.mean(np.array(clean) > t) for t in curve.thresholds])
    assert curve.tpr == pytest.approx([np.mean(np.array(triggered) > t) for t in curve.thresholds])
    assert curve.auc == pytest.approx(np.mean([(t > c) + (t == c) / 2 for t in triggered for c in clean]))
    for rate, threshold in ((0, 0.6), (0.24, 0.6), (0.25, 0.2), (0.75, 0.1), (1, -np.inf)):
        assert alarm_threshold(clean, rate) == curve.threshold_for(rate) == threshold
    for rate in (-0.1, 1.1):
        with pytest.raises(InputError, match=r"0\.\.1"):
            curve.threshold_for(rate)
    for wrong in ([], [0.1, np.nan], [[0.1]]):
        with pytest.raises(InputError, match="of clean"):
            roc_curve(wrong, triggered)
        with pytest.raises(InputError, match="of triggered"):
            roc_curve(clean, wrong)
    counts = tracking_score([(0, 1, 2), (), (3,)], [(0, 2), (1,), (2,)])
    assert [count.tolist() for count in counts] == [[2, 0, 0], [1, 0, 1]]
    assert [count.tolist() for count in tracking_score([(0, 1), (2,)], np.array([1, 2]))] == [[1, 1], [1, 0]]
    with pytest.raises(InputError, match="1 attacker sets for 2 inputs"):
        tracking_score([(0,), (1,)], [(0,)])
