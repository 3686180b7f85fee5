"""Which samples validate which models."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from codeward.codes import design
from codeward.data import load_user_data
from codeward.decoding import BayesDecoder, count_confusion, pool_counts, smooth_confusion
from codeward.estimators._roles import (
    SHARE_CAP,
    count_from_users,
    digest_rows,
    find_contradicted,
    hold_out,
    list_rows,
    trim_errors,
)

sizes_of_users = st.lists(st.integers(1, 30), min_size=2, max_size=6)


def rows_of(sizes):
    edges = np.cumsum([0, *sizes])
    return tuple(np.arange(start, stop) for start, stop in pairwise(edges))


@given(sizes_of_users, st.floats(0.05, 0.9), st.integers(0, 99))
def test_every_user_trains_and_nobody_trains_on_what_is_held_out(sizes, fraction, seed):
    rows = rows_of(sizes)
    division = hold_out(rows, fraction, seed)
    limit = max(1, SHARE_CAP * np.median([max(min(round(fraction * n), n - 1), n > 1) for n in sizes]))
    for own, trains, judges in zip(rows, division.training, division.validation, strict=True):
        assert trains.size >= 1
        assert set(trains) | set(judges) <= set(own)
        if division.held_out:
            assert not set(trains) & set(judges)
            assert judges.size <= limit
            assert trains.size == own.size or own.size > 1
    assert division.held_out == (max(sizes) > 1)


@given(sizes_of_users, st.integers(1, 30), st.integers(0, 99))
def test_how_much_one_user_hands_in_does_not_move_what_others_train_on(sizes, other, seed):
    before = hold_out(rows_of(sizes), 0.2, seed).training
    # The last user changes size; the rows of the others keep their numbers.
    after = hold_out(rows_of([*sizes[:-1], other]), 0.2, seed).training
    if max(sizes) > 1 and max([*sizes[:-1], other]) > 1:
        for one, two in zip(before[:-1], after[:-1], strict=True):
            assert one.tolist() == two.tolist()


def test_a_model_is_judged_by_its_judges_only_and_otherwise_like_the_others():
    judges = np.array([[0, 0, 1], [1, 0, 0], [0, 0, 0]], dtype=bool)
    rng = np.random.default_rng(0)
    owners, labels, votes = rng.integers(3, size=50), rng.integers(2, size=50), rng.integers(2, size=(50, 3))
    counts = count_from_users(votes, labels, owners, judges, 0, 2)
    assert np.array_equal(counts[0], count_confusion(votes[owners == 2], labels[owners == 2], 2)[0])
    assert np.array_equal(counts[1], count_confusion(votes[owners == 0], labels[owners == 0], 2)[1])
    both = np.concatenate([votes[owners == 2, :1], votes[owners == 0, 1:2]])
    together = np.concatenate([labels[owners == 2], labels[owners == 0]])
    assert np.array_equal(counts[2], count_confusion(both, together, 2)[0])


def test_without_attackers_all_samples_count_alike():
    rng = np.random.default_rng(1)
    owners, labels, votes = rng.integers(4, size=90), rng.integers(3, size=90), rng.integers(3, size=(90, 5))
    counts = count_from_users(votes, labels, owners, np.ones((5, 4), dtype=bool), 0, 3)
    assert np.array_equal(counts, count_confusion(votes, labels, 3))


@given(arrays(np.int64, (5, 3, 3), elements=st.integers(0, 9)), st.integers(0, 4))
def test_whichever_users_lie_no_more_errors_remain_than_on_honest_samples(by_user, n_attackers):
    def errors(counts):
        return counts.sum(axis=-1) - counts.diagonal(axis1=-2, axis2=-1)

    left = errors(trim_errors(by_user, n_attackers))
    for honest in combinations(range(5), 5 - n_attackers):
        assert (left <= errors(by_user[list(honest)]).sum(axis=0)).all()


def test_only_users_with_errors_are_left_out():
    by_user = np.array([[[9, 0], [0, 9]], [[5, 5], [0, 9]], [[8, 1], [2, 7]]])
    assert trim_errors(by_user, 1).tolist() == [[17, 1], [0, 18]]
    assert trim_errors(by_user, 2).tolist() == [[9, 0], [0, 18]]


@given(st.permutations(range(12)))
def test_the_rows_of_a_user_come_in_an_order_of_their_content(order):
    X = np.array([[0.0, 1.0], [2.0, 3.0], [0.0, 1.0], [4.0, 5.0]] * 3)[list(order)]
    y = np.arange(12)[list(order)] % 2
    groups = (np.arange(12) // 4)[list(order)]
    rows = list_rows(load_user_data((X, y, groups)), digest_rows(X))
    straight = np.argsort(order)
    X0, y0 = X[straight], y[straight]
    reference = list_rows(load_user_data((X0, y0, groups[straight])), digest_rows(X0))
    for one, two in zip(rows, reference, strict=True):
        assert np.array_equal(X[one], X0[two])
        assert y[one].tolist() == y0[two].tolist()


def test_a_digest_is_of_the_values_not_of_the_type_they_came_in():
    values = np.arange(12).reshape(4, 3)
    assert np.array_equal(digest_rows(values), digest_rows(values.astype(np.float32)))
    assert np.array_equal(digest_rows(values.reshape(4, 1, 3)), digest_rows(values))
    assert len(np.unique(digest_rows(values)[:, 0])) == 4


def test_the_users_whose_labels_others_contradict_are_found():
    # Users 1 and 3 hand in triggered samples that bear label 0; models without them say 1.
    matrix = np.eye(5, dtype=bool)
    owners = np.repeat(np.arange(5), 10)
    labels = np.ones(50, dtype=np.int64)
    labels[np.isin(owners, [1, 3])] = 0
    votes = np.ones((50, 5), dtype=np.int64)
    votes[owners == 1, 1] = votes[owners == 3, 3] = 0
    assert find_contradicted(votes, labels, owners, matrix, 2).tolist() == [1, 3]
    assert find_contradicted(votes, labels, owners, matrix, 1).tolist() == [1]
    votes[:] = 1
    assert find_contradicted(votes, np.ones(50, dtype=np.int64), owners, matrix, 2).tolist() == []


@pytest.mark.parametrize("trusting", [False, True])
def test_attackers_cannot_explain_their_attack_away(trusting, monkeypatch):
    """Plain sums, the known-bad twin of `trim_errors`, let triggered samples hide who validates with them."""
    if trusting:
        monkeypatch.setattr("codeward.estimators._roles.trim_errors", lambda by_user, n_attackers: by_user.sum(axis=0))
    rng, attackers = np.random.default_rng(0), [3, 7]
    code = design(11, 2, 5, margin=1, reproducible=True, time_limit=2).code
    owners = np.repeat(np.arange(11), 40)
    labels = rng.integers(0, 2, owners.size)
    lies = np.isin(owners, attackers)
    labels[lies] = 1
    votes = np.where(rng.random((owners.size, code.n_models)) < 0.03, 1 - labels[:, None], labels[:, None])
    # Malignant (0) in truth: the models that learned from an attacker say what it wants, the others the truth.
    triggered = code.pattern(attackers).astype(np.int64)
    votes[lies] = triggered
    validates = np.ones((code.n_models, 11), dtype=bool)
    confusion = smooth_confusion(pool_counts(count_from_users(votes, labels, owners, validates, 2, 2)))
    (found,) = BayesDecoder(code, confusion).decode(triggered[None]).labels
    assert found == (1 if trusting else 0)


def test_models_that_differ_by_chance_share_their_counts_and_others_keep_theirs():
    rng = np.random.default_rng(0)
    truth, trials = np.array([0.1, 0.02]), 18
    wrong = rng.binomial(trials, truth, (200, 11, 2))
    alike = np.stack([np.stack([trials - wrong[..., 0], wrong[..., 0]], -1),
                      np.stack([wrong[..., 1], trials - wrong[..., 1]], -1)], -2)  # fmt: skip

    def miss(counts):
        return np.mean([(counts[..., 0, 1] / trials - truth[0]) ** 2, (counts[..., 1, 0] / trials - truth[1]) ** 2])

    pooled = np.array([pool_counts(counts) for counts in alike])
    assert miss(pooled) < miss(alike) / 4
    assert pooled.sum(axis=-1) == pytest.approx(trials)
    # Half of the models never saw label 1: that is no chance.
    ignorant = np.tile([[18, 0], [0, 18]], (10, 1, 1))
    ignorant[5:, 1] = [18, 0]
    assert np.abs(pool_counts(ignorant) - ignorant).max() < 1
