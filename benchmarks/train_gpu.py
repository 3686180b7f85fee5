"""Training speed on a GPU: plain PyTorch loop against codeward's lanes, in one run, on random images.

    python benchmarks/train_gpu.py [--quick] [--lanes N ...]

Prints one table. ``--lanes`` times ResNet18 with these numbers of models side by side instead. For accuracy see
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
from codeward.training import _graph_engine as lanes_module
from codeward.training._device_samples import ResidentSamples
from codeward.training._jobs import Job, Reporter, Workshop


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
    samples = ResidentSamples(users, settings, torch.device("cuda"))
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


def lanes_speed(
    shape: tuple[int, int, int], settings: TrainingSettings, n_models: int, steps: int
) -> tuple[float, float]:
    """Milliseconds a model-step of the production engine, compilation and capture not counted.

    The first figure is the steady state: the time of all models less that of as many as there are lanes, which contains
    every change of model in a lane but not the preparation of the first ones. The second is all models over all time.
    """
    users = random_users(shape, 12, 1280)
    # Each model: 6 users of 10 batches; as many epochs as give the steps asked for.
    settings = replace(settings, epochs=max(1, steps // 60))
    code = Code(np.array([[(i + j) % 2 == 0 for j in range(12)] for i in range(n_models)]))
    device = torch.device("cuda")
    samples = ResidentSamples(users, settings, device)
    sizes = [len(user) for user in users]
    shop = Workshop(
        settings, "bfloat16", shape, sizes, samples, Reporter(silent(), n_models), lambda job, weights: None
    )
    jobs = [Job(plan, "") for plan in plan_models(code, 0)]
    times: dict[int, float] = {}
    drive = lanes_module._drive

    def timed(lanes, jobs, *others):
        for chosen in (jobs[: len(lanes)], jobs):
            torch.cuda.synchronize()
            start = time.perf_counter()
            drive(lanes, chosen, *others)
            torch.cuda.synchronize()
            times[len(chosen)] = time.perf_counter() - start

    lanes_module._drive = timed
    try:
        lanes_module.train_lanes(jobs, shop)
    finally:
        lanes_module._drive = drive
    (few, before), (many, after) = times.items()
    steps = settings.epochs * 60
    return (after - before) / ((many - few) * steps) * 1e3, after / (many * steps) * 1e3


def compare_lanes(numbers: Sequence[int]) -> None:
    """Print ms a model-step of ResNet18 for some numbers of lanes."""
    lanes = lanes_module.LANES_LARGE
    print("ResNet18, ms per model-step, steady state and whole run")
    try:
        for lanes_module.LANES_LARGE in numbers:
            torch.compiler.reset()
            # Models enough that no lane stands idle at the end.
            times = lanes_speed((3, 32, 32), PRESETS["cifar10"], 3 * lanes_module.LANES_LARGE, 600)
            print(f"{lanes_module.LANES_LARGE} lanes " + " ".join(f"{time:8.4f}" for time in times), flush=True)
    finally:
        lanes_module.LANES_LARGE = lanes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--lanes", type=int, nargs="+", default=[])
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    if options.lanes:
        compare_lanes(options.lanes)
        return
    print("ms per model-step, batch 128    plain fp32 loop   lanes, steady   whole run (models)   ratio")
    few = 0.2 if options.quick else 1
    rows = (("MNIST CNN", "mnist", (1, 28, 28), 60), ("ResNet18", "cifar10", (3, 32, 32), 12))
    for name, preset, shape, n_models in rows:
        settings = PRESETS[preset]
        bare = replace(settings, augmentation="none", epochs=1)
        plain = plain_loop(random_users(shape, 2, 3840), plan_models(Code([[1, 1], [1, 1]]), 0), bare, 40)
        steady, whole = lanes_speed(shape, settings, n_models, int(600 * few))
        ours = f"{steady:13.4f}   {whole:9.4f} ({n_models:6})   {plain / steady:5.1f}"
        print(f"{name:30}  {plain:15.3f}   {ours}", flush=True)


if __name__ == "__main__":
    main()
