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
from codeward.training._architectures import FastNetwork, mnist_fast
from codeward.training._device_batches import KEY_STEP, DeviceSamples, mixed_losses
from codeward.training._engines import Reporter, TrainingContext
from codeward.training._step_functions import make_fast_gradient

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

#: (network, images, batch, classes): channels in several blocks; a grey image with even sizes inside; height and width
#: that differ; pools after batch norm, channels that are no power of two, a bias; places that do not fill their tiles.
CASES = [
    (lambda shape, classes: FastNetwork(shape, classes, (16, 128, 32)), (3, 32, 32), 3, 10),
    (lambda shape, classes: FastNetwork(shape, classes, (32, 64, 128)), (1, 28, 28), 5, 4),
    (lambda shape, classes: FastNetwork(shape, classes, (16, 32, 16)), (3, 30, 21), 5, 17),
    (mnist_fast, (1, 28, 28), 3, 10),
    (mnist_fast, (3, 12, 20), 5, 3),
]


def compare(build, shape, batch, n_classes):
    """Return the largest relative distance of any gradient, and of any running value, from autograd's."""
    from codeward.training._fast_gradient import FastGradient
    from codeward.training._fused_layers import list_layers

    torch.manual_seed(0)
    network = build(shape, n_classes).train().to(memory_format=torch.channels_last)
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
    layers = list_layers(network, shape)
    with torch.no_grad():
        found = FastGradient(network, layers, batch, 0.2, torch.float32)(parameters, moved, images, labels, share)
    assert set(found) == set(wanted)
    assert all(found[name].shape == value.shape for name, value in parameters.items())
    assert not any(torch.equal(moved[name], network.get_buffer(name)) for name in moved if "running" in name)
    far = [distance(found[name], wanted[name]) for name in found]
    return max(far), max(map(distance, moved.values(), running.values()))


def distance(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


def interpret(what):
    # A process of its own: Triton decides when it is first imported whether it interprets.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(Path(__file__).resolve()), str(what)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return tuple(map(float, done.stdout.split()))


@pytest.mark.parametrize("case", range(len(CASES)))
def test_kernels_compute_the_gradient_of_the_network(case):
    gradients, running = interpret(case)
    assert gradients < 1e-4
    assert running < 1e-5


def compile_for_hopper(kernel, given, named):
    """Compile a launch to machine code of an H100 or H200; no GPU is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    types = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int8: "*i8", torch.uint8: "*u8",
             torch.int64: "*i64"}  # fmt: skip
    scalars = {int: "i32", float: "fp32"}
    options = {name: named.pop(name) for name in ("num_warps", "enable_fp_fusion") if name in named}
    kinds = [types[value.dtype] if isinstance(value, torch.Tensor) else scalars[type(value)] for value in given]
    signature = dict(zip(kernel.arg_names, kinds, strict=False)) | dict.fromkeys(named, "constexpr")
    constants = {(kernel.arg_names.index(name),): getattr(value, "value", value) for name, value in named.items()}
    assert set(signature) == set(kernel.arg_names)
    return compile(ASTSource(kernel, signature, constants), GPUTarget("cuda", 90, 32), options)


@pytest.mark.parametrize(("name", "shape", "batch"), [("fast", (3, 32, 32), 128), ("mnist-fast", (1, 28, 28), 64)])
def test_every_launch_compiles_for_the_chip(name, shape, batch, monkeypatch, tmp_path):
    # The interpreter takes more than the compiler does.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from codeward.training import _fast_gradient, _first_layers, _fused_layers, _warp_kernel

    launches = []
    for module in (_fast_gradient, _first_layers, _warp_kernel):  # remembers how kernels start, and computes nothing
        monkeypatch.setattr(
            module, "launch", lambda kernel, programs, *given, **named: launches.append((kernel, given, named))
        )
    network = build_network(name, shape, 10, seed=0).to(memory_format=torch.channels_last)
    half = {n: p.detach().bfloat16() if p.ndim > 1 else p.detach() for n, p in network.named_parameters()}
    layers = _fused_layers.list_layers(network, shape)
    gradient = _fast_gradient.FastGradient(network, layers, batch, 0.1, torch.bfloat16)
    labels, position = torch.zeros(batch, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    images = torch.zeros(batch, *shape[1:], shape[0])
    if name == "mnist-fast":
        samples = make_context(MODERN["mnist"].for_samples(20), shape).samples
        images = _warp_kernel.WarpedBatches(samples, torch.bfloat16)(images.to(torch.uint8), position, position)
    gradient(half, dict(network.named_buffers()), images, labels, torch.ones(1))
    distinct = {repr((kernel.__name__, [getattr(v, "dtype", type(v)) for v in given], named)): (kernel, given, named)
                for kernel, given, named in launches}  # fmt: skip
    assert len(distinct) > 15
    for kernel, given, named in distinct.values():
        made = compile_for_hopper(kernel, given, dict(named))
        assert made.metadata.shared < 200_000, kernel.__name__


def fits(network, shape):
    from codeward.training._fused_layers import list_layers

    return list_layers(network, shape) is not None


@pytest.mark.parametrize(
    ("name", "shape", "n_classes", "wanted"),
    [
        ("fast", (3, 32, 32), 10, True),
        ("fast-small", (1, 28, 28), 10, True),
        ("mnist-fast", (1, 28, 28), 10, True),
        ("fast", (3, 6, 6), 10, False),  # nothing is left to pool
        ("mnist-fast", (1, 30, 30), 10, False),  # a pool of an odd size
        ("mnist-fast", (1, 28, 28), 100, False),
        ("resnet18", (3, 32, 32), 10, False),
        ("mnist-cnn", (1, 28, 28), 10, False),
        ("mlp", (1, 28, 28), 10, False),
    ],
)
def test_only_networks_for_which_they_were_written_get_them(name, shape, n_classes, wanted):
    assert fits(build_network(name, shape, n_classes, seed=0), shape) == wanted


def test_channels_come_in_blocks():
    assert not fits(FastNetwork((3, 32, 32), 10, (64, 100, 256)), (3, 32, 32))
    assert not fits(FastNetwork((3, 32, 32), 10, (64, 64, 96)), (3, 32, 32))


@pytest.mark.parametrize(
    ("number", "module"),
    [
        (3, nn.Conv2d(32, 64, 3, padding=1)),
        (3, nn.Conv2d(32, 64, 3, padding=1, stride=2, bias=False)),
        (3, nn.Conv2d(32, 64, 3, padding=1, dilation=2, bias=False)),
        (4, nn.BatchNorm2d(64, momentum=None)),
        (5, nn.GELU("tanh")),
        (5, nn.ReLU()),
        (6, nn.MaxPool2d(3)),
        (6, nn.MaxPool2d(2, stride=1)),
        (16, nn.Identity()),
        (17, nn.AdaptiveMaxPool2d(2)),
    ],
)
def test_a_sequence_must_be_just_so(number, module):
    network = build_network("mnist-fast", (1, 28, 28), 10, seed=0)
    network[number] = module
    assert not fits(network, (1, 28, 28))


def compare_warps(shape, mean, std):
    """Return the largest distance of a pixel from the plain function's, beside what the warp does to it."""
    from codeward.training._warp_kernel import WarpedBatches

    recipe = replace(MODERN["mnist"].for_samples(20), mean=mean, std=std)
    samples = make_context(recipe, shape).samples
    seed, position = torch.tensor([123456789]), torch.tensor([77])
    picked = samples.pick(torch.tensor([3, 1, 0, 6, 5]))
    wanted = samples.prepare(picked, key=(seed + position * KEY_STEP).to(torch.int32)[0])
    found = WarpedBatches(samples, torch.float32)(picked[0], seed, position)
    return float((found - wanted).abs().max()), float((samples.prepare(picked) - wanted).abs().max())


def test_warped_images_are_those_of_the_plain_function():
    apart, moved = interpret("warps")
    assert apart < 1e-4 < 1 < moved


def make_context(recipe, shape):
    rng = np.random.default_rng(0)
    users = [Samples(rng.integers(0, 256, (20, *shape), dtype=np.uint8), rng.integers(0, 10, 20))]
    samples = DeviceSamples(users, recipe, torch.device("cpu"))
    return TrainingContext(recipe, "float32", shape, (20,), samples, Reporter(silent(), 1), lambda job, weights: None)


@pytest.mark.parametrize("recipe", [MODERN["cifar10"].for_samples(20), PRESETS["cifar10"]])
def test_a_cpu_keeps_autograd(recipe):
    assert make_fast_gradient(make_context(replace(recipe, batch_size=8), (3, 32, 32))) is None


if __name__ == "__main__":
    if sys.argv[1] == "warps":
        both = [
            compare_warps((1, 28, 28), (0.13,), (0.3,)),
            compare_warps((3, 12, 20), (0.1, 0.2, 0.3), (0.3, 0.4, 0.5)),
        ]
        print(max(apart for apart, _ in both), min(moved for _, moved in both))
    else:
        print(*compare(*CASES[int(sys.argv[1])]))
