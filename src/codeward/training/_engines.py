"""Which engine trains an architecture on a device: a fixed rule, so that the choice never changes a model's bytes."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from codeward._errors import InputError
from codeward.training._architectures import Shape
from codeward.training._dropout import draws_globally
from codeward.training._jobs import Job, TrainingContext
from codeward.training._training_settings import TrainingSettings

ENGINES = ("auto", "loop", "compiled", "graphs")

#: Names that engines had before; configurations may still say them, and the keys of models always do.
_FORMER_NAMES = {"compiled": "stacked", "graphs": "lanes"}

#: Multiplications of one image's forward pass up to which the compiled layers were measured, and found faster than
#: torch's on a CPU (docs/development/training-speed.md).
COMPILED_LIMIT = 20_000_000


def choose_engine(
    network: nn.Module, shape: Shape, device: torch.device, engine: str, settings: TrainingSettings
) -> str:
    """Return ``loop``, ``compiled`` or ``graphs``; former names (``stacked``, ``lanes``) are understood.

    The rule looks at the architecture, the recipe and the device type only. It must not look at how many models are
    left to train or at a stopwatch: the last bits of a model depend on the engine, and a model must come out the same
    when the others are cached already. Measurements (docs/development/training-speed.md) are behind the rule instead.

    - GPU: ``graphs`` (a CUDA graph of one step), ``loop`` for networks that draw random numbers inside ``forward``.
    - CPU: ``compiled`` for sequential networks up to `COMPILED_LIMIT` with the plain recipe, ``loop`` for all others.
    """
    engine = next((name for name, former in _FORMER_NAMES.items() if former == engine), engine)
    if engine not in ENGINES:
        raise InputError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    compilable = is_compilable(network) and settings.is_plain
    if engine == "compiled" and (not compilable or device.type != "cpu"):
        raise InputError(
            "engine: compiled is for plain sequential networks and Adam at a constant rate on a CPU; use auto"
        )
    if engine == "graphs" and device.type != "cuda":
        raise InputError("engine: graphs needs a GPU; use auto")
    if engine == "graphs" and draws_globally(network, shape):
        raise InputError("engine: this network draws random numbers inside forward; use auto or loop")
    if engine != "auto":
        return engine
    if device.type == "cuda":
        return "loop" if draws_globally(network, shape) else "graphs"
    return "compiled" if compilable and count_multiplications(network, shape) <= COMPILED_LIMIT else "loop"


def name_computation(device: str, engine: str, precision: str) -> str:
    """Name what the last bits of a model depend on, as its key does (`model_key`)."""
    return f"{device} {_FORMER_NAMES.get(engine, engine)} {precision}"


def run_engine(engine: str, jobs: Sequence[Job], context: TrainingContext) -> None:
    """Train jobs with the engine that `choose_engine` named; one call for all models of one resolved recipe."""
    # Imported here: whoever trains with torch should not have to load a compiler.
    if engine == "graphs":
        from codeward.training._graph_engine import train_graphs as train
    elif engine == "compiled":
        from codeward.training._compiled_engine import train_compiled as train
    else:
        from codeward.training._loop_engine import train_loop as train
    for settings, alike in group_by_recipe(jobs, context.sizes, context.settings).items():
        train(alike, replace(context, settings=settings))


def group_by_recipe(
    jobs: Sequence[Job], sizes: Sequence[int], settings: TrainingSettings
) -> dict[TrainingSettings, list[Job]]:
    """Sort jobs by what the recipe is for the number of their own samples, the first task's first.

    All but the epochs, which only make a model's stream longer: one engine trains models of all lengths together.
    """
    groups: dict[TrainingSettings, list[Job]] = {}
    for job in jobs:
        own = settings.for_samples(sum(sizes[user] for user in job.plan.users))
        groups.setdefault(replace(own, epochs=settings.epochs), []).append(job)
    return groups


_LAYERS = (nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.Dropout, nn.Flatten)


def is_compilable(network: nn.Module) -> bool:
    """Tell whether a network is a plain sequence of layers that `CompiledNetwork` knows, some of them with weights.

    Each layer stands once, all weights are trained, and images are flattened before the first dense layer and after the
    last convolution or pooling.
    """
    if type(network) is not nn.Sequential or not any(isinstance(layer, (nn.Conv2d, nn.Linear)) for layer in network):
        return False
    kinds = [type(layer) for layer in network]
    flat = kinds.index(nn.Flatten) if nn.Flatten in kinds else len(kinds)
    ordered = nn.Linear not in kinds[:flat] and nn.Conv2d not in kinds[flat:] and nn.MaxPool2d not in kinds[flat:]
    # Children come without repetition: a layer that stands twice would be computed once.
    distinct = len(list(network.children())) == len(kinds)
    trained = all(parameter.requires_grad for parameter in network.parameters())
    return ordered and distinct and trained and all(_is_known(layer) for layer in network)


def count_multiplications(network: nn.Module, shape: Shape) -> int:
    """Count the multiplications of one image's forward pass through a compilable network."""
    values = torch.zeros(1, *shape)
    total = 0
    with torch.no_grad():
        for layer in network.eval().children():
            values = layer(values)
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                total += layer.weight.numel() * values[0, 0].numel()
    return total


def _is_known(layer: nn.Module) -> bool:
    if type(layer) not in _LAYERS:
        return False
    if isinstance(layer, nn.Conv2d):
        plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)
    if isinstance(layer, nn.MaxPool2d):
        square = isinstance(layer.kernel_size, int) and layer.stride == layer.kernel_size
        return square and layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode
    return not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) == (1, -1)
