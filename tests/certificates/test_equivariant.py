"""Proposition 45: what no equivariant decoder certifies, against the definition by brute force."""

from itertools import combinations, permutations, product

import numpy as np
import pytest
from benchmarks.equivariant import find_close, find_conflicts, list_symmetries

from codeward.certificates import certify
from codeward.codes import Code, named_code, partition_code

N_CLASSES = 3
TRIANGLE = Code([[1, 1, 0], [1, 0, 1], [0, 1, 1]])
#: A model for every two of four users.
PAIRS = Code([[int(user in pair) for user in range(4)] for pair in combinations(range(4), 2)])


def is_free(code, said, label, k, with_ties=False):
    """Tell whether some equivariant decoder certifies an input: no two votes that are reached ask for two labels."""
    reached = set()
    for attackers in combinations(range(code.n_users), k):
        hit = np.flatnonzero(code.pattern(attackers))
        for words in product(range(N_CLASSES), repeat=len(hit)):
            votes = np.array(said)
            votes[hit] = words
            reached.add(tuple(votes.tolist()))
    models = {tuple(row): model for model, row in enumerate(code.matrix.tolist())}
    for order in permutations(range(code.n_users)):
        moved = [models.get(tuple(row)) for row in code.matrix[:, list(order)].tolist()]
        if None in moved:
            continue
        for names in permutations(range(N_CLASSES)):
            if names[label] != label and (not with_ties or names[label] < label):
                renamed = {tuple(names[votes[model]] for model in moved) for votes in reached}
                if renamed & reached:  # the decoder would have to answer both labels
                    return False
    return True


@pytest.mark.parametrize("code", [partition_code(3, 3), partition_code(4, 4), TRIANGLE, PAIRS])
@pytest.mark.parametrize("k", [0, 1])
def test_conflicts_are_those_of_the_definition(code, k):
    every = np.array(list(product(range(N_CLASSES), repeat=code.n_models)))
    rng = np.random.default_rng(0)
    drawn = every[rng.choice(len(every), min(40, len(every)), replace=False)]
    chosen = np.concatenate([drawn, np.repeat(np.arange(N_CLASSES)[:, None], code.n_models, axis=1)])
    seen = set()
    for label in range(N_CLASSES):
        labels = np.full(len(chosen), label)
        strict, with_ties = find_conflicts(chosen, labels, code, k, N_CLASSES)
        wanted = [[not is_free(code, said, label, k, ties) for said in chosen.tolist()] for ties in (False, True)]
        np.testing.assert_array_equal(strict, wanted[0])
        np.testing.assert_array_equal(with_ties, wanted[1])
        seen |= set(strict.tolist())
        if code.n_models == code.n_users and (code.matrix.sum(axis=1) == 1).all():
            np.testing.assert_array_equal(find_close(chosen, labels, k, N_CLASSES), strict)
    assert seen == ({True} if code is TRIANGLE and k else {False, True})


def test_plurality_certifies_what_a_partition_allows_and_no_more():
    rng = np.random.default_rng(1)
    votes = rng.choice(4, (300, 9), p=[0.7, 0.1, 0.1, 0.1])
    code, labels = partition_code(9, 9), np.full(300, 3)
    votes = 3 - votes  # the largest class loses every tie, as an equivariant decoder does
    proved = certify(votes, code, n_classes=4)
    seen = set()
    for k in range(1, 5):
        right = (proved.labels == labels) & (proved.radius >= k)
        free = ~find_close(votes, labels, k, 4)
        assert not (right & ~free).any()
        wins = proved.labels == labels
        np.testing.assert_array_equal(right[wins], free[wins])
        seen |= set(right.tolist())
    assert seen == {False, True}


def test_of_the_papers_codes_only_agreed_inputs_are_left():
    rng = np.random.default_rng(2)
    for name, k, order in (("c", 2, 720), ("d", 1, 24)):
        code = named_code(name)
        assert len(list_symmetries(code)) == order
        votes = np.where(rng.random((200, code.n_models)) < 0.03, rng.integers(0, 10, (200, code.n_models)), 4)
        strict, _ = find_conflicts(votes, np.full(200, 4), code, k, 10)
        np.testing.assert_array_equal(~strict, (votes == 4).all(axis=1))
        assert 0 < strict.sum() < 200
