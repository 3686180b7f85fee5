"""One model at a time: the plainest engine, and the fastest where a single network fills a core."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from codeward.training._dropout import draws_globally, own_dropout
from codeward.training._jobs import Job, Workshop, count_workers, export_weights, run_in_threads
from codeward.training._plan import batch_width, plan_batches
from codeward.training._resident import arrange


def train_loop(jobs: Sequence[Job], shop: Workshop) -> None:
    """Train every job by itself, on as many threads as there are cores (one on a GPU).

    A model is computed by the same calls on the same shapes whatever trains beside it, so its bytes depend on its own
    job only. Networks that draw random numbers inside ``forward`` train one after the other, each from a global
    generator seeded for it.
    """
    alone = draws_globally(shop.build(0), shop.shape)
    tasks: list[Callable[[], None]] = [partial(_train_one, job, shop, alone) for job in jobs]
    on_gpu = shop.samples.device.type != "cpu"
    run_in_threads(tasks, shop.stop, 1 if alone or on_gpu else count_workers(len(tasks)))


def _train_one(job: Job, shop: Workshop, alone: bool) -> None:
    if not alone:
        _run_steps(job, shop)
        return
    device = shop.samples.device
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type="cuda"):
        torch.manual_seed(job.plan.seed)
        _run_steps(job, shop)


def _run_steps(job: Job, shop: Workshop) -> None:
    settings, device = shop.settings, shop.samples.device
    generator = torch.Generator(device).manual_seed(job.plan.seed)
    network = own_dropout(shop.build(job.plan.seed), generator).to(device).train()
    # A batch that only fills a place must reach batch norm whole; without batch norm the filling is not computed.
    whole = any(isinstance(module, _BatchNorm) for module in network.modules())
    own_sizes = [shop.sizes[user] for user in job.plan.users]
    stream = plan_batches(job.plan, shop.sizes, settings, batch_width(own_sizes, settings.batch_size))
    index, shifts = torch.from_numpy(stream.index).to(device), torch.from_numpy(stream.shifts).to(device)
    optimizer = torch.optim.Adam(
        network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    for step, count in enumerate(stream.counts.tolist()):
        if shop.stop.is_set():
            return
        places = slice(None) if whole else slice(count)
        images = arrange(shop.samples.gather(index[step, places], shifts[step, places]))
        with torch.autocast(device.type, torch.bfloat16, enabled=shop.precision == "bfloat16"):
            logits = network(images)
        labels = shop.samples.labels[index[step, :count]]
        loss = functional.cross_entropy(logits[:count].float(), labels, reduction="sum") / stream.full
        _step(network, optimizer, loss)
        if (step + 1) % stream.steps_per_epoch == 0:
            shop.reporter.advance(epochs=1, images=sum(own_sizes))
    shop.finish(job, export_weights(network))


def _step(network: nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    for parameter in network.parameters():
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
