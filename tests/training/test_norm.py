"""The fused batch norm of the GPU engine against torch's own, on a CPU and in float64."""

import copy
import itertools
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from codeward.training._architectures import _ResidualBlock, build_network
from codeward.training._norm import (
    TICKETS,
    FusedBlock,
    FusedNorm,
    channel_gradients,
    channel_moments,
    fuse_norms,
    kernels_run,
    normalize,
    row_gradients,
)


def run(network, images):
    """Return the output, the gradients of images and weights, and the buffers behind a weighted sum of outputs."""
    images = images.clone().requires_grad_()
    result = network(images)
    weights = torch.arange(result.numel(), dtype=result.dtype).reshape(result.shape).sin()
    (result * weights).sum().backward()
    grads = {name: parameter.grad for name, parameter in network.named_parameters()}
    buffers = {name: value for name, value in network.named_buffers() if "running" in name}
    return {"result": result.detach(), "images": images.grad, **grads, **buffers}


def compare(plain, images):
    fused = fuse_norms(copy.deepcopy(plain))
    assert list(fused.state_dict()) == list(plain.state_dict())
    wanted, found = run(plain, images), run(fused, images)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=1e-9, atol=1e-10), name
    return fused


@given(
    seed=st.integers(0, 2**31),
    channels=st.integers(1, 9),
    relu=st.booleans(),
    size=st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4)),
)
@settings(max_examples=30, deadline=None)
def test_a_batch_norm_with_its_relu_is_the_same_function_with_the_same_gradients(seed, channels, relu, size):
    generator = torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm2d(channels, momentum=0.3).double()
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
        tensor.copy_(torch.randn(channels, generator=generator))
    images = torch.randn(size[0], channels, *size[1:], generator=generator, dtype=torch.float64) * 3 + 50
    fused = compare(nn.Sequential(norm, nn.ReLU()) if relu else nn.Sequential(norm), images)
    assert fused[0].relu is relu


def test_residual_blocks_with_and_without_a_projection_keep_function_gradients_and_statistics():
    torch.default_generator.manual_seed(0)
    stem = [nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    blocks = [_ResidualBlock(4, 4, 1), _ResidualBlock(4, 6, 2), _ResidualBlock(6, 6, 1), _ResidualBlock(6, 6, 1)]
    plain = nn.Sequential(*stem, *blocks).double()
    fused = compare(plain, torch.randn(3, 3, 8, 8, dtype=torch.float64))
    # Forked where a block with a plain shortcut follows.
    assert fused[1].fork
    assert [block.bn2.fork for block in fused[3:]] == [False, True, True, False]


def test_resnet18_consists_of_fused_parts_only():
    network = fuse_norms(build_network("resnet18", (3, 16, 16), 10, 0))
    assert not any(type(module) in (nn.BatchNorm2d, nn.ReLU, _ResidualBlock) for module in network.modules())
    assert sum(isinstance(module, FusedBlock) for module in network.modules()) == 8
    assert sum(isinstance(module, FusedNorm) for module in network.modules()) == 20


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(3, affine=False),
        nn.BatchNorm2d(3, momentum=None),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.BatchNorm2d(32 * TICKETS + 1),
        nn.BatchNorm1d(3),
    ],
)
def test_batch_norms_of_other_kinds_are_left_alone(norm):
    network = nn.Sequential(norm, nn.ReLU())
    fuse_norms(network)
    assert network[0] is norm
    assert isinstance(network[1], nn.ReLU)


def test_a_compiler_that_follows_the_operations_finds_the_same_gradients():
    torch.default_generator.manual_seed(0)
    stem = [nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU()]
    plain = nn.Sequential(*stem, _ResidualBlock(3, 3, 1)).double()
    fused = fuse_norms(copy.deepcopy(plain))
    images = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    wanted, found = run(plain, images), run(torch.compile(fused, backend="aot_eager"), images)
    for name, value in found.items():
        assert torch.allclose(value, wanted[name.removeprefix("_orig_mod.")], rtol=1e-9, atol=1e-10), name
    assert len(found) == len(wanted)


@pytest.mark.parametrize(("n_rows", "channels"), [(300, 24), (70, 130)])
def test_the_gpu_kernels_compute_what_the_plain_operations_do(n_rows, channels):
    """Runs on a GPU, or anywhere with Triton installed and TRITON_INTERPRET=1."""
    pytest.importorskip("triton")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("neither a GPU nor Triton's interpreter")
    from codeward.training import _norm_kernels as kernels

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    rows, grad, carry, other = (torch.randn(n_rows, channels, generator=generator) + 3 for _ in range(4))
    weight, bias, mean, variance = (torch.randn(channels, generator=generator).abs() for _ in range(4))
    tickets = torch.zeros(TICKETS, dtype=torch.int32)

    def agree(found, wanted):
        for one, two in zip(found, wanted, strict=True):
            assert torch.allclose(one.cpu(), two, rtol=1e-4, atol=1e-3)

    def send(*tensors):
        return [tensor if tensor is None else tensor.clone().to(device) for tensor in tensors]

    there = send(rows, mean, variance, tickets)
    agree(kernels.moments(*there, 0.1, 1e-5), moments := channel_moments(rows, mean, variance, tickets, 0.1, 1e-5))
    agree(there[1:], (mean, variance, tickets))
    for relu, residual in itertools.product((False, True), (None, other)):
        found = kernels.normalize(*send(rows, weight, bias, *moments, residual), relu)
        agree([found], normalize(rows, weight, bias, *moments, tickets, residual, None, relu, False)[:1])
        for more in (None, carry):
            keep = residual is not None or more is not None
            given = (grad, more, residual, rows, weight, bias, *moments, tickets)
            sums = channel_gradients(*given, relu, keep)
            agree(kernels.gradients(*send(*given), relu, keep), sums)
            given = (sums[0] if keep else grad, rows, weight, bias, *moments, *sums[1:])
            agree([kernels.spread(*send(*given), relu and not keep)], [row_gradients(*given, relu and not keep)])


def test_nan_goes_through_and_stays_in_its_channel():
    network = fuse_norms(nn.Sequential(nn.BatchNorm2d(2), nn.ReLU()))
    images = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    images[1, 0, 0, 0] = torch.nan
    found = run(network, images)
    assert found["result"][:, 0].isnan().all()
    assert found["result"][:, 1].isfinite().all()
    assert found["images"][:, 0].isnan().all()
    assert found["images"][:, 1].isfinite().all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_the_operations_are_tried_before_they_are_used(kind):
    assert kernels_run(torch.device("cpu"), kind)


def test_operations_that_fail_are_reported_and_not_used(caplog):
    assert not kernels_run(torch.device("cpu"), torch.complex64)
    assert "fused batch norm is not to be had" in caplog.text
