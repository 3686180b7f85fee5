"""The GPU's own kernels against autograd, on a CPU: Triton's interpreter runs them, in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from codeward._progress import silent
from codeward.data import Samples
from codeward.training import MODERN, PRESETS, build_network
from codeward.training._architectures import FastNetwork
from codeward.training._device_batches import DeviceSamples, mixed_losses
from codeward.training._engines import Reporter, TrainingContext
from codeward.training._step_functions import make_fast_gradient

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

#: (images, widths of the stages, batch, classes): channels in several blocks; a grey image with even sizes inside;
#: height and width that differ; and places and parts that do not fill their tiles.
CASES = [((3, 32, 32), (16, 128, 32), 3, 10), ((1, 28, 28), (32, 64, 128), 5, 4), ((3, 30, 21), (16, 32, 16), 5, 17)]


def compare(shape, widths, batch, n_classes):
    """Return the largest relative distance of any gradient, and of any running value, from autograd's."""
    from codeward.training._fast_gradient import FastGradient

    torch.manual_seed(0)
    network = FastNetwork(shape, n_classes, widths).train().to(memory_format=torch.channels_last)
    for parameter in network.parameters():
        if parameter.ndim == 1:  # batch norm starts at 1 and 0, which would hide a mistake
            nn.init.uniform_(parameter, -0.5, 1.5)
    images, labels = torch.randn(batch, *shape[1:], shape[0]), torch.randint(n_classes, (batch,))
    share = torch.tensor([0.7])
    parameters = dict(network.named_parameters())
    running = {name: value.clone() for name, value in network.named_buffers() if "tracked" not in name}
    moved = {name: value.clone() for name, value in running.items()}
    logits = functional_call(network, {**parameters, **running}, (images.permute(0, 3, 1, 2),))
    loss = mixed_losses(logits, labels, share[0], 0.2).mean()
    wanted = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    assert FastGradient.fits(network, shape)
    with torch.no_grad():
        found = FastGradient(network, shape, batch, 0.2, torch.float32)(parameters, moved, images, labels, share)
    assert set(found) == set(wanted)
    assert all(found[name].stride() == value.stride() for name, value in parameters.items())
    assert not any(torch.equal(moved[name], network.get_buffer(name)) for name in moved if "running" in name)
    return max(map(distance, found.values(), (wanted[name] for name in found))), max(
        map(distance, moved.values(), running.values())
    )


def distance(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("case", range(len(CASES)))
def test_kernels_compute_the_gradient_of_the_network(case):
    # A process of its own: Triton decides when it is first imported whether it interprets.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(Path(__file__).resolve()), str(case)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    gradients, running = map(float, done.stdout.split())
    assert gradients < 1e-4
    assert running < 1e-5


def make_context(recipe, shape):
    rng = np.random.default_rng(0)
    users = [Samples(rng.integers(0, 256, (20, *shape), dtype=np.uint8), rng.integers(0, 10, 20))]
    samples = DeviceSamples(users, recipe, torch.device("cpu"))
    return TrainingContext(recipe, "float32", shape, (20,), samples, Reporter(silent(), 1), lambda job, weights: None)


def test_only_networks_for_which_they_were_written_get_them():
    from codeward.training._fast_gradient import FastGradient

    small = build_network("fast", (3, 6, 6), 10, seed=0)  # the last stage has nothing left to pool
    odd = FastNetwork((3, 32, 32), 10, (64, 96, 256))
    assert not FastGradient.fits(small, (3, 6, 6))
    assert not FastGradient.fits(odd, (3, 32, 32))
    assert not FastGradient.fits(build_network("resnet18", (3, 32, 32), 10, seed=0), (3, 32, 32))
    assert FastGradient.fits(build_network("fast-small", (1, 28, 28), 10, seed=0), (1, 28, 28))


@pytest.mark.parametrize(
    "recipe", [MODERN["cifar10"].for_samples(20), replace(PRESETS["cifar10"], mean=(0.5,), std=(0.25,))]
)
def test_a_cpu_keeps_autograd(recipe):
    assert make_fast_gradient(make_context(replace(recipe, batch_size=8), (3, 32, 32))) is None


if __name__ == "__main__":
    print(*compare(*CASES[int(sys.argv[1])]))
