"""Which engine trains an architecture on a device: a fixed rule, so that the choice never changes a model's bytes."""

from collections.abc import Sequence

import torch
from torch import nn

from codeward._errors import InputError
from codeward.training._architectures import Shape
from codeward.training._dropout import draws_globally
from codeward.training._jobs import Job, Workshop
from codeward.training._loop import train_loop
from codeward.training._stacked import count_multiplications, is_compilable, train_stacked

ENGINES = ("auto", "loop", "stacked", "lanes")

#: Multiplications of one image's forward pass up to which the compiled layers were measured, and found faster than
#: torch's on a CPU (docs/training-speed.md).
STACKED_LIMIT = 20_000_000


def choose_engine(network: nn.Module, shape: Shape, device: torch.device, engine: str) -> str:
    """Return ``loop``, ``stacked`` or ``lanes``.

    The rule looks at the architecture and the device type only. It must not look at how many models are left to train
    or at a stopwatch: the last bits of a model depend on the engine, and a model must come out the same when the others
    are cached already. Measurements (docs/training-speed.md) are behind the rule instead.

    - GPU: ``lanes``, except for networks that draw random numbers inside ``forward`` (``loop``).
    - CPU: ``stacked`` (compiled layers) for sequential networks up to `STACKED_LIMIT`, ``loop`` for all others.
    """
    if engine not in ENGINES:
        raise InputError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    stackable = is_compilable(network)
    if engine == "stacked" and (not stackable or device.type != "cpu"):
        raise InputError("engine: stacked is for sequential networks of common layers on a CPU; use auto")
    if engine == "lanes" and device.type != "cuda":
        raise InputError("engine: lanes needs a GPU; use auto")
    if engine == "lanes" and draws_globally(network, shape):
        raise InputError("engine: this network draws random numbers inside forward; use auto or loop")
    if engine != "auto":
        return engine
    if device.type == "cuda":
        return "loop" if draws_globally(network, shape) else "lanes"
    return "stacked" if stackable and count_multiplications(network, shape) <= STACKED_LIMIT else "loop"


def run_engine(engine: str, jobs: Sequence[Job], shop: Workshop) -> None:
    """Train jobs with the engine that `choose_engine` named."""
    if engine == "lanes":
        from codeward.training._lanes import train_lanes

        train_lanes(jobs, shop)
    else:
        {"loop": train_loop, "stacked": train_stacked}[engine](jobs, shop)
