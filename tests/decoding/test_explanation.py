"""The most probable explanation against the paper's formula, term by term."""

from itertools import combinations, product
from math import comb, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeward._errors import InputError, TooLargeError
from codeward.codes import Code, named_code
from codeward.decoding import BayesDecoder, name_attackers


def explain_slowly(code, confusion, votes, success, prior):
    """Go through all (x, t, l) with x not empty; the best log p and every x that has it (up to rounding)."""
    n_models, n_users = code.matrix.shape
    n_classes = confusion.shape[1]
    found = {}
    for size in range(1, len(prior)):
        for chosen in combinations(range(n_users), size):
            if prior[size] == 0:
                continue
            hit = code.matrix[:, list(chosen)].any(axis=1)
            best = -np.inf
            for target, label in product(range(n_classes), repeat=2):
                total = log(prior[size] / comb(n_users, size))
                for i in range(n_models):
                    clean = confusion[i, label, votes[i]]
                    total += log(success * (votes[i] == target) + (1 - success) * clean if hit[i] else clean)
                best = max(best, total)
            found[chosen] = best
    top = max(found.values())
    return [chosen for chosen, value in found.items() if value >= top - 1e-9]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.6, 0.9, 0.99]), st.sampled_from([(0.5, 0.5), (0.2, 0.3, 0.5)]))
def test_the_best_explanation_is_that_of_the_printed_formula(seed, success, prior):
    rng = np.random.default_rng(seed)
    matrix = rng.random((4, 5)) < 0.5
    matrix[rng.integers(0, 4, 5), np.arange(5)] = True
    matrix[np.arange(4), rng.integers(0, 5, 4)] = True
    code, confusion = Code(matrix), rng.dirichlet(np.ones(3), (4, 3))
    votes = rng.integers(0, 3, (6, 4))
    named = name_attackers(BayesDecoder(code, confusion, success_rate=success, attackers_prior=prior), votes)
    for row, chosen in zip(votes, named, strict=True):
        ties = explain_slowly(code, confusion, row, success, prior)
        # Fewest users, then lowest indices: the order in which they were listed.
        assert chosen == ties[0]


def test_where_all_models_agree_one_user_is_named_while_the_decoder_says_nobody():
    code = named_code("g")
    confusion = np.full((code.n_models, 10, 10), 0.01) + 0.9 * np.eye(10)
    decoder = BayesDecoder(code, confusion)
    votes = np.full((1, code.n_models), 4)
    assert name_attackers(decoder, votes) == [(0,)]
    assert decoder.decode(votes).best_set[0] == ()
    # Told that somebody attacks, the sum over labels speaks for two who reach every model.
    told = BayesDecoder(code, confusion, attackers_prior=(0, 1 / 3, 1 / 3, 1 / 3)).decode(votes)
    assert len(told.best_set[0]) == 2


def test_a_certain_attack_and_one_that_never_works_are_limits_without_warnings():
    code = named_code("d")
    confusion = np.full((code.n_models, 10, 10), 0.01) + 0.9 * np.eye(10)
    votes = np.where(code.matrix[:, 3], 7, 2)[None]
    assert name_attackers(BayesDecoder(code, confusion, success_rate=1.0), votes)[0] == (
        min(user for user in range(12) if (code.matrix[:, user] == code.matrix[:, 3]).all()),
    )
    assert len(name_attackers(BayesDecoder(code, confusion, success_rate=0.0), votes)[0]) == 1


def test_no_inputs_name_nobody_and_impossible_questions_are_refused():
    code = named_code("d")
    confusion = np.full((code.n_models, 10, 10), 0.1)
    assert name_attackers(BayesDecoder(code, confusion), np.zeros((0, code.n_models), dtype=int)) == []
    with pytest.raises(InputError, match="nobody can be named"):
        name_attackers(BayesDecoder(code, confusion, attackers_prior=(1.0,)), np.zeros((1, code.n_models), dtype=int))
    with pytest.raises(TooLargeError, match="too many attacker sets"):
        name_attackers(BayesDecoder(code, confusion, method="pruned"), np.zeros((1, code.n_models), dtype=int))
