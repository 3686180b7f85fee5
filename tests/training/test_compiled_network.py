import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from torch import nn
from torch.nn import functional

from codeward._errors import InputError
from codeward.training import _layer_kernels, build_network
from codeward.training._compiled_engine import CompiledNetwork, allocate
from codeward.training._compiled_program import Blueprint, round_up, run_program
from codeward.training._engines import is_compilable
from codeward.training._layer_kernels import pool, pool_back, step_adam

NAN = float("nan")


def flatten(images):
    """Return (batch, channels, height, width) with the batch innermost, flat."""
    values = allocate(images.numel())
    values[:] = images.permute(1, 2, 3, 0).reshape(-1).numpy()
    return values


def check_against_autograd(network, shape, batch, count, seed=0, smoothing=0.0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, *shape, generator=generator)
    compiled = CompiledNetwork(network, Blueprint(network, shape, batch), generator)
    logits = network(images)
    labels = torch.randint(0, logits.shape[1], (batch,), generator=generator)
    # Twice: what the first call leaves in the buffers must not show in the second.
    compiled.compute_gradients(images.flatten(1).numpy() * 2, labels.numpy(), batch, 1.0)
    got = compiled.compute_gradients(images.flatten(1).numpy(), labels.numpy(), count, 0.25, smoothing)
    torch.testing.assert_close(torch.from_numpy(got.T.copy()), logits, rtol=1e-4, atol=1e-5)
    loss = functional.cross_entropy(logits[:count], labels[:count], reduction="sum", label_smoothing=smoothing)
    (loss * 0.25).backward()
    for name, parameter in network.named_parameters():
        mine = torch.from_numpy(compiled.grad(name))
        torch.testing.assert_close(
            mine, parameter.grad, rtol=1e-3, atol=1e-5 * max(1, float(parameter.grad.abs().max()))
        )


@st.composite
def networks(draw):
    """A convolution of any kernel and padding (also wider than the kernel), pooling, ReLU and dense layers."""
    channels, height, width = shape = (
        draw(st.integers(1, 5)),
        draw(st.integers(4, 9)),
        draw(st.integers(4, 9)),
    )
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 2))):
        kernel = draw(st.integers(1, min(3, height))), draw(st.integers(1, min(3, width)))
        padding = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        outputs = draw(st.integers(1, 6))
        layers.append(nn.Conv2d(channels, outputs, kernel, padding=padding, bias=draw(st.booleans())))
        channels = outputs
        height, width = height + 2 * padding[0] - kernel[0] + 1, width + 2 * padding[1] - kernel[1] + 1
        kinds = draw(st.permutations(["relu", "pool", "relu", "none"]))
        for kind in kinds[:3]:
            if kind == "relu":
                layers.append(nn.ReLU())
            elif kind == "pool" and min(height, width) >= 2:
                size = draw(st.integers(1, min(3, height, width)))
                layers.append(nn.MaxPool2d(size))
                height, width = height // size, width // size
    layers += [nn.Flatten(), nn.Linear(channels * height * width, draw(st.integers(1, 9)), bias=draw(st.booleans()))]
    layers += [nn.ReLU(), nn.Linear(layers[-1].out_features, draw(st.integers(2, 6)))]
    return layers, shape


@settings(max_examples=40, deadline=None)
@given(networks(), st.sampled_from([16, 48, 80, 144]), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2, 0.9]))
def test_gradients_equal_autograd_for_any_sequence_of_layers(drawn, batch, seed, smoothing):
    layers, shape = drawn
    network = nn.Sequential(*layers)
    assert is_compilable(network)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for layer in layers:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                layer.reset_parameters()
    check_against_autograd(network, shape, batch, batch - 5, seed, smoothing)


@pytest.mark.parametrize(
    ("architecture", "shape", "batch"),
    [("digits-cnn", (1, 8, 8), 80), ("mnist-cnn", (1, 28, 28), 128), ("mlp", (3, 9, 7), 16)],
)
def test_gradients_equal_autograd_for_the_architectures_of_the_package(architecture, shape, batch):
    network = build_network(architecture, shape, 10, 0)
    for layer in network:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    check_against_autograd(network, shape, batch, batch - 3)


def test_sums_have_the_same_bits_whatever_part_of_them_the_registers_hold(monkeypatch):
    rng = np.random.default_rng(0)
    x, weights, bias = (rng.standard_normal(n).astype(np.float32) for n in (210 * 6 * 80, 210 * 9, 9))
    offsets, places = np.arange(210) * 6 * 80, np.arange(210)
    results = []
    for depth, wide in ((96, True), (96, False), (1000, True)):
        monkeypatch.setattr(_layer_kernels, "_DEPTH", depth)
        monkeypatch.setattr(_layer_kernels, "_WIDE", wide)
        out = np.full(9 * 6 * 80, NAN, np.float32)
        njit(_layer_kernels.multiply.py_func)(x, offsets, weights, places, 210, bias, out, 3, 160, 160)
        results.append(out)
    wanted = bias[:, None] + weights.reshape(9, 210) @ x.reshape(210, 480).astype(np.float64)
    np.testing.assert_allclose(results[0].reshape(9, 480), wanted, atol=1e-4)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_steps_equal_those_of_torch_whether_taken_one_by_one_or_in_a_row():
    def build():
        return build_network("digits-cnn", (1, 8, 8), 10, 3)

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(7, 32, 1, 8, 8, generator=generator)
    labels = torch.randint(0, 10, (7, 32), generator=generator)
    counts = np.array([32, 30, 32, 1, 32, 17, 32])
    network = build()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, weight_decay=0.1)
    rates = 3e-3 * np.array([0, 0.5, 1, 0.7, 0.6, 0.5, 0.1])
    for batch, own, count, rate in zip(images, labels, counts.tolist(), rates.tolist(), strict=True):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = rate
        (functional.cross_entropy(network(batch[:count]), own[:count], reduction="sum") / 32).backward()
        optimizer.step()
    # The samples in another order than that of the batches.
    order = torch.randperm(7 * 32, generator=generator)
    rows, own, index = images.flatten(0, 1).flatten(1)[order].numpy(), labels.flatten()[order].numpy(), order.argsort()
    index = index.reshape(7, 32).numpy()
    whole, parts = (CompiledNetwork(build(), Blueprint(build(), (1, 8, 8), 32), generator) for _ in range(2))
    whole.train(rows, own, index, counts, 1 / 32, rates, 0.1)
    for start, stop in ((0, 1), (1, 5), (5, 7)):
        parts.train(rows, own, index[start:stop], counts[start:stop], 1 / 32, rates[start:stop], 0.1)
    for name, value in whole.weights().items():
        assert torch.equal(parts.weights()[name], value)
        torch.testing.assert_close(value, network.get_parameter(name).detach(), rtol=0, atol=1e-5)


def test_adam_equals_that_of_torch():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(100).astype(np.float32)
    parameter = nn.Parameter(torch.from_numpy(weights.copy()))
    optimizer = torch.optim.Adam([parameter], lr=3e-3, weight_decay=0.1)
    first, second = np.zeros((2, 100), np.float32)
    for count in range(1, 51):
        grad = (rng.standard_normal(100) * 10.0 ** rng.integers(-9, 3)).astype(np.float32)
        parameter.grad = torch.from_numpy(grad)
        optimizer.step()
        step_adam(weights, grad, first, second, count, 3e-3, 0.1)
    np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_model_that_turns_to_nan_between_the_steps_of_another_changes_no_bit_of_it():
    def run(poison):
        generator = torch.Generator().manual_seed(0)
        built = [build_network("mnist-cnn", (1, 8, 8), 10, seed) for seed in (1, 2)]
        blueprint = Blueprint(built[0], (1, 8, 8), 32)
        mine, other = (CompiledNetwork(network, blueprint, generator.clone_state()) for network in built)
        for _ in range(3):
            images = torch.randn(32, 1, 8, 8, generator=generator)
            labels = torch.randint(0, 10, (32,), generator=generator).numpy()
            for network, values in ((other, images * (NAN if poison else 1)), (mine, images)):
                rows, index = values.flatten(1).numpy(), np.arange(32)[None]
                network.train(rows, labels, index, np.array([32]), 1 / 32, np.full(1, 1e-3), 1e-4)
        return [network.values[: blueprint.n_weights].copy() for network in (mine, other)]

    (clean, before), (beside, after) = run(False), run(True)
    assert np.array_equal(clean, beside)
    assert np.isfinite(clean).all()
    assert np.isfinite(before).all()
    assert np.isnan(after).any()


def test_pooling_takes_the_first_maximum_of_a_window_and_nan_like_torch():
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(-1, 2, (16, 3, 5, 6)).astype(np.float32))  # many ties
    images[0, 0, 1, 1] = images[3, 2, 0, 0] = NAN
    images.requires_grad_()
    wanted = functional.max_pool2d(images, 2)
    slope = torch.from_numpy(rng.standard_normal(tuple(wanted.shape)).astype(np.float32))
    wanted.backward(slope)
    out, which, grad = (np.zeros(n, np.float32) for n in (wanted.numel(), wanted.numel(), images.numel()))
    pool(flatten(images.detach()), (3, 5, 6), 2, 16, out, which)
    np.testing.assert_array_equal(out, flatten(wanted.detach()))
    pool_back(flatten(slope), (3, 5, 6), 2, 16, which, grad)
    np.testing.assert_array_equal(grad, flatten(images.grad))


def test_dropout_takes_its_masks_from_the_models_own_generator_and_uses_each_both_ways():
    layers = [nn.Dropout(0.25), nn.Conv2d(1, 1, 1, bias=False), nn.Dropout(0.5), nn.Flatten()]
    network = nn.Sequential(*layers)
    with torch.no_grad():
        layers[1].weight.fill_(1)
    images, labels = np.ones((16, 400), np.float32), np.zeros(16, np.int64)

    def run(seed):
        compiled = CompiledNetwork(network, Blueprint(network, (1, 20, 20), 16), torch.Generator().manual_seed(seed))
        found = []
        for _ in range(2):
            # logits = first mask * second mask;  d loss / d weight = sum(first mask * second mask * slope)
            logits = compiled.compute_gradients(images, labels, 16, 1.0).astype(np.float64)
            slope = np.exp(logits) / np.exp(logits).sum(axis=0)
            slope[0] -= 1
            np.testing.assert_allclose(compiled.grad("1.weight").item(), (logits * slope).sum(), rtol=1e-3, atol=1e-4)
            found.append(logits)
        return np.stack(found)

    drawn, again, other = run(1), run(1), run(2)
    assert np.array_equal(drawn, again)
    assert not np.array_equal(drawn, other)
    assert not np.array_equal(drawn[0], drawn[1])
    np.testing.assert_allclose(np.unique(drawn), [0, 2 / 0.75], rtol=1e-6)
    assert abs(float((drawn == 0).mean()) - (1 - 0.75 * 0.5)) < 0.02


def test_no_layout_of_the_arguments_makes_another_program_to_compile():
    built = build_network("mlp", (1, 8, 8), 10, 0)
    network, again = (CompiledNetwork(built, Blueprint(built, (1, 8, 8), 16), torch.Generator()) for _ in range(2))
    rng = np.random.default_rng(0)
    rows, labels, index = (
        rng.standard_normal((20, 64), np.float32),
        rng.integers(0, 10, 20),
        rng.integers(0, 20, (3, 16)),
    )
    network.train(rows, labels, index, np.full(3, 16), 1.0, np.full(3, 1e-3), 0.0)
    known = list(run_program.signatures)
    again.train(np.asfortranarray(rows), labels, np.asfortranarray(index), np.full(3, 16), 1.0, np.full(3, 1e-3), 0.0)
    assert run_program.signatures == known
    assert np.array_equal(network.values, again.values)


def test_sizes_that_do_not_fit_are_refused_before_any_kernel_reads_them():
    for layers, words in (
        ([nn.Flatten(), nn.Linear(63, 10)], "does not fit"),
        ([nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(144, 10)], "does not fit"),
        ([nn.Conv2d(1, 4, 9), nn.Flatten(), nn.Linear(4, 10)], "leaves nothing"),
    ):
        with pytest.raises(InputError, match=words):
            Blueprint(nn.Sequential(*layers), (1, 8, 8), 16)
    built = build_network("mlp", (1, 8, 8), 10, 0)
    network = CompiledNetwork(built, Blueprint(built, (1, 8, 8), 16), torch.Generator())
    with pytest.raises(ValueError, match="batches of 16"):
        network.compute_gradients(np.zeros((15, 64), np.float32), np.zeros(15, np.int64), 15, 1.0)
    with pytest.raises(ValueError, match="batches of 16"):
        network.compute_gradients(np.zeros((16, 63), np.float32), np.zeros(16, np.int64), 16, 1.0)
    rows, labels = np.zeros((20, 64), np.float32), np.zeros(20, np.int64)
    for wrong in (-1, 20):
        with pytest.raises(ValueError, match="for 20 samples"):
            network.train(rows, labels, np.full((1, 16), wrong), np.array([16]), 1.0, np.full(1, 1e-3), 0.0)
    with pytest.raises(ValueError, match="for 20 samples"):
        network.train(rows, labels[1:], np.zeros((1, 16), np.int64), np.array([16]), 1.0, np.full(1, 1e-3), 0.0)
    with pytest.raises(ValueError, match="17 samples that count in batches of 16"):
        network.compute_gradients(np.zeros((16, 64), np.float32), np.zeros(16, np.int64), 17, 1.0)
    with pytest.raises(ValueError, match="2 rates for 3 steps"):
        network.train(rows, labels, np.zeros((3, 16), np.int64), np.full(3, 16), 1.0, np.full(2, 1e-3), 0.0)
    assert [round_up(batch) for batch in (1, 16, 17, 100)] == [16, 16, 32, 112]
