"""Training speed on a GPU: plain PyTorch loop against codeward's CUDA graphs, in one run, on random images.

    python benchmarks/train_gpu.py [--quick] [--trainers N ...]

Prints one table. ``--trainers`` times ResNet18 with these numbers of models side by side instead. For accuracy see
accuracy_gpu.py.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from codeward._progress import silent
from codeward.codes import Code
from codeward.data import Samples
from codeward.training import PRESETS, ModelPlan, TrainingSettings, build_network, plan_batches, plan_models
from codeward.training import _graph_engine as engine
from codeward.training._device_samples import DeviceSamples
from codeward.training._jobs import Job, Reporter, TrainingContext


def random_users(shape: tuple[int, int, int], n_users: int, size: int) -> list[Samples]:
    rng = np.random.default_rng(0)
    return [
        Samples(rng.integers(0, 256, (size, *shape), dtype=np.uint8), rng.integers(0, 10, size)) for _ in range(n_users)
    ]


def plain_loop(
    users: list[Samples],
    plans: Sequence[ModelPlan],
    settings: TrainingSettings,
    max_steps: int | None = None,
    watch: Callable[[int, int, nn.Module], None] | None = None,
) -> float:
    """Train one model after the other in float32, as a first PyTorch program would; return ms a step.

    ``watch`` is called with the model's number, the steps taken and the network after every step.
    """
    sizes = [len(samples) for samples in users]
    samples = DeviceSamples(users, settings, torch.device("cuda"))
    steps, seconds = 0, 0.0
    for number, plan in enumerate(plans):
        network = build_network(settings.architecture, users[0].images.shape[1:], 10, plan.seed).cuda().train()
        optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
        stream = plan_batches(plan, sizes, settings, settings.batch_size)
        index, shifts = torch.from_numpy(stream.index).cuda(), torch.from_numpy(stream.shifts).cuda()
        n_steps = min(len(stream), max_steps or len(stream))
        for step, count in enumerate(stream.counts[:n_steps].tolist()):
            if step == 5:
                torch.cuda.synchronize()
                start = time.perf_counter()
            row = index[step, :count]
            batch = samples.gather(row, shifts[step, :count]).permute(0, 3, 1, 2).contiguous()
            optimizer.zero_grad()
            functional.cross_entropy(network(batch), samples.labels[row]).backward()
            optimizer.step()
            if watch is not None:
                watch(number, step + 1, network)
        torch.cuda.synchronize()
        seconds += time.perf_counter() - start
        steps += n_steps - 5
    return seconds / steps * 1e3


def graphs_speed(
    shape: tuple[int, int, int], settings: TrainingSettings, n_models: int, steps: int
) -> tuple[float, float]:
    """Milliseconds a model-step of the production engine, compilation and capture not counted.

    The first figure is the steady state: the time of all models less that of as many as there are trainers, which
    contains every change of model but not the preparation of the first ones. The second is all models over all time.
    """
    users = random_users(shape, 12, 1280)
    # Each model: 6 users of 10 batches; as many epochs as give the steps asked for.
    settings = replace(settings, epochs=max(1, steps // 60))
    code = Code(np.array([[(i + j) % 2 == 0 for j in range(12)] for i in range(n_models)]))
    device = torch.device("cuda")
    samples = DeviceSamples(users, settings, device)
    sizes = [len(user) for user in users]
    context = TrainingContext(
        settings, "bfloat16", shape, sizes, samples, Reporter(silent(), n_models), lambda job, weights: None
    )
    jobs = [Job(plan, "") for plan in plan_models(code, 0)]
    times: dict[int, float] = {}
    drive = engine._drive

    def timed(trainers, jobs, *others):
        for chosen in (jobs[: len(trainers)], jobs):
            torch.cuda.synchronize()
            start = time.perf_counter()
            drive(trainers, chosen, *others)
            torch.cuda.synchronize()
            times[len(chosen)] = time.perf_counter() - start

    engine._drive = timed
    try:
        engine.train_graphs(jobs, context)
    finally:
        engine._drive = drive
    (few, before), (many, after) = times.items()
    steps = settings.epochs * 60
    return (after - before) / ((many - few) * steps) * 1e3, after / (many * steps) * 1e3


def compare_trainers(numbers: Sequence[int]) -> None:
    """Print ms a model-step of ResNet18 for some numbers of trainers."""
    trainers = engine.TRAINERS_LARGE
    print("ResNet18, ms per model-step, steady state and whole run")
    try:
        for engine.TRAINERS_LARGE in numbers:
            torch.compiler.reset()
            # Models enough that no trainer stands idle at the end.
            times = graphs_speed((3, 32, 32), PRESETS["cifar10"], 3 * engine.TRAINERS_LARGE, 600)
            print(f"{engine.TRAINERS_LARGE} trainers " + " ".join(f"{time:8.4f}" for time in times), flush=True)
    finally:
        engine.TRAINERS_LARGE = trainers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trainers", type=int, nargs="+", default=[])
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    if options.trainers:
        compare_trainers(options.trainers)
        return
    print("ms per model-step, batch 128    plain fp32 loop   graphs, steady   whole run (models)   ratio")
    few = 0.2 if options.quick else 1
    rows = (("MNIST CNN", "mnist", (1, 28, 28), 60), ("ResNet18", "cifar10", (3, 32, 32), 12))
    for name, preset, shape, n_models in rows:
        settings = PRESETS[preset]
        bare = replace(settings, augmentation="none", epochs=1)
        plain = plain_loop(random_users(shape, 2, 3840), plan_models(Code([[1, 1], [1, 1]]), 0), bare, 40)
        steady, whole = graphs_speed(shape, settings, n_models, int(600 * few))
        ours = f"{steady:13.4f}   {whole:9.4f} ({n_models:6})   {plain / steady:5.1f}"
        print(f"{name:30}  {plain:15.3f}   {ours}", flush=True)


if __name__ == "__main__":
    main()
