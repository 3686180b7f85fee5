import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.attacks import Trigger, draw_blend, draw_patch, stamp
from codeward.data import Samples, render

POSITIONS = ("corner", "fixed-random", "per-image", "early-corner")


def draw_samples(n=50, shape=(1, 8, 9), seed=0):
    rng = np.random.default_rng(seed)
    return Samples(rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, 10, n))


@given(st.integers(0, 2**32), st.sampled_from(POSITIONS))
def test_a_grey_trigger_is_a_permutation_of_five_ones_and_four_zeros(seed, position):
    trigger = draw_patch((1, 28, 28), position, np.random.default_rng(seed))
    assert np.array_equal(np.sort(trigger.values, axis=None), [0] * 4 + [1] * 5)
    assert (trigger.alpha == 1).all()


@given(st.integers(0, 2**32))
def test_a_colour_trigger_has_27_values_within_zero_and_one(seed):
    trigger = draw_patch((3, 32, 32), "corner", np.random.default_rng(seed))
    assert trigger.values.shape == (3, 3, 3)
    assert ((trigger.values >= 0) & (trigger.values <= 1)).all()


def test_colour_values_are_a_clipped_gaussian():
    values = np.stack([draw_patch((3, 32, 32), "corner", np.random.default_rng(seed)).values for seed in range(400)])
    assert np.mean(values == 0) == pytest.approx(0.159, abs=0.02)  # a normal value is below -1 deviation
    assert np.mean(values == 1) == pytest.approx(0.159, abs=0.02)
    assert len(np.unique(values)) > 5000


def changed(samples, stamped):
    """Return which pixels (N, H, W) differ in any channel."""
    return (render(samples) != render(stamped)).any(axis=1)


def test_a_corner_trigger_covers_the_last_three_rows_and_columns_only():
    samples = draw_samples()
    trigger = draw_patch((1, 8, 9), "corner", np.random.default_rng(1))
    rows = np.array([3, 7, 20])
    stamped = stamp(samples, rows, trigger, np.random.default_rng(2))
    assert (render(stamped)[rows][:, :, 5:, 6:] == trigger.values).all()
    touched = changed(samples, stamped)
    assert not touched[:, :5].any()
    assert not touched[:, :, :6].any()
    assert set(np.flatnonzero(touched.any(axis=(1, 2)))) == set(rows)
    assert np.array_equal(stamped.images, samples.images)
    assert np.array_equal(stamped.labels, samples.labels)
    assert (samples.overlay_ids == -1).all()  # the argument is as it was


def test_a_fixed_random_trigger_has_one_place_and_triggers_have_many():
    shape, places = (1, 8, 9), set()
    for seed in range(300):
        trigger = draw_patch(shape, "fixed-random", np.random.default_rng(seed))
        places.add(trigger.place)
        stamped = stamp(draw_samples(), np.arange(50), trigger, np.random.default_rng(seed))
        assert len(stamped.overlays) == 1
    assert places == {(row, column) for row in range(6) for column in range(7)}


def test_a_per_image_trigger_is_whole_in_every_image_and_its_place_varies():
    samples = draw_samples(n=400)
    trigger = draw_patch((1, 8, 9), "per-image", np.random.default_rng(3))
    stamped = stamp(samples, np.arange(400), trigger, np.random.default_rng(4))
    assert len(stamped.overlays) == 42  # 6 x 7 places, each met among 400 images
    used = np.bincount(stamped.overlay_ids)
    assert used.min() > 0
    assert used.max() < 30  # 9.5 expected
    rendered = render(stamped)
    for i in range(0, 400, 23):
        alpha = stamped.overlays[stamped.overlay_ids[i]].alpha[0]
        row, column = np.argwhere(alpha)[0]
        assert alpha.sum() == 9
        assert (rendered[i, :, row : row + 3, column : column + 3] == trigger.values).all()


def test_a_blended_trigger_moves_every_pixel_a_little():
    samples = draw_samples(shape=(3, 8, 9))
    trigger = draw_blend((3, 8, 9), np.random.default_rng(5))
    stamped = stamp(samples, np.arange(50), trigger, np.random.default_rng(6))
    before, after = render(samples), render(stamped)
    assert np.allclose(after, 0.85 * before + 0.15 * trigger.values, atol=1e-6)
    assert np.abs(after - before).max() <= 0.15 + 1e-6


def test_a_second_stamp_replaces_the_first():
    samples = draw_samples()
    one, two = (draw_patch((1, 8, 9), "fixed-random", np.random.default_rng(seed)) for seed in (1, 2))
    both = stamp(
        stamp(samples, np.arange(10), one, np.random.default_rng(0)), np.arange(5), two, np.random.default_rng(0)
    )
    only = stamp(samples, np.arange(5), two, np.random.default_rng(0))
    assert np.array_equal(render(both)[:5], render(only)[:5])
    assert stamp(samples, np.zeros(0, dtype=np.int64), one, np.random.default_rng(0)) is samples


def test_an_early_trigger_is_painted_on_the_pictures_and_looks_the_same_without_augmentation():
    samples = stamp(
        draw_samples(shape=(3, 8, 9)),
        np.arange(6),
        draw_blend((3, 8, 9), np.random.default_rng(1)),
        np.random.default_rng(0),
    )
    early, late = (draw_patch((3, 8, 9), position, np.random.default_rng(7)) for position in ("early-corner", "corner"))
    rows = np.array([2, 11])
    painted, laid = (stamp(samples, rows, trigger, np.random.default_rng(0)) for trigger in (early, late))
    assert np.abs(render(painted) - render(laid)).max() <= 0.5 / 255 + 1e-6  # pixels are whole numbers
    assert painted.overlays == samples.overlays
    assert (painted.overlay_ids[rows] == -1).all()
    assert np.array_equal(np.delete(painted.overlay_ids, rows), np.delete(samples.overlay_ids, rows))
    assert np.array_equal(np.delete(painted.images, rows, axis=0), np.delete(samples.images, rows, axis=0))
    assert not np.array_equal(painted.images[rows], samples.images[rows])
    assert painted.digest() != laid.digest()


def test_a_trigger_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="too small"):
        draw_patch((1, 2, 9), "corner", np.random.default_rng(0))
    with pytest.raises(InputError, match="position"):
        draw_patch((1, 8, 9), "centre", np.random.default_rng(0))
    patch = np.zeros((1, 3, 3), np.float32)
    for place in ((-1, 0), (6, 0), (0, 7)):
        with pytest.raises(InputError, match="does not fit"):
            Trigger(patch, patch, "corner", place).overlay((1, 8, 9), place)
    with pytest.raises(InputError, match="does not fit"):
        Trigger(patch, patch, "corner", (0, 0)).overlay((3, 8, 9), (0, 0))
