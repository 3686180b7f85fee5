"""Every decoder against its formula written out, on all votes of codes of a few users and models.

Small enough to run without the compiler: these are the tests that ``python -m benchmarks.mutate`` asks to notice.
"""

import warnings
from itertools import combinations, pairwise, product
from math import comb

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import (
    NO_VERDICT,
    BayesDecoder,
    ConsensusDecoder,
    Decoded,
    PluralityDecoder,
    TwoGroupDecoder,
    VerdictMemory,
    _bayes,
    _two_groups,
    alarm_threshold,
    distinct_rows,
    roc_curve,
    tracking_score,
)
from codeward.decoding._attacker_sets import gather_attacker_sets, list_subsets
from codeward.decoding._decoded import first_best
from codeward.decoding._pair_kernels import sum_pairs
from codeward.decoding._posterior_kernels import (
    bit_count,
    tabulate_groups,
    tabulate_joint,
    tabulate_subsets,
)

TWINS = Code([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1], [1, 1, 0, 1]])  # users 0 and 1 reach the same models
RING = Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]])  # any two users reach everything
LINE = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]])


def every_vote(n_models, n_classes):
    return np.array(list(product(range(n_classes), repeat=n_models)))


def draw_confusion(code, n_classes, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(n_classes), (code.n_models, n_classes))


def list_sets(code, prior):
    sizes = [size for size in range(len(prior)) if size <= code.n_users and prior[size] > 0]
    return {x: prior[len(x)] / comb(code.n_users, len(x)) for k in sizes for x in combinations(range(code.n_users), k)}


def hit(x, code):
    return code.matrix[:, list(x)].any(axis=1)


def log(value):
    return np.log(value) if value > 0 else -np.inf


def log_hit(clean, says, rate):
    """Log of S [says] + (1 - S) C, S = 1 as the limit from below."""
    failed = np.log1p(-rate) if rate < 1 else -1e6
    return np.logaddexp(log(rate) if says else -np.inf, failed + clean)


def likelihood(code, base, votes, x, target, success):
    """Log of Pr(y | x, t, l) of every label, shape (c,); ``base`` of shape (m, c)."""
    reached = hit(x, code)
    return sum(
        np.array([log_hit(clean, vote == target, success) for clean in base[i]]) if reached[i] else base[i]
        for i, vote in enumerate(votes)
    )


def total(values, axis=None):
    return np.logaddexp.reduce(np.asarray(values), axis=axis)


def first_of(values):
    """Key of the largest value, the first listed on a tie."""
    best = max(values.values())
    return next(key for key, value in values.items() if value >= best - 1e-9)


def check_nearly_best(found, u, by_set):
    """Compare what is shown of the explanations of an input with all of a twentieth of the best posterior."""
    best = max(by_set.values())
    near = {x: value for x, value in by_set.items() if value >= best - np.log(20) - 1e-9}
    shown = found.suspect_sets[u]
    assert len(shown) == len(set(shown)) == min(len(near), 20)
    assert found.more_sets[u] == len(near) - len(shown)
    assert set(shown) <= set(near)
    values = [near[x] for x in shown]
    assert all(after <= before + 1e-8 for before, after in pairwise(values))
    assert all(near[x] <= values[-1] + 1e-8 for x in set(near) - set(shown))
    assert set(found.suspects[u]) == set.intersection(*map(set, near))


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
    for n_models, n_inputs in ((9, 3), (64, 1), (66, 3)):
        matrix = rng.random((n_models, 3)) < 0.5
        matrix[np.arange(n_models), np.arange(n_models) % 3] = True
        code = Code(matrix)
        votes = (rng.random((n_inputs, n_models)) < 0.2).astype(int)
        votes[0] = 1
        votes[2:], votes[2:, [5, 8, n_models * 2 // 3, n_models - 1]] = 0, 2  # few voters, wherever they are
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


def check_groups(decoder, votes):
    """Compare everything that is said of votes with sums over (x, t, x', t', l)."""
    code, n_classes, prior = decoder.code, decoder.n_classes, decoder.attackers_prior
    weights = list_sets(code, prior)
    reached = {x: hit(x, code) for x in weights}
    bases = decoder.single_.vote_model_.log_likelihood(votes)
    found = decoder.decode(votes)
    for u, (word, base) in enumerate(zip(votes, bases, strict=True)):

        def spoken(rate, target, base=base, word=word):
            """Log of h of every model and label, shape (m, c)."""
            return np.array([[log_hit(c, v == target, rate) for c in row] for v, row in zip(word, base, strict=True)])

        firsts = [spoken(decoder.success_rate, t) for t in range(n_classes)]
        seconds = [spoken(decoder.second_success_rate, t) for t in range(n_classes)]
        joint = {}
        for (x, weight), t in product(weights.items(), range(n_classes)):
            mine = np.where(reached[x][:, None], firsts[t], base)
            joint[(x,), t] = log(1 - decoder.second_rate) + log(weight) + mine.sum(axis=0)
            for y in weights:
                if not y:
                    continue
                other = weights[y] / sum(value for z, value in weights.items() if z)
                share = log(decoder.second_rate) - log(n_classes - 1) + log(weight) + log(other)
                free = (reached[y] & ~reached[x])[:, None]
                parts = [np.where(free, seconds[s], mine).sum(axis=0) for s in range(n_classes) if s != t]
                joint[(x, y), t] = share + total(parts, axis=0)
        whole = total(list(joint.values()))
        hits = total(list(joint.values()), axis=0) + log(decoder.attack_rate)
        label = np.logaddexp(hits, base.sum(axis=0) + log(n_classes) + log(1 - decoder.attack_rate))
        np.testing.assert_allclose(found.label_probability[u], np.exp(label - total(label)), rtol=1e-9, atol=1e-15)
        attack = np.exp(total(hits) - total(label))
        np.testing.assert_allclose(found.attack_probability[u], attack, rtol=1e-9, atol=1e-15)
        assert found.labels[u] == first_of(dict(enumerate(label)))
        by_target = {s: total([value for (_, t), value in joint.items() if t == s]) for s in range(n_classes)}
        assert found.targets[u] == first_of(by_target)
        groups = sorted({who for who, _ in joint}, key=lambda who: (len(who), [list(weights).index(x) for x in who]))
        by_group = {who: total([total(joint[who, t]) for t in range(n_classes)]) for who in groups}
        assert found.best_set[u] == tuple(sorted({j for x in first_of(by_group) for j in x}))
        by_users = {}
        for who in groups:
            users = tuple(sorted({j for x in who for j in x}))
            by_users[users] = max(by_users.get(users, -np.inf), by_group[who])
        check_nearly_best(found, u, by_users)
        users = [
            sum(np.exp(by_group[who] - whole) for who in groups if any(j in x for x in who))
            for j in range(code.n_users)
        ]
        np.testing.assert_allclose(found.user_probability[u], users, rtol=1e-9, atol=1e-15)
    assert (decoder.predict(votes) == found.labels).all()
    assert found.neglected.tolist() == [0.0] * len(votes)


@pytest.mark.parametrize("way", [600.0, 0.0])
@pytest.mark.parametrize(
    ("code", "n_classes", "prior", "rates"),
    [
        (RING, 3, (0.25, 0.5, 0.25), (0.5, 0.9, 0.3, 0.8)),
        (TWINS, 2, (0.0, 1.0), (0.2, 0.6, 0.7, 0.9)),
        (RING, 4, (0.5, 0.5), (0.9, 0.3, 0.5, 0.4)),
        (RING, 2, (0.5, 0.5), (1.0, 0.9, 1.0, 1.0)),
        (RING, 2, (0.5, 0.5), (0.0, 1.0, 0.0, 0.5)),
    ],
)
def test_two_groups_are_their_formula(monkeypatch, way, code, n_classes, prior, rates):
    monkeypatch.setattr(_two_groups, "_RANGE", way)
    rate, success, second, second_success = rates
    confusion = draw_confusion(code, n_classes, seed=3)
    decoder = TwoGroupDecoder(code, confusion, rate, success, prior, second, second_success)
    votes = every_vote(code.n_models, n_classes)
    called = []
    monkeypatch.setattr(_two_groups, "sum_pairs", lambda *given: (called.append(1), sum_pairs(*given)))
    check_groups(decoder, votes[:: max(1, len(votes) // 12)])
    assert bool(called) == (way > 0 and max(success, second_success) < 1)


def test_two_groups_are_their_formula_where_products_do_not_fit_into_a_float():
    matrix = np.ones((40, 3), dtype=bool)
    matrix[:5, 1] = matrix[3:, 2] = False
    confusion = np.tile([0.6, 0.4, 0.0], (40, 3, 1))  # nobody says 2 by mistake, and everybody does
    decoder = TwoGroupDecoder(Code(matrix), confusion, attackers_prior=(0.5, 0.5), second_rate=0.5)
    check_groups(decoder, np.full((1, 40), 2))
    # And where nothing explains the votes.
    code = Code(np.eye(4, dtype=int).repeat(10, axis=0))
    decoder = TwoGroupDecoder(code, confusion, attackers_prior=(0.5, 0.5), second_rate=0.5)
    check_groups(decoder, np.array([[1] * 10 + [2] * 30]))


def test_two_groups_are_their_formula_with_more_models_than_a_table_or_a_word_has_bits():
    rng = np.random.default_rng(4)
    for n_models in (9, 66):
        matrix = rng.random((n_models, 3)) < 0.5
        matrix[np.arange(n_models), np.arange(n_models) % 3] = True
        votes = np.where(matrix[:, 0], 1, np.where(matrix[:, 1], 2, 0))[None]
        code = Code(matrix)
        confusion = 0.7 * np.eye(3)[None] + 0.3 * draw_confusion(code, 3)
        check_groups(TwoGroupDecoder(code, confusion, 0.5, 0.8, (0.5, 0.5), 0.4, 0.6), votes)


def test_two_groups_are_taken_up_to_the_limits(monkeypatch):
    confusion = draw_confusion(RING, 2)
    votes = [[0, 1, 1]]
    monkeypatch.setattr(_two_groups, "EXACT_SETS", 4)
    monkeypatch.setattr(_two_groups, "MOST_PAIRS", 12)
    assert len(TwoGroupDecoder(RING, confusion, attackers_prior=(0.5, 0.5)).decode(votes)) == 1
    monkeypatch.setattr(_two_groups, "MOST_PAIRS", 11)
    with pytest.raises(InputError, match="12 pairs"):
        TwoGroupDecoder(RING, confusion, attackers_prior=(0.5, 0.5)).decode(votes)
    monkeypatch.setattr(_two_groups, "EXACT_SETS", 3)
    with pytest.raises(InputError, match="4 attacker sets"):
        TwoGroupDecoder(RING, confusion, attackers_prior=(0.5, 0.5)).decode(votes)
    np.testing.assert_array_equal(_two_groups.add_logs(np.full((2, 2), -np.inf), 1), [-np.inf, -np.inf])


@pytest.mark.parametrize(("n_attackers", "n_errors"), [(0, 0), (1, 0), (1, 1), (2, 0), (0, 2)])
@pytest.mark.parametrize(("code", "n_classes"), [(RING, 3), (LINE, 2)])
def test_consensus_is_its_definition_on_all_votes(code, n_classes, n_attackers, n_errors):
    votes = every_vote(code.n_models, n_classes)
    decoder = ConsensusDecoder(code, n_attackers, n_errors, n_classes)
    sets = [x for size in range(n_attackers + 1) for x in combinations(range(code.n_users), size)]
    decoded = decoder.decode(votes)
    for row, word in enumerate(votes):
        found = {}
        for label, x in product(range(n_classes), sets):
            if ((word != label) & ~hit(x, code)).sum() <= n_errors:
                found.setdefault(label, x)
        single = len(found) == 1
        assert decoded.labels[row] == (next(iter(found)) if single else NO_VERDICT)
        suspects = next(iter(found.values())) if single else ()
        assert decoded.best_set[row] == suspects
        every = [x for x in sets if single and ((word != next(iter(found))) & ~hit(x, code)).sum() <= n_errors]
        minimal = [x for x in every if not any(set(y) < set(x) for y in every)]
        assert list(decoded.suspect_sets[row]) == minimal
        assert set(decoded.suspects[row]) == (set.intersection(*map(set, every)) if single else set())
        assert decoded.attack_probability[row] == float(not single or suspects != ())
        shares = [np.mean([j in x for x in minimal]) if single else 0.0 for j in range(code.n_users)]
        assert decoded.user_probability[row] == pytest.approx(shares)
        shared = found or range(n_classes)
        assert decoded.label_probability[row] == pytest.approx([(t in shared) / len(shared) for t in range(n_classes)])
    assert decoded.targets.tolist() == [-1] * len(votes)
    assert decoded.neglected.tolist() == [0.0] * len(votes)
    assert (decoder.predict(votes) == decoded.labels).all()
    # Without a number of classes there is one that nobody says, and no more.
    assert ConsensusDecoder(code, 1).decode([[0] * code.n_models]).label_probability.shape == (1, 2)
    assert ConsensusDecoder(LINE, 1).decode([[0, 2, 2, 2, 2]]).label_probability.tolist() == [[0.0, 0.0, 1.0, 0.0]]
    assert ConsensusDecoder(code, 1).decode(np.zeros((0, code.n_models), int)).label_probability.shape == (0, 2)


def test_consensus_names_the_dissenters_however_many_inputs_there_are():
    dissenters = [x for size in range(5) for x in combinations(range(20), size)]  # more than are taken at a time
    votes = np.zeros((len(dissenters), 20), dtype=int)
    for row, x in enumerate(dissenters):
        votes[row, list(x)] = 1
    decoded = ConsensusDecoder(Code(np.eye(20, dtype=int)), 4, n_classes=2).decode(votes)
    assert not decoded.labels.any()
    assert list(decoded.best_set) == dissenters


def test_consensus_and_plurality_refuse_what_they_cannot_count():
    for n_attackers, n_errors in ((0.5, 0), (-1, 0), (0, 0.5), (0, -1)):
        with pytest.raises(InputError, match="whole number"):
            ConsensusDecoder(RING, n_attackers, n_errors).predict([[0, 0, 0]])
    with pytest.raises(InputError, match="no models"):
        PluralityDecoder().predict(np.zeros((2, 0), dtype=int))
    with pytest.raises(InputError, match="3 models"):
        PluralityDecoder(RING).predict([[0, 0]])


@pytest.mark.parametrize(("code", "n_classes"), [(RING, None), (RING, 5), (None, None), (None, 3)])
def test_plurality_counts_votes(code, n_classes):
    votes = every_vote(3, 3)
    decoded = PluralityDecoder(code, n_classes).decode(votes)
    shares = [[word.tolist().count(t) / 3 for t in range(n_classes or 3)] for word in votes]
    assert decoded.label_probability.tolist() == shares
    assert decoded.labels.tolist() == [share.index(max(share)) for share in shares]
    assert decoded.attack_probability.tolist() == [float(max(share) < 1) for share in shares]
    assert decoded.targets.tolist() == [-1] * len(votes)
    assert list(decoded.best_set) == [()] * len(votes)
    assert decoded.user_probability.tolist() == [[0.0] * (3 if code else 0)] * len(votes)
    assert decoded.neglected.tolist() == [0.0] * len(votes)
    assert PluralityDecoder(code, n_classes).predict(votes).tolist() == decoded.labels.tolist()
    assert PluralityDecoder(code, n_classes).decode(np.zeros((0, 3), dtype=int)).labels.tolist() == []
    assert PluralityDecoder().decode(np.zeros((0, 3), dtype=int)).label_probability.shape == (0, 1)
    assert PluralityDecoder().decode([[1]]).label_probability.tolist() == [[0.0, 1.0]]


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
