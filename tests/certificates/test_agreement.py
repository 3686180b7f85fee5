"""What a decoder keeps of a code's promise, against every attack written out."""

from itertools import combinations, product

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.certificates import certify_agreement, is_agreement_affordable
from codeward.codes import Code, inspect, named_code
from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder


def confusion_of(accuracy, m, c):
    matrix = np.full((c, c), (1 - accuracy) / (c - 1))
    np.fill_diagonal(matrix, accuracy)
    return np.repeat(matrix[None], m, axis=0)


def write_out(code, decoder, c, size):
    """Every attack by ``size`` users that is not undone, as (users, label, target)."""
    attacks = list(product(combinations(range(code.n_users), size), range(c), range(c)))
    votes = [np.where(code.matrix[:, users].any(axis=1), target, label) for users, label, target in attacks]
    right = decoder.decode(votes).labels
    return [attack for attack, said in zip(attacks, right, strict=True) if said != attack[1]]


@pytest.mark.parametrize(("name", "accuracy"), [("c", 0.6), ("c", 0.99), ("d", 0.8), ("d", 0.999), ("b", 0.9)])
@pytest.mark.parametrize("rate", [0.001, 0.5, 0.99])
def test_the_most_attackers_that_are_undone_and_one_attack_that_is_not(name, accuracy, rate):
    code, c = named_code(name), 3
    decoder = BayesDecoder(code, confusion_of(accuracy, code.n_models, c), attack_rate=rate)
    found = certify_agreement(code, decoder, c, max_attackers=3)
    assert found.searched == 3
    for size in range(1, found.n_attackers + 1):
        assert not write_out(code, decoder, c, size)
    if found.n_attackers == 3:
        assert found.witness is None
        assert found.label is None
    else:
        broken = write_out(code, decoder, c, found.n_attackers + 1)
        assert (found.witness.attackers, found.label, found.witness.target) in broken


def test_the_papers_decoder_keeps_less_than_the_code_promises_even_when_no_model_errs():
    """Figures of docs/certificates.md."""
    kept = {}
    for name, rate in (("c", 0.5), ("d", 0.5), ("d", 0.9)):
        code = named_code(name)
        decoder = BayesDecoder(code, confusion_of(0.9, code.n_models, 10), attack_rate=rate)
        kept[name, rate] = certify_agreement(code, decoder, 10, max_attackers=3).n_attackers
    assert inspect(named_code("d")).correct == 2
    assert kept == {("c", 0.5): 3, ("d", 0.5): 1, ("d", 0.9): 2}


def test_the_consensus_decoder_keeps_what_it_is_made_for():
    code = named_code("c")
    k = inspect(code).correct_arbitrary
    found = certify_agreement(code, ConsensusDecoder(code, k), 4, threat="arbitrary", max_attackers=k)
    assert found.n_attackers == k >= 1


def test_a_vote_is_lost_where_attackers_reach_half_of_the_models():
    code = Code(np.eye(7, dtype=int))
    assert certify_agreement(code, PluralityDecoder(), 2).n_attackers == 3


class Stubborn:
    """Says 1 of everything."""

    def predict(self, votes):
        return np.ones(len(votes), dtype=np.int64)


def test_a_decoder_that_is_wrong_without_an_attack_keeps_nothing():
    found = certify_agreement(named_code("d"), Stubborn(), 3)
    assert (found.n_attackers, found.label, found.witness) == (0, 0, None)


def test_one_class_is_refused_and_many_users_are_not_affordable():
    with pytest.raises(InputError, match="n_classes must be at least 2"):
        certify_agreement(named_code("d"), PluralityDecoder(), 1)
    assert is_agreement_affordable(named_code("h16"), 10, 3)
    assert not is_agreement_affordable(Code(np.eye(100, dtype=int)), 10, 3)
