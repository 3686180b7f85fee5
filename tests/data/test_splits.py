import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.data import halve_test, plot_class_shares, split_dirichlet, split_groups, split_iid

LABELS = np.random.default_rng(5).permutation(np.repeat(np.arange(10), 600))


def rng(seed=0):
    return np.random.default_rng(seed)


def shares(split):
    counts = np.array([np.bincount(LABELS[part], minlength=10) for part in split])
    return counts / counts.sum(axis=1, keepdims=True)


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 2**32))
def test_an_iid_split_uses_every_sample_once_in_sizes_that_differ_by_one_at_most(n, users, seed):
    labels = np.zeros(n, dtype=np.int64)
    if users > n:
        with pytest.raises(InputError, match="everybody gets one"):
            split_iid(labels, users, rng(seed))
        return
    split = split_iid(labels, users, rng(seed))
    assert np.array_equal(np.sort(np.concatenate(split)), np.arange(n))
    sizes = [len(part) for part in split]
    assert max(sizes) - min(sizes) <= 1


@given(
    st.lists(st.integers(0, 6), min_size=8, max_size=120),
    st.integers(1, 8),
    st.sampled_from([1e-6, 0.01, 0.1, 1.0, 10.0, 1e6]),
    st.integers(0, 2**32),
)
def test_a_dirichlet_split_is_disjoint_with_equal_sizes_and_leaves_only_the_remainder(labels, users, alpha, seed):
    labels = np.array(labels)
    split = split_dirichlet(labels, users, alpha, rng(seed))
    used = np.concatenate(split)
    assert [len(part) for part in split] == [len(labels) // users] * users
    assert len(set(used.tolist())) == len(used)
    assert set(used.tolist()) <= set(range(len(labels)))
    assert all(np.array_equal(part, np.sort(part)) for part in split)


def test_a_large_alpha_is_nearly_iid_and_a_small_one_concentrates_each_user_on_few_classes():
    spread = {}
    for alpha in (1e4, 10, 1, 0.1):
        got = shares(split_dirichlet(LABELS, 12, alpha, rng(1)))
        spread[alpha] = np.abs(got - 0.1).mean()
        if alpha == 1e4:
            # 500 draws a user have a deviation of 0.013; the last user takes what the others left.
            assert np.sort(np.abs(got - 0.1).max(axis=1))[:-1].max() < 0.06
        if alpha == 0.1:
            assert np.median(got.max(axis=1)) > 0.5
    assert spread[1e4] < spread[10] < spread[1] < spread[0.1]


def test_class_shares_follow_the_dirichlet_distribution_while_no_class_runs_out():
    # 3 of 300 users would take 1% of the data each: nothing runs out, so the shares have the law of Dirichlet(1).
    got = np.concatenate([shares(split_dirichlet(LABELS, 300, 1.0, rng(seed))[:3]) for seed in range(60)])
    # Var of a share: a (A - a) / (A^2 (A + 1)) = 9 / 1100, plus the multinomial draw of 20 samples.
    mean_square = 9 / 1100 + 0.01
    expected = 9 / 1100 + (0.1 - mean_square) / 20
    assert got.var(axis=0).mean() == pytest.approx(expected, rel=0.25)


def test_a_split_is_a_function_of_the_seed():
    for split in (lambda r: split_iid(LABELS, 7, r), lambda r: split_dirichlet(LABELS, 7, 0.5, r)):
        first, again, other = split(rng(3)), split(rng(3)), split(rng(4))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_no_user_is_always_last_when_classes_run_out():
    purity = np.mean([shares(split_dirichlet(LABELS, 12, 0.1, rng(seed))).max(axis=1) for seed in range(40)], axis=0)
    assert np.ptp(purity) < 0.25


@pytest.mark.parametrize("alpha", [0, -1, np.nan, np.inf, 1e308])
def test_an_alpha_that_cannot_be_drawn_is_refused(alpha):
    with pytest.raises(InputError, match="alpha"):
        split_dirichlet(LABELS, 3, alpha, rng())


@pytest.mark.parametrize("labels", [np.zeros((4, 2), int), np.zeros(4), np.array([0, -1, 2])])
def test_labels_that_number_no_classes_are_refused(labels):
    with pytest.raises(InputError, match="labels"):
        split_iid(labels, 2, rng())


@given(st.lists(st.sampled_from(["ann", "bob", "eve"]), min_size=1))
def test_groups_give_each_id_its_own_samples_in_the_order_of_ids(ids):
    split = split_groups(np.array(ids))
    assert [set(np.array(ids)[part]) for part in split] == [{name} for name in sorted(set(ids))]
    assert np.array_equal(np.sort(np.concatenate(split)), np.arange(len(ids)))


def test_groups_of_a_wrong_shape_are_refused():
    for groups in (np.zeros((2, 2)), np.zeros(0)):
        with pytest.raises(InputError, match="groups"):
            split_groups(groups)


@given(st.integers(2, 300), st.integers(0, 2**32))
def test_the_test_set_is_cut_into_two_disjoint_halves(n, seed):
    first, second = halve_test(np.zeros(n, dtype=np.int64), rng(seed))
    assert np.array_equal(np.sort(np.concatenate([first, second])), np.arange(n))
    assert len(second) - len(first) in (0, 1)


def test_ten_thousand_test_images_give_five_thousand_each_and_one_cannot_be_halved():
    assert [len(half) for half in halve_test(np.zeros(10_000, dtype=np.int64), rng())] == [5000, 5000]
    with pytest.raises(InputError, match="halved"):
        halve_test(np.zeros(1, dtype=np.int64), rng())


def test_the_plot_of_class_shares_is_drawn_with_the_same_bytes_each_time(tmp_path):
    split = split_dirichlet(LABELS, 5, 0.5, rng())
    for name in ("a.svg", "b.svg"):
        plot_class_shares(LABELS, split, tmp_path / name)
    drawn = (tmp_path / "a.svg").read_bytes()
    assert drawn.startswith(b"<svg xmlns")
    assert drawn == (tmp_path / "b.svg").read_bytes()
    rare = np.array([0] * 5000 + [1])  # shown as <0.1%
    plot_class_shares(rare, [np.arange(5001)], tmp_path / "rare.svg")
    ElementTree.parse(tmp_path / "rare.svg")
    with pytest.raises(InputError, match="drawings are written as"):
        plot_class_shares(LABELS, split, tmp_path / "a.txt")
