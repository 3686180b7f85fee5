from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward.federated import FederatedSettings, combine

MEAN = FederatedSettings()


def arrays(*values, dtype=np.float32):
    return {"w": np.array(values, dtype)}


def test_the_mean_is_weighted_by_samples():
    combined = combine(arrays(0), {0: arrays(1), 3: arrays(5)}, {0: 30, 3: 10}, MEAN)
    np.testing.assert_array_equal(combined["w"], np.float32([2]))
    assert combined["w"].dtype == np.float32


def test_without_replies_a_model_keeps_its_weights():
    start = arrays(1, 2)
    assert combine(start, {}, {}, MEAN)["w"] is start["w"]


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=6), st.randoms())
def test_the_bytes_do_not_depend_on_who_answered_first(values, random):
    replies = {user: arrays(value, -value) for user, value in enumerate(values)}
    weights = {user: user + 1 for user in replies}
    order = list(replies)
    random.shuffle(order)
    for rule in ("mean", "trimmed-mean", "median"):
        settings = FederatedSettings(rule=rule, clip_norm=5.0)
        straight = combine(arrays(0, 0), replies, weights, settings)["w"]
        shuffled = combine(arrays(0, 0), {user: replies[user] for user in order}, weights, settings)["w"]
        assert straight.tobytes() == shuffled.tobytes()


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=7))
def test_the_median_and_the_trimmed_mean_are_numpys(values):
    replies = {user: arrays(value) for user, value in enumerate(values)}
    weights = dict.fromkeys(replies, 10**6)
    exact = np.array(values, np.float64)
    median = combine(arrays(0), replies, weights, FederatedSettings(rule="median"))["w"]
    np.testing.assert_allclose(median[0], np.median(exact), rtol=1e-6, atol=1e-30)
    cut = min(2, (len(values) - 1) // 2)
    middle = np.sort(exact)[cut : len(values) - cut]
    trimmed = combine(arrays(0), replies, weights, FederatedSettings(rule="trimmed-mean", trim=2))["w"]
    np.testing.assert_allclose(trimmed[0], middle.mean(), rtol=1e-6, atol=1e-4)


def test_one_liar_among_five_does_not_move_median_or_trimmed_mean_past_the_others():
    replies = {user: arrays(1 + user / 10) for user in range(4)} | {4: arrays(1e30)}
    weights = dict.fromkeys(replies, 1) | {4: 10**9}
    for rule in ("median", "trimmed-mean"):
        moved = combine(arrays(0), replies, weights, FederatedSettings(rule=rule))["w"][0]
        assert 1 <= moved <= 1.3
    assert combine(arrays(0), replies, weights, MEAN)["w"][0] > 1e29


def test_clipping_bounds_the_length_of_an_update_over_all_arrays_of_the_model():
    start = {"a": np.float32([1, 1]), "b": np.float32([1])}
    reply = {"a": np.float32([1, 301]), "b": np.float32([401])}
    moved = combine(start, {0: reply}, {0: 1}, replace(MEAN, clip_norm=5.0))
    np.testing.assert_allclose(moved["a"], [1, 4], rtol=1e-6)
    np.testing.assert_allclose(moved["b"], [5], rtol=1e-6)
    short = combine(start, {0: reply}, {0: 1}, replace(MEAN, clip_norm=501.0))
    np.testing.assert_array_equal(short["a"], reply["a"])


def test_no_average_of_finite_weights_overflows():
    largest = np.finfo(np.float32).max
    replies = {user: arrays(largest, -largest) for user in range(3)}
    moved = combine(arrays(0, 0), replies, dict.fromkeys(replies, 10_000), MEAN)["w"]
    np.testing.assert_array_equal(moved, [largest, -largest])


def test_counters_stay_whole_numbers():
    combined = combine(arrays(0, dtype=np.int64), {0: arrays(3, dtype=np.int64), 1: arrays(4, dtype=np.int64)},
                       {0: 1, 1: 3}, replace(MEAN, clip_norm=1e-3))  # fmt: skip
    assert combined["w"].dtype == np.int64
    assert combined["w"][0] == 4


@pytest.mark.parametrize(
    "wrong",
    [{"rounds": 0}, {"rule": "krum"}, {"clip_norm": 0.0}, {"timeout": float("inf")}, {"sample_cap": 0}, {"trim": True}],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=f"federated.{next(iter(wrong))}"):
        FederatedSettings(**wrong)
