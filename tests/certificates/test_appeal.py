"""A vote with an appeal against slow twins: its verdicts, and every attack on small codes tried out."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.certificates import certify
from codeward.codes import Code
from codeward.decoding import AppealDecoder

N_CLASSES = 3
CODE = Code([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]])
SETTINGS = list(product((1, 2, 3, 4), (0, 1, 2)))


def decide_slowly(votes, n_first, most):
    """The winner of the first models where it has more than ``most`` votes, else that of the others."""

    def winner(some):
        return max(range(N_CLASSES), key=lambda label: (some.count(label), -label))

    first = winner(votes[:n_first])
    return first if votes[:n_first].count(first) > most else winner(votes[n_first:])


def outcomes(votes, hit, n_first, most):
    """Every label that hit models can make of the verdict, saying anything."""
    choices = [range(N_CLASSES) if bad else (vote,) for vote, bad in zip(votes, hit, strict=True)]
    return {decide_slowly(list(said), n_first, most) for said in product(*choices)}


def some_votes(n, seed=0):
    return np.random.default_rng(seed).integers(0, N_CLASSES, (n, CODE.n_models))


@pytest.mark.parametrize(("n_first", "most"), SETTINGS)
def test_verdicts_are_those_of_the_twin(n_first, most):
    votes = np.array(list(product(range(N_CLASSES), repeat=CODE.n_models)))
    decoder = AppealDecoder(CODE, n_first, most, N_CLASSES)
    wanted = [decide_slowly(row, n_first, most) for row in votes.tolist()]
    assert decoder.predict(votes).tolist() == wanted


@pytest.mark.parametrize(("n_first", "most"), SETTINGS)
def test_radii_targets_and_witnesses_are_those_of_trying_everything(n_first, most):
    decoder = AppealDecoder(CODE, n_first, most, N_CLASSES)
    votes = some_votes(8, seed=10 * n_first + most)
    found = certify(votes, CODE, decoder=decoder, targets=True)
    sets = [x for size in range(1, CODE.n_users + 1) for x in combinations(range(CODE.n_users), size)]
    for row, said in enumerate(votes.tolist()):
        label = decide_slowly(said, n_first, most)
        reach = {x: outcomes(said, CODE.pattern(x), n_first, most) for x in sets}
        least = {t: min((len(x) for x in sets if t in reach[x]), default=CODE.n_users + 1) for t in range(N_CLASSES)}
        others = [least[t] for t in range(N_CLASSES) if t != label]
        assert found.labels[row] == label
        assert found.radius[row] == min(others) - 1
        assert found.exact[row]
        assert found.radius_to[row].tolist() == [
            -1 if t == label else max(least[t], min(others)) - 1 for t in range(N_CLASSES)
        ]
        witness = found.witness(row)
        if witness is not None:
            x = tuple(witness.attackers)
            assert len(x) == min(others)
            assert x == min(y for y in sets if len(y) == len(x) and reach[y] - {label})
            assert witness.target == min(reach[x] - {label})
        else:
            assert min(others) > CODE.n_users


def test_a_verdict_says_which_vote_decided_and_who_dissents():
    code = Code(np.eye(5, dtype=int))
    decoder = AppealDecoder(code, n_first=3, most=1, n_classes=3)
    found = decoder.decode([[0, 0, 2, 1, 1], [0, 1, 2, 2, 2], [1, 1, 1, 1, 1], [0, 1, 2, 2, 0]])
    assert found.labels.tolist() == [0, 2, 1, 0]
    np.testing.assert_allclose(found.label_probability[0], [2 / 3, 0, 1 / 3])
    np.testing.assert_allclose(found.label_probability[1], [0, 0, 1])
    assert found.attack_probability.tolist() == [1, 1, 0, 1]
    assert found.agreed.tolist() == [False, False, True, False]
    assert found.targets.tolist() == [-1] * 4
    assert found.suspects == [()] * 4
    assert len(decoder.decode(np.zeros((0, 5), dtype=int))) == 0
    alone = AppealDecoder(code, n_first=1, most=0, n_classes=3).decode([[2, 0, 0, 0, 0]])
    assert alone.label_probability.tolist() == [[0, 0, 1]]


@pytest.mark.parametrize(("n_first", "most", "n_classes"), [(0, 1, 3), (5, 1, 3), (1, -1, 3), (1, 0, 1)])
def test_what_makes_no_appeal_is_refused(n_first, most, n_classes):
    with pytest.raises(InputError, match="1 to 4 first models"):
        AppealDecoder(CODE, n_first, most, n_classes)
    AppealDecoder(CODE, 1, 0, 2)
    AppealDecoder(CODE, 4, 0, 2)


def test_many_patterns_and_inputs_in_small_blocks_are_the_same(monkeypatch):
    decoder, votes = AppealDecoder(CODE, 3, 1, N_CLASSES), some_votes(20, seed=3)
    whole = certify(votes, CODE, decoder=decoder)
    monkeypatch.setattr("codeward.certificates._breakers.BLOCK_CELLS", 40)
    parts = certify(votes, CODE, decoder=decoder)
    np.testing.assert_array_equal(whole.radius, parts.radius)
    np.testing.assert_array_equal(whole.attackers, parts.attackers)
    assert Counter(whole.radius.tolist())[0] > 0
