"""A class that got no vote is a target too: the number of classes is known, or there is no certificate."""

import numpy as np
import pytest

from codeward._errors import InputError
from codeward.certificates import certify, certify_agreement, certify_collective
from codeward.codes import Code
from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder, TwoGroupDecoder

APART = Code([[1, 0], [0, 1]])
UNEVEN = [[[0.699, 0.3, 0.001], [0.05, 0.9, 0.05], [0.001, 0.001, 0.998]]] * 2


class Stranger:
    """A decoder that passes on ``predict`` and says of its classes what it likes."""

    def __init__(self, decoder, **says):
        self.predict = decoder.predict
        self.__dict__.update(says)


def test_a_target_nobody_voted_for_breaks_the_two_group_decoder():
    decoder = TwoGroupDecoder(APART, UNEVEN, attackers_prior=(0.5, 0.5))
    assert decoder.predict([[2, 0]])[0] == 2
    found = certify([[0, 0]], APART, threat="deterministic", decoder=decoder, max_attackers=1, n_classes=3)
    assert (found.labels[0], found.radius[0], found.witness(0).target) == (0, 0, 2)
    at_once = certify_collective([[0, 0]], APART, 1, threat="deterministic", decoder=decoder, n_classes=3)
    assert (at_once.changed, at_once.pointwise) == (1, 1)


@pytest.mark.parametrize("says", [{}, {"n_classes": None}])
def test_a_decoder_that_does_not_say_how_many_classes_there_are_is_refused(says):
    stranger = Stranger(BayesDecoder(APART, UNEVEN), **says)
    with pytest.raises(InputError, match="give n_classes"):
        certify([[0, 0]], APART, threat="deterministic", decoder=stranger)
    with pytest.raises(InputError, match="give n_classes"):
        certify_collective([[0, 0]], APART, 1, threat="deterministic", decoder=stranger)
    told = certify([[0, 0]], APART, threat="deterministic", decoder=stranger, n_classes=3, max_attackers=2)
    own = certify([[0, 0]], APART, threat="deterministic", decoder=BayesDecoder(APART, UNEVEN), max_attackers=2)
    assert (told.radius[0], told.exact[0], told.witness(0)) == (own.radius[0], own.exact[0], own.witness(0))


@pytest.mark.parametrize("says", [2, 4])
def test_two_numbers_of_classes_that_disagree_are_refused(says):
    decoder = BayesDecoder(APART, UNEVEN)
    with pytest.raises(InputError, match="3 classes"):
        certify([[0, 0]], APART, threat="deterministic", decoder=decoder, n_classes=says)
    with pytest.raises(InputError, match="3 classes"):
        certify_agreement(APART, decoder, says)


@pytest.mark.parametrize("says", [{"n_classes": 1}, {"n_classes": 2.5}])
def test_a_number_of_classes_that_is_none_is_refused(says):
    with pytest.raises(InputError, match="at least 2"):
        certify([[0, 0]], APART, threat="deterministic", decoder=Stranger(PluralityDecoder(), **says))


def test_votes_past_the_classes_of_a_decoder_are_refused():
    with pytest.raises(InputError, match="votes"):
        certify([[0, 3]], APART, threat="deterministic", decoder=Stranger(PluralityDecoder(), n_classes=3))


@pytest.mark.parametrize("base", [PluralityDecoder(APART, 3), ConsensusDecoder(APART, 0, n_classes=3)])
def test_a_subclass_that_decides_otherwise_has_no_share_in_the_proof_of_its_parent(base):
    class Other(type(base)):
        def predict(self, votes):
            return np.where((np.asarray(votes) == 2).any(axis=1), 2, 0)

    other = Other(APART, n_classes=3) if isinstance(base, PluralityDecoder) else Other(APART, 0, n_classes=3)
    with pytest.raises(InputError, match="no certificate for the Other decoder under arbitrary"):
        certify([[0, 0]], APART, threat="arbitrary", decoder=other)
    assert certify([[0, 0]], APART, threat="deterministic", decoder=other).witness(0).target == 2


def test_decoders_of_scores_and_answers_that_are_no_labels_are_refused():
    with pytest.raises(InputError, match="reads scores"):
        certify([[0, 0]], APART, threat="deterministic", decoder=Stranger(PluralityDecoder(), needs="scores"))
    for answer in (np.array([0.7]), np.zeros((1, 2), dtype=int), np.array(["cat"])):
        stranger = Stranger(PluralityDecoder(), n_classes=3)
        stranger.predict = lambda votes, answer=answer: answer
        with pytest.raises(InputError, match="one whole number an input"):
            certify([[0, 0]], APART, threat="deterministic", decoder=stranger)


@pytest.mark.parametrize("seed", range(5))
def test_radii_of_plurality_and_consensus_do_not_depend_on_the_number_of_classes(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.random((6, 4)) < 0.4
    matrix[np.arange(6), np.arange(6) % 4] = True
    code, votes = Code(matrix), np.minimum(rng.integers(0, 4, (40, 6)), rng.integers(0, 4, (40, 6)))
    for make in (PluralityDecoder, lambda code, n_classes: ConsensusDecoder(code, 1, n_classes=n_classes)):
        found = [certify(votes, code, decoder=make(code, n_classes=c)) for c in (None, int(votes.max()) + 1, 9)]
        for other in found[1:]:
            np.testing.assert_array_equal(found[0].labels, other.labels)
            np.testing.assert_array_equal(found[0].radius, other.radius)
            np.testing.assert_array_equal(found[0].targets, other.targets)


@pytest.mark.parametrize("strange", [-2, 3, 7])
@pytest.mark.parametrize("targets", [False, True])
def test_answers_that_are_no_class_are_refused(strange, targets):
    stranger = Stranger(PluralityDecoder(n_classes=3), n_classes=3)
    stranger.predict = lambda votes: np.where((votes == votes[:, :1]).all(axis=1), votes[:, 0], strange)
    with pytest.raises(InputError, match=f"answers {strange}"):
        certify([[1, 1]], APART, threat="deterministic", decoder=stranger, targets=targets)


@pytest.mark.parametrize("k", [1.5, float("nan"), "2", 0])
def test_numbers_of_attackers_are_whole_numbers(k):
    with pytest.raises(InputError, match="at least 1"):
        certify([[0, 0]], APART, max_attackers=k)
    with pytest.raises(InputError, match="at least 1"):
        certify_collective([[0, 0]], APART, k)
