"""All models of an ensemble at once: the same scores as one by one."""

import numpy as np
import pytest
import torch

from codeward.training import BatchedEnsemble, Ensemble, TrainingSettings, build_network

SHAPE = (1, 8, 8)


def make_ensemble(architecture):
    weights = {str(seed): build_network(architecture, SHAPE, 10, seed).state_dict() for seed in range(3)}
    for state in weights.values():  # batch norm at work, not at its initial identity
        state.update({name: torch.rand_like(value) + 0.5 for name, value in state.items() if "running" in name})
    settings = TrainingSettings(architecture=architecture, mean=(0.4,), std=(0.3,))
    return Ensemble(tuple(weights), 0, 3, settings, SHAPE, torch.device("cpu"), "float32", weights, None)


@pytest.mark.parametrize("architecture", ["digits-cnn", "mnist-cnn", "resnet18"])
def test_compiled_layers_and_vmap_agree_with_the_models_one_by_one(architecture):
    ensemble = make_ensemble(architecture)
    images = np.random.default_rng(0).random((70, *SHAPE), dtype=np.float32)
    found = BatchedEnsemble(ensemble).scores(images)
    for model in range(3):
        network = ensemble.load_into(build_network(architecture, SHAPE, 10, 0), model).eval()
        with torch.no_grad():
            alone = torch.log_softmax(network((torch.from_numpy(images) - 0.4) / 0.3), dim=1).numpy()
        np.testing.assert_allclose(found[:, model], alone, atol=2e-4)


@pytest.mark.parametrize("architecture", ["digits-cnn", "mlp"])
def test_through_compiled_layers_an_image_gets_the_same_bits_in_every_batch(architecture):
    models = BatchedEnsemble(make_ensemble(architecture))
    images = np.random.default_rng(0).random((70, *SHAPE), dtype=np.float32)
    together = models.scores(images)
    # Also: what a larger batch left in memory does not reach a smaller one.
    for size in (1, 16, 17, 33, 64):
        np.testing.assert_array_equal(models.scores(images[:size]), together[:size])
    assert models.scores(images[:0]).shape == (0, 3, 10)
