"""Training speed on a GPU: a plain PyTorch loop, codeward one model at a time, and several models side by side.

    python -m benchmarks.train_gpu [--quick] [--only NAME ...] [--device cuda] [-o FILE]

Images a second of whole trainings on random images through the public `train_ensemble`, from the difference of a long
and a short training: building, training and fetching of models count, compiling and capturing do not (they are the
same in both) and are printed beside it. ``times_plain_loop`` compares with the loop that a user would write, one model
after the other; ``times_one`` with one model at a time on our own graphed step; ``times_compiled`` with torch.compile's
kernels in place of our own, where there are any. For accuracy see accuracy_gpu.py.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest import mock

import numpy as np
import torch
from torch.nn import functional

from codeward.codes import Code, named_code
from codeward.data import Samples
from codeward.training import MODERN, PRESETS, ModelPlan, TrainingSettings, build_network, plan_models, train_ensemble


def random_users(shape: tuple[int, int, int], n_users: int, size: int) -> list[Samples]:
    rng = np.random.default_rng(0)
    return [
        Samples(rng.integers(0, 256, (size, *shape), dtype=np.uint8), rng.integers(0, 10, size)) for _ in range(n_users)
    ]


def plain_loop(samples: Samples, settings: TrainingSettings, device: str, half: bool = False, steps: int = 60) -> float:
    """Train one network as a PyTorch program does, augmentation left out; return images a second.

    In float32 as a first program would, or with ``half`` in bfloat16 and channels last, as a careful one.
    """
    shape = tuple(samples.images.shape[1:])
    network = build_network(settings.architecture, shape, settings.n_classes, 0).to(device).train()
    if half:
        network = network.to(memory_format=torch.channels_last)
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(network.parameters(), rate, weight_decay=decay)
    else:
        optimizer = torch.optim.SGD(network.parameters(), rate, 0.9, weight_decay=decay, nesterov=True)
    images, labels = (torch.from_numpy(part).to(device) for part in (samples.images, samples.labels))
    order = torch.randint(len(labels), (steps, settings.batch_size), device=device)
    for step, chosen in enumerate(order):
        if step == 5:
            _wait(device)
            start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            logits = network(images[chosen].float() / 255)
        losses = functional.cross_entropy(logits.float(), labels[chosen], label_smoothing=settings.label_smoothing)
        losses.backward()
        optimizer.step()
    _wait(device)
    return (steps - 5) * settings.batch_size / (time.perf_counter() - start)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def whole_trainings(
    users: list[Samples], plans: Sequence[ModelPlan], settings: TrainingSettings, device: str
) -> tuple[float, float, float]:
    """Train for a quarter of the epochs, twice, and for all of them.

    Returns images a second between the two lengths, and how long the rest took: the first time, where kernels may be
    compiled, and the last.
    """
    short = max(1, settings.epochs // 4)
    took, images = [], []
    for epochs in (short, short, settings.epochs):
        begin = time.perf_counter()
        train_ensemble(users, plans, replace(settings, epochs=epochs), 0, device=device)
        took.append(time.perf_counter() - begin)
        images.append(epochs * sum(_count_images(users, plan, settings) for plan in plans))
    rate = (images[2] - images[1]) / (took[2] - took[1])
    return rate, took[0] - images[0] / rate, took[2] - images[2] / rate


@contextmanager
def without_own_kernels() -> Iterator[None]:
    """Train with torch.compile's kernels: ours are for whoever finds Triton."""
    find = importlib.util.find_spec
    with mock.patch.object(
        importlib.util, "find_spec", lambda name, *more: None if name == "triton" else find(name, *more)
    ):
        yield


def _count_images(users: list[Samples], plan: ModelPlan, settings: TrainingSettings) -> int:
    """Count the images of an epoch: full batches where batches are mixed."""
    own, batch = sum(len(users[user]) for user in plan.users), settings.batch_size
    return max(1, own // batch) * batch if settings.batches == "mixed" else own


def cases(quick: bool) -> dict[str, tuple[list[Samples], Code, TrainingSettings, int]]:
    """By name: users, code, recipe, and for how many times the epochs one model alone is timed.

    The clock must see more than the spread of compiling: a single small model is trained for many times its epochs.
    """
    few = 2 if quick else 1
    colour = (3, 32, 32)
    twelfths = random_users(colour, 12, 50_000 // 12)
    n_small = 1_000 // few**2
    small = random_users(colour, n_small, 200)
    parts = random_users((1, 28, 28), n_small, 50)
    return {
        "paper": (twelfths, named_code("c"), replace(PRESETS["cifar10"], epochs=4), 4),
        "code-c": (twelfths, named_code("c"), replace(MODERN["cifar10"], epochs=40 // few), 4),
        "twelfth": (twelfths, Code(np.eye(12, dtype=bool)), replace(MODERN["cifar10"], epochs=80 // few**2), 8),
        "200-images": (small, Code(np.eye(n_small, dtype=bool)), replace(MODERN["cifar10"], epochs=120 // few), 40),
        "mnist-50": (parts, Code(np.eye(n_small, dtype=bool)), replace(MODERN["mnist"], epochs=256 // few), 60),
        "digits": (
            random_users((1, 8, 8), 12, 100),
            Code(np.eye(12, dtype=bool)),
            replace(PRESETS["digits"], epochs=8),
            8,
        ),
    }


def measure(name: str, quick: bool, device: str) -> dict[str, object]:
    users, code, settings, alone = cases(quick)[name]
    plans = plan_models(code, 0)
    own = sum(len(users[user]) for user in plans[0].users)
    settings = settings.for_samples(own)
    found: dict[str, object] = {"case": name, "models": len(plans), "epochs": settings.epochs}
    found |= {"batch": settings.batch_size, "images_each": own}
    found["plain_loop"] = round(plain_loop(users[0], settings, device))
    found["plain_bfloat16"] = round(plain_loop(users[0], settings, device, half=True))
    rate, compiling, starting = whole_trainings(users, plans, settings, device)
    one, *_ = whole_trainings(users, plans[:1], replace(settings, epochs=alone * settings.epochs), device)
    found |= {"one": round(one), "side_by_side": round(rate)}
    beside = ["plain_loop", "one"]
    if settings.optimizer == "sgd":
        with without_own_kernels():
            found["compiled"] = round(whole_trainings(users, plans, settings, device)[0])
        beside.append("compiled")
    found |= {f"times_{name}": round(rate / cast(int, found[name]), 2) for name in beside}
    return found | {"first_start_s": round(compiling, 1), "start_s": round(starting, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=("paper", "code-c", "twelfth", "200-images", "mnist-50", "digits"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    about = {"torch": torch.__version__, "device": machine}
    print(json.dumps(about), flush=True)
    rows = []
    for name in options.only or ("paper", "code-c", "twelfth", "200-images"):
        rows.append(measure(name, options.quick, options.device))
        print(json.dumps(rows[-1]), flush=True)
    if options.output:
        options.output.write_text(json.dumps(about | {"images_per_second": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
