"""The nearest attack: its slow twin, its guarantee, and what the fitted decoders keep of it."""

from dataclasses import replace
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.frontier import find_frontier

from codeward._errors import InputError
from codeward.certificates import certify
from codeward.codes import Code, inspect, named_code
from codeward.decoding import ClassShares, NearestDecoder
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


def count_slowly(code, votes, n_attackers, n_classes):
    """For each label the fewest votes that an attack by so many leaves open, by trying all."""
    least = [code.n_models] * n_classes
    for size in range(n_attackers + 1):
        for users in combinations(range(code.n_users), size):
            for label, target in product(range(n_classes), repeat=2):
                unlike = int((np.where(code.pattern(users), target, label) != votes).sum())
                least[label] = min(least[label], unlike)
    return least


@pytest.mark.parametrize("seed", range(12))
def test_a_verdict_is_withdrawn_where_more_users_explain_more_votes(seed):
    code, votes = draw_small(seed)
    votes = np.concatenate([votes, np.where(code.pattern([0, 1, 2]), 1, 0)[None]])
    plain, decoder = NearestDecoder(code, 1, 1, 3), NearestDecoder(code, 1, 1, 3, n_rivals=3)
    for row, before, after in zip(votes, plain.predict(votes), decoder.predict(votes), strict=True):
        few, many = count_slowly(code, row, 1, 3), count_slowly(code, row, 3, 3)
        better = [label for label in range(3) if label != before and many[label] < few[before]]
        assert after == (-1 if before < 0 or better else before)


def test_rivals_leave_the_guarantee_for_as_many_wrong_models_as_are_tolerated():
    seen = set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        code = Code(np.vstack([np.eye(5, dtype=bool), rng.random((4, 5)) < 0.3 + np.eye(5)[rng.permutation(5)[:4]]]))
        margins = inspect(code, max_attackers=2).margin
        for k, margin in enumerate(margins, start=1):
            n_errors = ((margin or 0) - 1) // 2
            decoder = NearestDecoder(code, k, max(n_errors, 0), 3, n_rivals=3)
            seen.add((n_errors, decoder.n_tolerated))
            for users in combinations(range(5), k) if n_errors >= 0 else ():
                hit = code.pattern(users)
                for wrong in combinations(np.flatnonzero(~hit), decoder.n_tolerated):
                    for said in product(range(3), repeat=len(wrong)):
                        votes = np.where(hit, 1, 0)
                        votes[list(wrong)] = said
                        assert decoder.predict([votes]) == [0]
    assert {(1, 0), (1, 1)} <= seen  # both are met


def test_rivals_change_nothing_on_codes_with_enough_margin():
    for name, tolerated in (("btc2412", 1), ("c", 1), ("e", 0), ("h16", 0)):
        assert NearestDecoder.choose(named_code(name), 3, 10).n_tolerated == tolerated


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


def test_a_model_has_seen_a_class_with_many_samples_or_a_share_of_them():
    counts = [[399, 20_000, 0], [400, 20_000, 0], [13, 500, 0], [12, 500, 0], [0, 0, 0]]
    shares = ClassShares.count(Code(np.eye(5, dtype=bool)), counts, 3)
    assert shares.seen[:, 0].tolist() == [False, True, True, False, False]
    assert not shares.seen[:, 2].any()
    # Of a hundred classes an even share is a hundredth, and a quarter of that is enough.
    wide = np.full((2, 100), 10)
    wide[:, 0] = [2, 3]
    assert ClassShares.count(Code(np.eye(2, dtype=bool)), wide, 100).seen[:, 0].tolist() == [False, True]


def draw_counts(code, rng):
    """Samples of three classes, some of them held by few users."""
    return rng.integers(20, 60, (code.n_users, 3)) * (rng.random((code.n_users, 3)) < 0.5)


def is_unseen_slowly(code, counts, users, target, n_errors):
    """Whether at most e models without these users have seen a class."""
    known = 0
    for row in code.matrix:
        total = sum(int(counts[user].sum()) for user in np.flatnonzero(row))
        own = sum(int(counts[user, target]) for user in np.flatnonzero(row))
        known += not row[list(users)].any() and (own >= 400 or own >= 0.025 * max(total, 1))
    return known <= n_errors and bool(users)


@pytest.mark.parametrize("seed", range(6))
def test_verdicts_that_rest_on_classes_held_by_few_are_withdrawn(seed):
    rng = np.random.default_rng(seed)
    code, votes = draw_small(seed)
    counts, n_attackers, n_errors = draw_counts(code, rng), int(rng.integers(1, 3)), int(rng.integers(0, 2))
    plain = NearestDecoder(code, n_attackers, n_errors, 3)
    decoder = NearestDecoder(code, n_attackers, n_errors, 3, ClassShares.count(code, counts, 3))
    for row, label, kept in zip(votes, plain.predict(votes), decoder.predict(votes), strict=True):
        counted = any(
            (np.where(code.pattern(users), target, label) != row).sum() <= n_errors
            and not is_unseen_slowly(code, counts, users, target, n_errors)
            for size in range(n_attackers + 1)
            for users in combinations(range(4), size)
            for target in range(3)
        )
        assert kept == (label if label >= 0 and counted else -1)


def draw_uneven(seed):
    """A code of six users and ten models, samples of three classes, and all votes but three or fewer for class 0."""
    rng = np.random.default_rng(seed)
    code = Code(np.eye(6, dtype=bool)[np.arange(10) % 6] | (rng.random((10, 6)) < 0.25))
    votes = []
    for size in range(4):
        for where in combinations(range(10), size):
            for said in product((1, 2), repeat=size):
                votes.append(np.zeros(10, dtype=np.int64))
                votes[-1][list(where)] = said
    return code, draw_counts(code, rng), np.array(votes)


def attack_samples(code, votes, counts, found, n_rivals=0):
    """Count certified labels that one user changes by its votes and by handing in none, or many, of each class."""
    broken = 0
    for user, target, change in product(range(code.n_users), range(3), (0, 1000, [0, 500, 0], [500, 0, 0])):
        fresh = counts.copy()
        fresh[user] = change
        said = NearestDecoder(code, 1, 1, 3, ClassShares.count(code, fresh, 3), n_rivals=n_rivals).predict(
            np.where(code.pattern((user,)), target, votes)
        )
        broken += int((said != found.labels)[found.radius >= 1].sum())
        for label in (1, 2):
            broken += int((said == label)[(found.labels == 0) & (found.radius_to[:, label] >= 1)].sum())
    return broken


@pytest.mark.parametrize(("seed", "n_rivals"), [(1, 0), (4, 0), (19, 0), (24, 0), (1, 2), (4, 3), (19, 2), (24, 3)])
def test_no_certified_label_changes_whatever_samples_the_attackers_hand_in(seed, n_rivals):
    code, counts, votes = draw_uneven(seed)
    decoder = NearestDecoder(code, 1, 1, 3, ClassShares.count(code, counts, 3), n_rivals=n_rivals)
    known = {"threat": "deterministic", "max_attackers": 1, "targets": True}
    found = certify(votes, code, decoder=decoder, **known)
    assert attack_samples(code, votes, counts, found, n_rivals) == 0
    # What is called exact has a witness that works with the samples that were handed in; the rest has none.
    broken = (found.radius < 1) & (found.labels >= 0)
    for row in np.flatnonzero(broken):
        witness = found.witness(int(row))
        assert found.exact[row] == (witness is not None)
        if witness is not None:
            under = np.where(code.pattern(witness.attackers), witness.target, votes[row])
            assert decoder.predict([under]) != found.labels[row]
    assert (seed, n_rivals) != (24, 0) or not found.exact[broken].all()


@pytest.mark.parametrize("seed", [1, 4, 19, 24])
def test_but_for_attacks_left_out_no_certified_label_changes_either(seed):
    code, counts, votes = draw_uneven(seed)
    decoder = NearestDecoder(code, 1, 1, 3, ClassShares.count(code, counts, 3))
    found = certify(votes, code, threat="deterministic", decoder=decoder.but_left_out, max_attackers=1)
    assert (found.radius >= certify(votes, code, threat="deterministic", decoder=decoder, max_attackers=1).radius).all()
    left_out = {(user, target) for (user,), targets in decoder.list_uncovered() for target in targets}
    for user, target, change in product(range(6), range(3), (0, 1000, [0, 500, 0], [500, 0, 0])):
        if (user, target) not in left_out:
            fresh = counts.copy()
            fresh[user] = change
            under = np.where(code.pattern((user,)), target, votes)
            said = NearestDecoder(code, 1, 1, 3, ClassShares.count(code, fresh, 3)).predict(under)
            assert (said == found.labels)[found.radius >= 1].all()
    assert (found.radius >= 1).any()


def test_a_certificate_that_takes_the_attackers_samples_as_given_is_too_large():
    code, counts, votes = draw_uneven(24)
    decoder = NearestDecoder(code, 1, 1, 3, ClassShares.count(code, counts, 3))
    naive = SimpleNamespace(predict=decoder.predict, n_classes=3)  # any decoder: every pattern and target is tried
    known = {"threat": "deterministic", "max_attackers": 1, "targets": True}
    found = certify(votes, code, decoder=naive, **known)
    assert attack_samples(code, votes, counts, replace(found, radius_to=np.zeros_like(found.radius_to))) > 0


def test_a_class_that_two_users_hold_costs_no_clean_inputs_and_no_other_certificate():
    counts = np.full((12, 10), 40)
    counts[:, 7] = 0
    counts[[3, 8], 7] = 200
    plain, decoder = (NearestDecoder.choose(TRACKING, 3, 10, given) for given in (None, counts))
    assert decoder.list_uncovered() == [((3, 8), (7,))]
    unlike = np.where(TRACKING.pattern((3, 8)), 7, 2)  # a clean 7, or a 2 attacked by users 3 and 8
    assert plain.predict([unlike]) == 2
    assert decoder.predict([unlike]) == -1
    assert decoder.settle([unlike]) == -1
    agreed = np.tile(np.arange(10)[:, None], 15)
    known = {"threat": "deterministic", "max_attackers": 2}
    found = certify(agreed, TRACKING, decoder=decoder, **known)
    assert found.radius.tolist() == [1] * 7 + [2] + [1] * 2  # only these two, with target 7, are left out
    assert {tuple(row) for row in found.attackers[found.radius == 1].tolist()} == {(3, 8)}
    assert (certify(agreed, TRACKING, decoder=plain, **known).radius == 2).all()
    assert (certify(agreed, TRACKING, decoder=decoder.but_left_out, **known).radius == 2).all()


def test_the_fitted_decoder_answers_where_a_verdict_is_withdrawn():
    rng = np.random.default_rng(2)
    labels = np.arange(400) % 4
    strength = np.where(TRACKING.matrix[:, [3, 8]].any(axis=1), 1.0, 0.0)  # models that have seen class 3
    logits = 4 * np.eye(4)[labels][:, None] + rng.normal(size=(400, 15, 4))
    logits[labels == 3] = rng.normal(size=(100, 15, 4)) + np.array([0, 0, 6, 0]) + strength[:, None] * [0, 0, -6, 9]
    scores = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
    counts = np.full((12, 4), 40)
    counts[:, 3] = 0
    counts[[3, 8], 3] = 200
    half = np.arange(400) < 240
    fits = [
        SoftDecoder(TRACKING, n_simulated=500, class_counts=given).fit(scores[half], labels[half])
        for given in (None, counts)
    ]
    right = [(fit.predict(scores[~half]) == labels[~half])[labels[~half] == 3].mean() for fit in fits]
    assert right[0] < 0.2  # the votes say: users 3 and 8 attacked
    assert right[1] > 0.8
    assert fits[1].fallback_.nearest_.unseen_.any()


def test_wrong_class_counts_are_refused_with_a_reason():
    for counts, message in (
        ([[1, 2]] * 11, "one row a user"),
        ([[1.5, 2]] * 12, "whole numbers"),
        ([[-1, 2]] * 12, "whole numbers"),
        ([[1, 2]] * 12, "2 columns for 10 classes"),
        ([[1, 2]] * 11 + [[1]], "as many numbers"),
    ):
        with pytest.raises(InputError, match=message):
            ClassShares.count(TRACKING, counts, 10)


@pytest.mark.parametrize(("holders", "covered"), [((), 2), ((0,), 0), ((0, 1), 1), ((0, 1, 2, 3), 2)])
def test_attacks_by_the_only_holders_of_a_class_are_not_promised(holders, covered):
    counts = np.array([[9_000, 0]] * 12) if holders else np.full((12, 2), 9_000)
    counts[list(holders)] = 9_000
    decoder = NearestDecoder(TRACKING, 2, 1, 2, ClassShares.count(TRACKING, counts, 2))
    smallest = min((len(users) for users, _ in decoder.list_uncovered()), default=3)
    assert decoder.n_covered == covered == smallest - 1
