"""The Bayes decoder and its kernels against the formula written out, on all votes of small codes.

Small enough to run without the compiler: these are tests that ``python -m benchmarks.mutate`` asks to notice.
"""

import warnings
from itertools import combinations, product

import numpy as np
import pytest
from tests.decoding.small_codes import (
    LINE,
    RING,
    TWINS,
    check_nearly_best,
    draw_confusion,
    every_vote,
    first_of,
    hit,
    likelihood,
    list_sets,
    log,
    total,
)

from codeward._compiled import bit_count
from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import BayesDecoder, TwoGroupDecoder, _bayes, _two_groups
from codeward.decoding._attacker_sets import gather_attacker_sets, list_subsets
from codeward.decoding._posterior_kernels import tabulate_groups, tabulate_joint, tabulate_subsets


def check_bayes(decoder, votes):
    """Compare everything that is said of votes with sums over (x, t, l)."""
    code, n_classes, success, rate = decoder.code, decoder.n_classes, decoder.success_rate, decoder.attack_rate
    weights = list_sets(code, decoder.attackers_prior)
    bases = decoder.vote_model_.log_likelihood(votes)
    found, posterior, evidence = decoder.decode(votes), decoder.posterior(votes), decoder.log_likelihood(votes)
    rows = [tuple(row) for row in decoder.sets_.bits.tolist()]
    assert len(set(rows)) == len(rows) == len({tuple(hit(x, code).tolist()) for x in weights})
    for u, (word, base) in enumerate(zip(votes, bases, strict=True)):
        joint = {
            (x, t): log(weight) + likelihood(code, base, word, x, t, success)
            for x, weight in weights.items()
            for t in range(n_classes)
        }
        whole = total([total(value) for value in joint.values()])
        clean = base.sum(axis=0) + log(n_classes) + log(1 - rate)
        attacked = total(list(joint.values()), axis=0) + log(rate)
        label = np.logaddexp(attacked, clean)
        np.testing.assert_allclose(found.label_probability[u], np.exp(label - total(label)), rtol=1e-9, atol=1e-15)
        attack = np.exp(total(attacked) - total(label))
        np.testing.assert_allclose(found.attack_probability[u], attack, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(decoder.clean_log_likelihood(votes)[u], total(base.sum(axis=0)) - log(n_classes))
        assert found.labels[u] == first_of(dict(enumerate(label)))
        by_target = {t: total([total(joint[x, t]) for x in weights]) for t in range(n_classes)}
        assert found.targets[u] == first_of(by_target)
        by_set = {x: total([total(joint[x, t]) for t in range(n_classes)]) for x in weights}
        assert found.best_set[u] == first_of(by_set)
        check_nearly_best(found, u, by_set)
        users = [sum(np.exp(by_set[x] - whole) for x in weights if j in x) for j in range(code.n_users)]
        np.testing.assert_allclose(found.user_probability[u], users, rtol=1e-9, atol=1e-15)
        for p, t in product(range(len(rows)), range(n_classes)):
            same = [x for x in weights if tuple(hit(x, code).tolist()) == rows[p]]
            wanted = total([total(joint[x, t]) for x in same]) - whole
            np.testing.assert_allclose(posterior[u, p, t], wanted, rtol=1e-9, atol=1e-9)
            wanted = total(likelihood(code, base, word, same[0], t, success)) - log(n_classes)
            np.testing.assert_allclose(evidence[u, p, t], wanted, rtol=1e-9, atol=1e-9)
    assert (decoder.predict(votes) == found.labels).all()
    assert found.alarms(-1.0).tolist() == [len(set(word)) > 1 for word in votes.tolist()]
    assert found.neglected.tolist() == [0.0] * len(votes)


@pytest.mark.parametrize(
    ("code", "n_classes", "rates", "prior"),
    [
        (TWINS, 2, (0.5, 0.99), (0.25, 0.25, 0.25, 0.25)),
        (RING, 3, (0.1, 0.6), (0.0, 0.7, 0.3)),
        (LINE, 2, (0.9, 1.0), (0.2, 0.8)),
        (RING, 2, (1.0, 0.0), (0.1, 0.2, 0.3, 0.2, 0.2)),
        (RING, 2, (0.0, 0.5), (0.5, 0.0, 0.5)),
    ],
)
def test_bayes_is_its_formula_on_all_votes(code, n_classes, rates, prior):
    decoder = BayesDecoder(code, draw_confusion(code, n_classes), *rates, prior)
    check_bayes(decoder, every_vote(code.n_models, n_classes)[:32])


def test_bayes_is_its_formula_with_many_voters_and_more_models_than_a_word_has_bits():
    rng = np.random.default_rng(1)
    for n_models, n_inputs in ((9, 4), (64, 1), (66, 3)):
        matrix = rng.random((n_models, 3)) < 0.5
        matrix[np.arange(n_models), np.arange(n_models) % 3] = True
        matrix[1], matrix[-1] = [1, 0, 0], [0, 1, 1]  # the last of 66 has the bit of the second, in another word
        code = Code(matrix)
        votes = (rng.random((n_inputs, n_models)) < 0.2).astype(int)
        votes[0] = 1
        votes[2:], votes[2:, [5, 8, n_models * 2 // 3, n_models - 1]] = 0, 2  # few voters, wherever they are
        votes[3:, 1:] = 2  # eight, as many as share a table
        confusion = 0.8 * np.eye(3)[None] + 0.2 * draw_confusion(code, 3)
        check_bayes(BayesDecoder(code, confusion, attackers_prior=(0.2, 0.5, 0.3), success_rate=0.7), votes)


class Told:
    """A clean-vote model that says what it was told, however unlikely."""

    n_models, n_classes = 3, 2

    def __init__(self, values):
        self.values = np.array(values)

    def log_likelihood(self, votes):
        return np.broadcast_to(self.values[: self.n_models], (*votes.shape, 2)).copy()


@pytest.mark.parametrize("success", [0.4, 1.0])
def test_votes_of_next_to_no_probability_keep_their_ratios(success):
    model = Told([[-800.0, -700.5], [-750.0, -900.0], [-1.0, -720.0]])
    check_bayes(BayesDecoder(RING, model, success_rate=success, attackers_prior=(0.4, 0.6)), every_vote(3, 2))


def test_attacker_sets_are_gathered_by_what_they_hit():
    prior = np.array([0.1, 0.2, 0.3, 0.4])
    for code in (TWINS, RING, LINE):
        weights, found = list_sets(code, prior), gather_attacker_sets(code, prior)
        rows = {}
        for x, weight in weights.items():
            rows.setdefault(tuple(hit(x, code).tolist()), []).append((x, weight))
        order = sorted(rows.values(), key=lambda sets: list(weights).index(max(sets, key=lambda pair: pair[1])[0]))
        assert found.best_sets == tuple(max(sets, key=lambda pair: pair[1])[0] for sets in order)
        np.testing.assert_allclose(found.best_weights, [max(weight for _, weight in sets) for sets in order])
        np.testing.assert_allclose(found.weights, [sum(weight for _, weight in sets) for sets in order])
        assert found.hits.tolist() == [int(hit(sets[0][0], code).sum()) for sets in order]
        assert (found.bits == [hit(sets[0][0], code) for sets in order]).all()
        for row, sets in enumerate(order):
            share = [sum(w for x, w in sets if j in x) / sum(w for _, w in sets) for j in range(code.n_users)]
            np.testing.assert_allclose(found.members.toarray()[row], share)
    assert list_subsets(5, 3).tolist() == [list(x) for x in combinations(range(5), 3)]
    assert list_subsets(3, 0).shape == (1, 0)
    with pytest.raises(InputError, match="no attacker set"):
        gather_attacker_sets(RING, np.array([0, 0, 0, 0, 1.0]))


@pytest.mark.parametrize("n_models", [5, 70])
def test_the_joint_of_every_pattern_and_target_is_its_formula(n_models):
    # The seventy models repeat the five, and say 2 against all odds.
    code, success = Code(np.tile(LINE.matrix, (n_models // 5, 1))), 0.8
    confusion = draw_confusion(code, 3)
    if n_models == 70:
        confusion[:, :, :2], confusion[:, :, 2] = np.random.default_rng(7).dirichlet(np.ones(2), (70, 3)), 0
    decoder = BayesDecoder(code, confusion, success_rate=success, attackers_prior=(0.3, 0.3, 0.4))
    votes = np.array([[0, 1, 2, 2, 1] * (n_models // 5), [1] * n_models])
    base, words, sets = decoder.vote_model_.log_likelihood(votes), decoder.sets_.words, decoder.sets_.best_sets
    joint = np.empty((2, len(sets), 3))
    tabulate_joint(votes, base, words, success, decoder.failure_, joint)
    for u, p, t in product(range(2), range(len(sets)), range(3)):
        each = likelihood(code, base[u], votes[u], sets[p], t, success)
        np.testing.assert_allclose(joint[u, p, t], total(each), rtol=1e-9)


def test_bits_are_counted():
    for value in (0, 1, 2, 3, 0b1011_0111, 2**40 + 5, 2**63 - 1):
        assert bit_count(value) == value.bit_count()


def test_tables_hold_the_sums_of_subsets():
    rng = np.random.default_rng(6)
    gains, votes, models = rng.random((11, 2)), rng.integers(0, 2, 11), np.array([1, 3, 4, 7, 10])
    table = np.full((8, 2), np.nan)
    tabulate_subsets(gains, models, 1, 4, table)
    for mask in range(8):
        chosen = [models[1 + k] for k in range(3) if mask >> k & 1]
        np.testing.assert_allclose(table[mask], gains[chosen].sum(axis=0))
    tables = np.full((2, 256, 2), np.nan)
    tabulate_groups(gains, votes, 1, tables)
    for group, mask in product(range(2), range(256)):
        chosen = [8 * group + k for k in range(8) if mask >> k & 1]
        chosen = [i for i in chosen if i < 11 and votes[i] == 1]
        np.testing.assert_allclose(tables[group, mask], gains[chosen].sum(axis=0))


def test_how_many_sets_are_enumerated_and_in_how_many_chunks(monkeypatch):
    confusion = draw_confusion(TWINS, 2)
    votes = every_vote(4, 2)
    decoder = BayesDecoder(TWINS, confusion, attackers_prior=(0.5, 0.5))
    whole = decoder.decode(votes)
    monkeypatch.setattr(_bayes, "EXACT_SETS", 5)  # the empty set and four users
    assert decoder.is_exact
    monkeypatch.setattr(_bayes, "EXACT_SETS", 4)
    assert not decoder.is_exact
    assert BayesDecoder(TWINS, confusion, method="exact").is_exact
    pruned = BayesDecoder(TWINS, confusion, attackers_prior=(0.5, 0.5), method="pruned")
    assert not pruned.is_exact
    np.testing.assert_allclose(pruned.decode(votes[:2]).attack_probability, whole.attack_probability[:2], atol=1e-6)
    assert (pruned.predict(votes[:2]) == whole.labels[:2]).all()
    assert "sets_" not in vars(pruned)
    monkeypatch.setattr(_bayes, "EXACT_SETS", 5)
    # 4 models x 2 classes, and 4 patterns: nobody, users 0 or 1, user 2, user 3.
    monkeypatch.setattr(_bayes, "CHUNK", 5 * 12 + 11)
    assert [len(chunk) for chunk in decoder._chunks(votes)] == [5, 5, 5, 1]
    monkeypatch.setattr(_bayes, "CHUNK", 1)
    assert [len(chunk) for chunk in decoder._chunks(votes)] == [1] * 16
    again = decoder.decode(votes)
    for name in ("labels", "attack_probability", "targets", "user_probability", "label_probability"):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
    assert (decoder.predict(votes) == whole.labels).all()
    nothing = decoder.decode(np.zeros((0, 4), dtype=int))
    assert len(nothing) == 0
    assert nothing.user_probability.shape == (0, 4)
    assert decoder.predict(np.zeros((0, 4), dtype=int)).tolist() == []


def test_a_certain_attacker_is_not_more_than_certain():
    code = Code(np.eye(6, dtype=int).repeat(2, axis=0))
    confusion = np.full((12, 2, 2), 1e-12) + np.eye(2) * (1 - 2e-12)
    # Rounding takes the sum over patterns above 1.
    decoder = BayesDecoder(code, confusion, success_rate=0.25, attackers_prior=(0.2,) * 5)
    votes = np.array([[1, 1] + [0] * 10])
    assert 1 - 1e-9 < decoder.decode(votes).user_probability.max() <= 1
    assert (decoder._sum(votes, True).patterns >= 0).all()
    code = Code(np.eye(4, dtype=int).repeat(2, axis=0))
    for success, second in ((0.1, 0.1), (0.2, 0.0), (0.2, 0.3), (0.3, 0.3), (0.8, 0.1)):
        groups = TwoGroupDecoder(code, confusion[:8], 0.5, success, (0.4, 0.3, 0.3), second, 0.5)
        assert 1 - 1e-9 < groups.decode(votes[:, :8]).user_probability.max() <= 1


def test_rates_of_zero_and_one_have_logarithms_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _bayes.log_failure(0.0) == 0.0
        assert _bayes.log_failure(0.75) == pytest.approx(np.log(0.25))
        assert _bayes.log_failure(1.0) == -1e6
        assert _two_groups.log_rate(0.0) == -np.inf
        assert _two_groups.log_rate(1.0) == 0.0
