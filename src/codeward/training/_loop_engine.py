"""One model at a time: the plainest engine, and the fastest where a single network fills a core."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from codeward._progress import silent
from codeward.data import Samples
from codeward.training._device_batches import (
    KEY_STEP,
    DeviceSamples,
    arrange,
    draws_globally,
    mixed_losses,
    own_dropout,
)
from codeward.training._engines import (
    Job,
    Reporter,
    TrainingContext,
    Weights,
    count_workers,
    export_weights,
    fixed_convolutions,
    run_in_threads,
)
from codeward.training._step_functions import MOMENTUM
from codeward.training._sub_models import ModelPlan, batch_width, plan_batches
from codeward.training._training_settings import TrainingSettings


def train_from(
    weights: Weights, samples: Samples, settings: TrainingSettings, seed: int, device: str = "cpu"
) -> Weights:
    """Train one model on one user's samples, from given weights on: a user's own work in a federated round.

    In float32, one batch after the other, with one thread where it is a CPU; the optimiser starts anew. On a CPU the
    result is a function of the arguments: same bytes in any process on the same kind of machine.

    Parameters
    ----------
    weights : dict of Tensor
        By the names of the network's ``state_dict``; not written to.
    samples : Samples
    settings : TrainingSettings
        Its precision is not looked at.
    seed : int
        Of batches, crops and dropout.
    device : str

    Returns
    -------
    dict of Tensor
        On the CPU.

    Examples
    --------
    >>> import numpy as np
    >>> from codeward.data import Samples
    >>> from codeward.training import TrainingSettings, build_network, train_from
    >>> samples = Samples(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 0, 1]))
    >>> settings = TrainingSettings(architecture="mlp", epochs=1, n_classes=2)
    >>> start = build_network("mlp", (1, 8, 8), 2, 0).state_dict()
    >>> list(train_from(start, samples, settings, seed=1))
    ['1.weight', '1.bias', '3.weight', '3.bias']
    """
    channels, height, width = samples.images.shape[1:]
    settings = replace(settings.for_samples(len(samples)), precision="float32")
    finished: list[Weights] = []
    context = TrainingContext(
        settings=settings,
        precision="float32",
        shape=(channels, height, width),
        sizes=[len(samples)],
        samples=DeviceSamples([samples], settings, torch.device(device)),
        reporter=Reporter(silent(), 1),
        finish=lambda _, trained: finished.append(trained),
        start=weights,
    )
    train_loop([Job(ModelPlan(users=(0,), replica=0, seed=seed), "")], context)
    return finished[0]


def train_loop(jobs: Sequence[Job], context: TrainingContext) -> None:
    """Train every job by itself, on as many threads as there are cores (one on a GPU).

    A model is computed by the same calls on the same shapes whatever trains beside it, so its bytes depend on its own
    job only. Networks that draw random numbers inside ``forward`` train one after the other, each from a global
    generator seeded for it.
    """
    alone = draws_globally(context.build(0), context.shape)
    tasks: list[Callable[[], None]] = [partial(_train_one, job, context, alone) for job in jobs]
    on_gpu = context.samples.device.type != "cpu"
    with fixed_convolutions():
        run_in_threads(tasks, context.stop, 1 if alone or on_gpu else count_workers(len(tasks)))


def _train_one(job: Job, context: TrainingContext, alone: bool) -> None:
    if not alone:
        _run_steps(job, context)
        return
    device = context.samples.device
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type="cuda"):
        torch.manual_seed(job.plan.seed)
        _run_steps(job, context)


def _run_steps(job: Job, context: TrainingContext) -> None:
    settings, device = context.settings, context.samples.device
    generator = torch.Generator(device).manual_seed(job.plan.seed)
    network = own_dropout(context.build_for(job.plan), generator).to(device).train()
    # A batch that only fills a place must reach batch norm whole; without batch norm the filling is not computed.
    whole = any(isinstance(module, _BatchNorm) for module in network.modules())
    own_sizes = [context.sizes[user] for user in job.plan.users]
    stream = plan_batches(job.plan, context.sizes, settings, batch_width(own_sizes, settings.batch_size))
    index, shifts = torch.from_numpy(stream.index).to(device), torch.from_numpy(stream.shifts).to(device)
    optimizer = _make_optimizer(network, settings)
    keys = ((job.plan.seed % 2**31 + torch.arange(len(stream)) * KEY_STEP).to(torch.int32)).to(device)
    shares = torch.from_numpy(stream.shares).to(device)
    for step, count in enumerate(stream.counts.tolist()):
        if context.stop.is_set():
            return
        places = slice(None) if whole else slice(count)
        share = shares[step] if settings.mixup else None
        picked = context.samples.pick(index[step, places])
        images = arrange(context.draw_batch(picked, shifts[step, places], keys[step], share))
        with torch.autocast(device.type, torch.bfloat16, enabled=context.precision == "bfloat16"):
            logits = network(images)
        labels = context.samples.labels[index[step, :count]]
        loss = mixed_losses(logits[:count].float(), labels, share, settings.label_smoothing).sum() / stream.full
        optimizer.param_groups[0]["lr"] = settings.rate_at(step, len(stream))
        _step(network, optimizer, loss)
        if (step + 1) % stream.steps_per_epoch == 0:
            context.reporter.advance(epochs=1, images=sum(own_sizes))
    context.finish(job, export_weights(network))


def _make_optimizer(network: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), lr=rate, weight_decay=decay, fused=True)
    return torch.optim.SGD(network.parameters(), rate, MOMENTUM, weight_decay=decay, nesterov=True)


def _step(network: nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    for parameter in network.parameters():
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
