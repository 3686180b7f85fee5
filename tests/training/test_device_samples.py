import numpy as np
import pytest
import torch

from codeward.data import Overlay, Samples, render
from codeward.training import TrainingSettings
from codeward.training._device_batches import DeviceSamples

SHAPE = (3, 5, 4)


def draw_samples(seed, n=9, n_overlays=3):
    rng = np.random.default_rng(seed)
    overlays = tuple(
        Overlay(rng.random(SHAPE, dtype=np.float32), (rng.random(SHAPE) * (rng.random(SHAPE) < 0.5)).astype(np.float32))
        for _ in range(n_overlays)
    )
    ids = rng.integers(-1, n_overlays, n).astype(np.int32)
    return Samples(rng.integers(0, 256, (n, *SHAPE), dtype=np.uint8), rng.integers(0, 7, n), overlays, ids)


@pytest.mark.parametrize("augmentation", ["none", "crop-flip"])
def test_what_a_model_is_fed_is_what_render_shows(augmentation):
    users = [draw_samples(1), draw_samples(2, n_overlays=0, n=4), draw_samples(3)]
    settings = TrainingSettings(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), augmentation=augmentation)
    resident = DeviceSamples(users, settings, torch.device("cpu"))
    fed = resident.gather(torch.arange(22)).permute(0, 3, 1, 2).numpy()
    shown = np.concatenate([render(user) for user in users])
    mean, std = (np.array(values, np.float32).reshape(1, 3, 1, 1) for values in (settings.mean, settings.std))
    assert np.allclose(fed, (shown - mean) / std, atol=1e-6)


def test_an_opaque_overlay_stays_in_its_place_whatever_crop_and_flip_do():
    rng = np.random.default_rng(0)
    alpha = np.zeros(SHAPE, np.float32)
    alpha[:, -2:, -2:] = 1
    overlay = Overlay(rng.random(SHAPE, dtype=np.float32), alpha)
    samples = draw_samples(4, n=162, n_overlays=0)
    samples = Samples(samples.images, samples.labels, (overlay,), np.zeros(162, np.int32))
    settings = TrainingSettings(mean=(0.0,), std=(1.0,), augmentation="crop-flip")
    resident = DeviceSamples([samples], settings, torch.device("cpu"))
    fed = resident.gather(torch.arange(162), torch.arange(162, dtype=torch.uint8)).permute(0, 3, 1, 2).numpy()
    assert (fed[:, :, -2:, -2:] == overlay.values[:, -2:, -2:]).all()
    assert not np.allclose(fed[0], fed[100])
