import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward._errors import InputError
from codeward.data import Overlay, Samples, render

SHAPE = (3, 5, 4)


def draw_samples(seed, n=9, n_overlays=3):
    rng = np.random.default_rng(seed)
    overlays = tuple(
        Overlay(rng.random(SHAPE, dtype=np.float32), (rng.random(SHAPE) * (rng.random(SHAPE) < 0.5)).astype(np.float32))
        for _ in range(n_overlays)
    )
    ids = rng.integers(-1, n_overlays, n).astype(np.int32)
    return Samples(rng.integers(0, 256, (n, *SHAPE), dtype=np.uint8), rng.integers(0, 7, n), overlays, ids)


def test_rendering_is_the_formula_pixel_by_pixel():
    samples = draw_samples(0)
    rendered = render(samples)
    for i in range(len(samples)):
        for at in np.ndindex(*SHAPE):
            pixel = np.float64(samples.images[(i, *at)]) / 255
            if samples.overlay_ids[i] >= 0:
                overlay = samples.overlays[samples.overlay_ids[i]]
                pixel = (1 - overlay.alpha[at]) * pixel + overlay.alpha[at] * overlay.values[at]
            assert rendered[(i, *at)] == pytest.approx(pixel, abs=1e-6)


@given(st.integers(0, 1000), st.permutations(range(3)))
def test_the_digest_looks_at_content_and_not_at_the_order_of_overlays(seed, order):
    samples = draw_samples(seed)
    moved = Samples(
        samples.images,
        samples.labels,
        tuple(samples.overlays[i] for i in order),
        np.array([-1 if i < 0 else order.index(i) for i in samples.overlay_ids], np.int32),
    )
    assert moved.digest() == samples.digest()
    assert np.array_equal(render(moved), render(samples))


def test_the_digest_changes_with_every_part_of_the_content():
    samples = draw_samples(7)
    images, labels, ids = samples.images.copy(), samples.labels.copy(), samples.overlay_ids.copy()
    images[0, 0, 0, 0] ^= 1
    labels[0] += 1
    ids[0] = (ids[0] + 2) % 4 - 1
    other = Overlay(samples.overlays[0].alpha, samples.overlays[0].values)
    changed = [
        Samples(images, samples.labels, samples.overlays, samples.overlay_ids),
        Samples(samples.images, labels, samples.overlays, samples.overlay_ids),
        Samples(samples.images, samples.labels, samples.overlays, ids),
        Samples(samples.images, samples.labels, (other, *samples.overlays[1:]), samples.overlay_ids),
        Samples(samples.images, samples.labels),
        samples.take(np.arange(8)),
        samples.take(np.arange(9)[::-1]),
    ]
    digests = [samples.digest(), *(each.digest() for each in changed)]
    assert len(set(digests)) == len(digests)


def test_taking_samples_keeps_images_labels_and_overlays_together():
    samples = draw_samples(8)
    index = np.array([5, 0, 5])
    taken = samples.take(index)
    assert np.array_equal(render(taken), render(samples)[index])
    assert np.array_equal(taken.labels, samples.labels[index])


IMAGES, LABELS = np.zeros((2, *SHAPE), np.uint8), np.zeros(2, np.int64)
PLAIN = Overlay(np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32))


@pytest.mark.parametrize(
    "arguments",
    [
        (IMAGES.astype(np.float32), LABELS),
        (IMAGES[0], LABELS),
        (IMAGES, LABELS[:1]),
        (IMAGES, LABELS.astype(np.int32)),
        (IMAGES, LABELS - 1),
        (IMAGES, LABELS, (), np.zeros(2, np.int32)),
        (IMAGES, LABELS, (PLAIN,), np.array([0, 1], np.int32)),
        (IMAGES, LABELS, (PLAIN,), np.array([0], np.int32)),
        (IMAGES, LABELS, (Overlay(np.zeros((1, 5, 4), np.float32), np.zeros((1, 5, 4), np.float32)),)),
    ],
)
def test_samples_that_do_not_fit_together_are_refused(arguments):
    with pytest.raises(InputError):
        Samples(*arguments)


@pytest.mark.parametrize("bad", [np.nan, -0.1, 1.1])
def test_an_overlay_outside_zero_to_one_is_refused(bad):
    values = np.zeros(SHAPE, np.float32)
    wrong = np.full(SHAPE, bad, np.float32)
    for arguments in ((values, wrong), (wrong, values), (values.astype(float), values), (values[0], values)):
        with pytest.raises(InputError, match="overlay"):
            Overlay(*arguments)
