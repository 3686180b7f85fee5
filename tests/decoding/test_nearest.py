"""The nearest attack: its slow twin, its guarantee, and what the fitted decoders keep of it."""

from itertools import combinations, product

import numpy as np
import pytest
from benchmarks.frontier import find_frontier

from codeward.certificates import certify
from codeward.codes import Code, named_code
from codeward.decoding import NearestDecoder
from codeward.decoding._nearest import LEAD, count_unlike_pairs
from codeward.decoding.soft import SoftDecoder

TRACKING = named_code("btc2412")


def explain_slowly(code, votes, n_attackers, n_errors, n_classes):
    """Labels that some attack explains, by trying all of them."""
    found = set()
    for size in range(n_attackers + 1):
        for users in combinations(range(code.n_users), size):
            hit = code.pattern(users)
            for label, target in product(range(n_classes), repeat=2):
                if (np.where(hit, target, label) != votes).sum() <= n_errors:
                    found.add(label)
    return found


def explain_pairs_slowly(code, votes, n_classes):
    """For each label the fewest votes that two users with a target each leave unexplained, by trying all."""
    least = [code.n_models] * n_classes
    for one, two in combinations(range(code.n_users), 2):
        for label, first, second in product(range(n_classes), repeat=3):
            allowed = [
                {target for user, target in ((one, first), (two, second)) if row[user]} or {label}
                for row in code.matrix
            ]
            unlike = sum(int(said) not in may for said, may in zip(votes, allowed, strict=True))
            least[label] = min(least[label], unlike)
    return least


def draw_small(seed):
    """A code of four users and votes on it."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((int(rng.integers(3, 7)), 4)) < 0.4
    matrix |= np.arange(len(matrix))[:, None] % 4 == np.arange(4)
    return Code(matrix), rng.integers(0, 3, (25, len(matrix)))


@pytest.mark.parametrize("seed", range(4))
def test_pairs_of_targets_leave_as_many_votes_unexplained_as_trying_all_does(seed):
    code, votes = draw_small(seed)
    assert count_unlike_pairs(code, votes, 3).tolist() == [explain_pairs_slowly(code, row, 3) for row in votes]


def test_two_users_with_a_target_each_are_settled_and_certified_verdicts_stay():
    decoder, rng = NearestDecoder.choose(TRACKING, 3, 10), np.random.default_rng(5)
    votes = []
    for one, two in combinations(range(12), 2):
        first, second = TRACKING.matrix[:, one], TRACKING.matrix[:, two]
        shared = np.where(rng.random(15) < 0.5, 1, 2)
        votes.append(np.where(first & second, shared, np.where(first, 1, np.where(second, 2, 0))))
    assert (decoder.predict(votes) == -1).all()
    assert (decoder.settle(votes) == 0).all()
    rough = np.where(rng.random((400, 15)) < 0.2, rng.integers(0, 3, (400, 15)), np.tile(votes, (7, 1))[:400])
    known = decoder.predict(rough) >= 0
    assert (decoder.settle(rough)[known] == decoder.predict(rough)[known]).all()


def test_one_vote_against_a_single_target_is_no_reason_to_assume_two():
    decoder = NearestDecoder.choose(TRACKING, 3, 10)
    votes = np.where(TRACKING.pattern((0, 5)), 7, 3)
    free = np.flatnonzero(~TRACKING.pattern((0, 5)))
    votes[free[:2]] = 9  # two models err: one target leaves both unexplained, two targets no fewer than 0
    unlike = count_unlike_pairs(TRACKING, votes[None], 10)
    assert unlike.min() > 2 - LEAD
    assert decoder.settle([votes]) == -1


@pytest.mark.parametrize("seed", range(6))
def test_verdicts_are_those_of_trying_every_attack(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.random((int(rng.integers(3, 7)), 4)) < 0.4
    matrix[:, 0] |= ~matrix.any(axis=1)
    code = Code(matrix | (np.arange(len(matrix))[:, None] % 4 == np.arange(4)))
    n_attackers, n_errors = int(rng.integers(0, 3)), int(rng.integers(0, 2))
    votes = rng.integers(0, 3, (40, code.n_models))
    votes[::2] = np.where(rng.random((20, code.n_models)) < 0.2, votes[::2], 1)
    decoder = NearestDecoder(code, n_attackers, n_errors, 3)
    explained = [explain_slowly(code, row, n_attackers, n_errors, 3) for row in votes]
    assert decoder.predict(votes).tolist() == [min(one) if len(one) == 1 else -1 for one in explained]
    assert [set(np.flatnonzero(row == row.max())) for row in decoder.decode(votes).label_probability] == [
        one or {0, 1, 2} for one in explained
    ]


def test_the_label_is_right_under_every_attack_that_the_margin_allows():
    decoder = NearestDecoder.choose(TRACKING, 3, 10)
    assert (decoder.n_attackers, decoder.n_errors) == (2, 1)  # margins 6, 3, 2
    rng = np.random.default_rng(0)
    for users in combinations(range(12), 2):
        hit = TRACKING.pattern(users)
        wrong = rng.choice(np.flatnonzero(~hit), 20)
        votes = np.tile(np.where(hit, 4, 7), (20, 1))
        votes[np.arange(20), wrong] = rng.integers(0, 10, 20)
        assert (decoder.predict(votes) == 7).all()


def test_inputs_with_one_dissenting_model_are_certified_against_two_users():
    decoder = NearestDecoder.choose(TRACKING, 2, 4)
    votes = np.full((16, 15), 2)
    votes[np.arange(15), np.arange(15)] = 1
    found = certify(votes, TRACKING, threat="deterministic", decoder=decoder, max_attackers=2)
    assert (found.labels == 2).all()
    assert (found.radius == 2).all()


def test_codes_with_little_margin_or_few_models_left_determine_nothing():
    assert NearestDecoder.choose(named_code("d"), 2, 10) is None
    # Three users leave 3 of its 15 models, which may err alike on a hard image.
    assert NearestDecoder.choose(named_code("c"), 4, 10).n_attackers == 2


def test_poisoned_validation_data_cannot_overrule_what_the_votes_determine():
    rng = np.random.default_rng(3)
    labels = np.arange(300) % 5
    votes = np.where(rng.random((300, 15)) < 0.02, (labels[:, None] + 1) % 5, labels[:, None])
    hit = TRACKING.pattern((1, 8))
    votes[:150, hit], given = 0, np.where(np.arange(300) < 150, 0, labels)  # half of it says: believe the hit models
    scores = np.log(np.where(votes[:, :, None] == np.arange(5), 0.96, 0.01))
    decoder = SoftDecoder(TRACKING, attackers_prior=(0.5, 0.25, 0.25), n_simulated=400).fit(scores, given)
    fresh = np.where(hit, 0, np.arange(1, 5)[:, None])
    asked = np.log(np.where(fresh[:, :, None] == np.arange(5), 0.96, 0.01))
    assert (decoder.nearest_.predict(fresh) == np.arange(1, 5)).all()
    decoded = decoder.decode(asked)
    assert (decoded.labels == np.arange(1, 5)).all()
    assert (decoded.label_probability.argmax(axis=1) == decoded.labels).all()


def test_what_no_decoder_of_votes_can_have_is_shown():
    # Six models of six users, three attackers: whoever is right where a trigger works is wrong where one fails.
    loss, kinds = find_frontier(named_code("d"))
    assert round(100 * loss, 1) == 27.7
    assert all(best >= max(vote, paper) - loss - 1e-9 for vote, paper, best in kinds.values())
