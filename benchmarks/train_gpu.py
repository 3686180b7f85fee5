"""Training speed on a GPU: a plain PyTorch loop, codeward's CUDA graphs one model at a time, and several side by side.

    python -m benchmarks.train_gpu [--quick] [--only NAME ...] [--trainers N ...] [-o FILE]

Images a second of whole trainings on random images: from the first step to the last model's weights on the CPU; what
comes before, compiling and capturing, is printed beside it. Every image is gathered, augmented and learned from once a
count. ``--trainers`` times other numbers of models side by side. For accuracy see accuracy_gpu.py.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from codeward._progress import silent
from codeward.codes import Code, named_code
from codeward.data import Samples
from codeward.training import MODERN, PRESETS, ModelPlan, TrainingSettings, plan_batches, plan_models
from codeward.training import _graph_engine as engine
from codeward.training._augmentation import KEY_STEP, mixed_losses
from codeward.training._device_samples import DeviceSamples
from codeward.training._engines import group_by_recipe
from codeward.training._jobs import Job, Reporter, TrainingContext


def random_users(shape: tuple[int, int, int], n_users: int, size: int) -> list[Samples]:
    rng = np.random.default_rng(0)
    return [
        Samples(rng.integers(0, 256, (size, *shape), dtype=np.uint8), rng.integers(0, 10, size)) for _ in range(n_users)
    ]


class Clock(Reporter):
    """Takes the time of what comes before the first step."""

    def begin(self) -> None:
        torch.cuda.synchronize()
        self.first_step = time.perf_counter()
        super().begin()


def make_context(users: list[Samples], settings: TrainingSettings, finish=lambda job, weights: None) -> TrainingContext:
    shape = tuple(users[0].images.shape[1:])
    samples = DeviceSamples(users, settings, torch.device("cuda"))
    sizes = [len(user) for user in users]
    return TrainingContext(settings, "bfloat16", shape, sizes, samples, Clock(silent(), 1), finish)


def plain_loop(users: list[Samples], plan: ModelPlan, settings: TrainingSettings, max_steps: int) -> float:
    """Train one model in float32, as a first PyTorch program would; return images a second."""
    context = make_context(users, settings)
    network = context.build_for(plan).cuda().train()
    if settings.optimizer == "adam":
        optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    else:
        optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=settings.weight_decay, nesterov=True)
    stream = plan_batches(plan, context.sizes, settings, settings.batch_size)
    index, shifts, shares = (torch.from_numpy(part).cuda() for part in (stream.index, stream.shifts, stream.shares))
    keys = (torch.arange(len(stream)) * KEY_STEP).to(torch.int32).cuda()
    for step in range(min(len(stream), max_steps)):
        if step == 5:
            torch.cuda.synchronize()
            start = time.perf_counter()
        share = shares[step] if settings.mixup else None
        batch = context.draw_batch(index[step], shifts[step], keys[step], share).permute(0, 3, 1, 2).contiguous()
        optimizer.zero_grad()
        labels = context.samples.labels[index[step]]
        mixed_losses(network(batch), labels, share, settings.label_smoothing).mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    return (step - 4) * settings.batch_size / (time.perf_counter() - start)


def graphs_speed(users: list[Samples], plans: Sequence[ModelPlan], settings: TrainingSettings) -> tuple[float, float]:
    """Train with the production engine; return images a second of whole trainings, and the seconds before them."""
    context = make_context(users, settings)
    jobs = [Job(plan, str(number)) for number, plan in enumerate(plans)]
    images = sum(plan_batches(plan, context.sizes, settings, settings.batch_size).counts.sum() for plan in plans)
    begin = time.perf_counter()
    engine.train_graphs(jobs, context)
    torch.cuda.synchronize()
    end = time.perf_counter()
    first = context.reporter.first_step
    return float(images / (end - first)), first - begin


def cases(quick: bool) -> dict[str, tuple[list[Samples], Code, TrainingSettings, int]]:
    """By name: users, code, recipe, and how many of its models one trainer alone is timed with."""
    few = 2 if quick else 1
    colour = (3, 32, 32)
    code = named_code("c")
    twelfths = random_users(colour, 12, 50_000 // 12)
    n_small = 1_000 // few**2
    small = random_users(colour, n_small, 200)
    return {
        "paper": (twelfths, code, replace(PRESETS["cifar10"], epochs=2), 1),
        "code-c": (twelfths, code, replace(MODERN["cifar10"], epochs=40 // few), 2),
        "twelfth": (twelfths, Code(np.eye(12, dtype=bool)), replace(MODERN["cifar10"], epochs=80 // few**2), 2),
        "200-images": (small, Code(np.eye(n_small, dtype=bool)), replace(MODERN["cifar10"], epochs=30), 20),
        "mnist-50": (
            random_users((1, 28, 28), n_small, 50),
            Code(np.eye(n_small, dtype=bool)),
            replace(MODERN["mnist"], epochs=128 // few),
            40,
        ),
    }


def measure(name: str, quick: bool, trainers: int | None) -> dict[str, object]:
    users, code, settings, alone = cases(quick)[name]
    plans = plan_models(code, 0)
    sizes = [len(user) for user in users]
    (settings,) = group_by_recipe([Job(plan, "") for plan in plans], sizes, settings)  # one recipe for all of them
    found: dict[str, object] = {"case": name, "models": len(plans), "epochs": settings.epochs}
    found |= {"batch": settings.batch_size, "images_each": sum(sizes[user] for user in plans[0].users)}
    numbers = {"one": 1} if trainers is None else {}
    before = engine.TRAINERS_TINY, engine.TRAINERS_SMALL, engine.TRAINERS_LARGE
    if trainers is None:
        found["plain_loop"] = round(plain_loop(users, plans[0], settings, 60))
    for label, number in (*numbers.items(), ("side_by_side", trainers)):
        if number is not None:
            engine.TRAINERS_TINY = engine.TRAINERS_SMALL = engine.TRAINERS_LARGE = number
        chosen = plans[:alone] if label == "one" else plans
        rate, seconds = graphs_speed(users, chosen, settings)
        found |= {label: round(rate), f"{label}_start_s": round(seconds, 1)}
        engine.TRAINERS_TINY, engine.TRAINERS_SMALL, engine.TRAINERS_LARGE = before
    return found | {"trainers": trainers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=("paper", "code-c", "twelfth", "200-images", "mnist-50"))
    parser.add_argument("--trainers", type=int, nargs="+", default=[None])
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    print(json.dumps(about), flush=True)
    rows = []
    for name in options.only or ("paper", "code-c", "twelfth", "200-images"):
        for trainers in options.trainers:
            rows.append(measure(name, options.quick, trainers))
            print(json.dumps(rows[-1]), flush=True)
    if options.output:
        options.output.write_text(json.dumps(about | {"images_per_second": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
