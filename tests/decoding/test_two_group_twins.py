"""The decoder for two groups against its formula written out, on all votes of small codes.

Small enough to run without the compiler: these are tests that ``python -m benchmarks.mutate`` asks to notice.
"""

from itertools import product

import numpy as np
import pytest
from tests.decoding.small_codes import (
    RING,
    TWINS,
    check_nearly_best,
    draw_confusion,
    every_vote,
    first_of,
    hit,
    list_sets,
    log,
    log_hit,
    total,
)

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import TwoGroupDecoder, _two_groups
from codeward.decoding._posterior_kernels import sum_pairs


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
