"""The parts of the GPU engine that a CPU can run: the step as a function, its optimizer, stem and dropout."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from codeward._progress import silent
from codeward.data import Overlay, Samples
from codeward.training import MODERN, PRESETS, ModelPlan
from codeward.training._device_batches import CounterDropout, DeviceSamples, draws_globally, own_dropout
from codeward.training._engines import Job, Reporter, TrainingContext
from codeward.training._graph_engine import GraphTrainer, _prepare
from codeward.training._loop_engine import train_loop
from codeward.training._step_functions import WeightGroup, differentiate, make_loss, make_update


def make_context(recipe, shape, finish, sizes=(19, 12)):
    rng = np.random.default_rng(0)
    overlay = Overlay(np.ones(shape, np.float32), (rng.random(shape) < 0.1).astype(np.float32))
    users = [
        Samples(
            rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, 10, n), (overlay,), np.zeros(n, np.int32)
        )
        for n in sizes
    ]
    samples = DeviceSamples(users, recipe, torch.device("cpu"))
    return TrainingContext(recipe, "float32", shape, sizes, samples, Reporter(silent(), 1), finish)


_OWN = {"epochs": 1, "batch_size": 8, "mean": (0.4,), "std": (0.3,)}
_MODERN = {"learning_rate": 0.1, "weight_decay": 1e-3, "cutout": 3, "mixup": 0.3, "jitter": 0.2}


@pytest.mark.parametrize(
    "recipe",
    [
        replace(PRESETS["cifar10"], architecture="digits-cnn", **_OWN),
        replace(MODERN["digits"], **_OWN),
        replace(MODERN["cifar10"], architecture="fast-small", **_OWN, **_MODERN),
        replace(MODERN["mnist"], **_OWN),
    ],
)
def test_a_lane_takes_the_steps_of_the_plain_loop(recipe):
    found = {}
    context = make_context(recipe.for_samples(31), (1, 8, 8), lambda job, weights: found.update(weights))
    job = Job(ModelPlan((0, 1), 0, 123), "")
    train_loop([job], context)
    start = _prepare(job, context)
    weights, stream = start.weights, start.stream
    trainer = GraphTrainer(context, len(stream), differentiate(make_loss(context)), make_update(context.settings))
    for _ in range(2):
        # Twice: loading a model must leave nothing of the one before.
        trainer.load(start)
        for _ in range(len(stream)):
            trainer.step()
        trainer.launched = len(stream)
        result = trainer.export()()
        assert list(result) == list(found)
        for name, value in found.items():
            moved = (value - weights[name]).float().abs().max()
            assert (value - result[name]).float().abs().max() <= 2e-2 * moved + 1e-5, name


def test_the_step_of_a_batch_norm_network_has_the_gradients_and_statistics_of_autograd():
    recipe = replace(PRESETS["cifar10"], epochs=1, batch_size=16, mean=(0.4,), std=(0.3,))
    context = make_context(recipe, (3, 16, 16), lambda job, weights: None)
    start = _prepare(Job(ModelPlan((0, 1), 0, 123), ""), context)
    stream = start.stream
    trainer = GraphTrainer(context, len(stream), differentiate(make_loss(context)), make_update(recipe))
    trainer.load(start)
    index, shifts = trainer.index[0], trainer.shifts[0]
    batch = context.samples.pick(index), context.samples.labels[index], shifts, trainer.counts[:1], trainer.shares[:1]
    inputs = (*batch, trainer.full, trainer.position, trainer.seed)
    running = {name: value.clone() for name, value in trainer.buffers.items()}
    loss = make_loss(context)(trainer.parameters, running, *inputs)
    grads = trainer.gradient(trainer.parameters, trainer.buffers, *inputs)

    network, row = context.build(123).train(), torch.from_numpy(stream.index[0])
    assert stream.counts[0] < 16
    logits = network(context.samples.gather(row, torch.from_numpy(stream.shifts[0])).permute(0, 3, 1, 2))
    losses = nn.functional.cross_entropy(logits, context.samples.labels[row], reduction="none")
    wanted = losses[: stream.counts[0]].sum() / stream.full
    wanted.backward()
    assert torch.allclose(loss, wanted, rtol=1e-4)
    for name, parameter in network.named_parameters():
        error = (grads[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 2e-2, name
    for name, value in trainer.buffers.items():
        assert torch.allclose(value, network.get_buffer(name), atol=1e-5), name


def test_an_exported_model_is_not_touched_by_the_next_one_and_can_be_saved():
    recipe = replace(PRESETS["cifar10"], epochs=1, batch_size=16, mean=(0.4,), std=(0.3,))
    context = make_context(recipe, (3, 16, 16), lambda job, weights: None)
    first, second = (_prepare(Job(ModelPlan((0, 1), 0, seed), ""), context) for seed in (1, 2))
    trainer = GraphTrainer(context, len(first.stream), differentiate(make_loss(context)), make_update(recipe))
    trainer.load(first)
    trainer.step()
    trainer.launched = 1
    fetch = trainer.export()
    wanted = {name: value.clone() for name, value in {**trainer.masters, **trainer.buffers}.items()}
    trainer.load(second)
    trainer.step()
    found = fetch()
    assert list(found) == list(context.build(0).state_dict())
    # safetensors refuses tensors that share memory, such as one count of batches for all batch norms.
    found = load(save(found))
    for name, value in found.items():
        assert torch.equal(value, wanted.get(name, torch.tensor(1))), name


@pytest.mark.parametrize("optimizer_name", ["adam", "sgd"])
@pytest.mark.parametrize("joined", [True, False])
def test_the_flat_optimizer_equals_torchs(joined, optimizer_name):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(4, 3, 3, 3, generator=generator).contiguous(memory_format=torch.channels_last)]
    tensors += [torch.randn(7, generator=generator), torch.randn(5, 2, generator=generator)]
    recipe = replace(PRESETS["mnist"], optimizer=optimizer_name)
    group = WeightGroup(tensors, torch.float32, joined, make_update(recipe))
    for master, tensor in zip(group.masters, tensors, strict=True):
        master.copy_(tensor)
    group.reset()
    twins = [nn.Parameter(tensor.clone()) for tensor in tensors]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    optimizer: torch.optim.Optimizer = torch.optim.Adam(twins, rate, weight_decay=decay)
    if optimizer_name == "sgd":
        optimizer = torch.optim.SGD(twins, rate, 0.9, weight_decay=decay, nesterov=True)
    for _ in range(5):
        for twin in twins:
            twin.grad = torch.randn(twin.shape, generator=generator)
        optimizer.step()
        group.step([twin.grad for twin in twins], torch.tensor([rate]))
    for twin, master, leaf in zip(twins, group.masters, group.leaves, strict=True):
        assert torch.allclose(twin, master, atol=1e-6)
        assert torch.equal(master, leaf.detach())


def test_counter_dropout_keeps_the_stated_share_and_follows_its_key_only():
    drop = CounterDropout(0.25, 1).train()
    ones = torch.ones(1000, 100)
    first, again = drop(ones), drop(ones)
    assert torch.equal(first, again)
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.01
    assert torch.allclose(first[first != 0], torch.tensor(1 / 0.75))
    drop.key.fill_(1)
    share = float(((drop(ones) == 0) == (first == 0)).float().mean())
    assert abs(share - (0.25**2 + 0.75**2)) < 0.01
    assert drop.eval()(ones) is ones


class _Restless(nn.Module):
    def forward(self, images):
        return nn.functional.dropout(images.flatten(1), 0.5, self.training)


def test_networks_that_draw_inside_forward_are_recognised():
    assert draws_globally(_Restless(), (1, 2, 2))
    assert not draws_globally(nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), (1, 2, 2))
    replaced = own_dropout(nn.Sequential(nn.Flatten(), nn.Dropout(0.5)), None)
    assert isinstance(replaced[1], CounterDropout)


def test_compiled_steps_see_no_shape_that_others_can_change():
    seen = []

    def watch(parameters, buffers, picked, *others):
        seen.append([tuple(part.shape) for part in (*picked, *others) if part is not None])
        return sum(value.sum() for value in parameters.values())

    recipe = replace(MODERN["mnist"], **_OWN)
    for steps, sizes in ((3, (19, 12)), (5_000, (19, 40))):  # a longer training beside it, and more samples of another
        context = make_context(recipe, (1, 8, 8), lambda job, weights: None, sizes)
        GraphTrainer(context, steps, differentiate(watch), make_update(recipe)).step()
    assert seen[0] == seen[1]
