"""What Ray costs on one machine: its start-up, its share of a training, and the speed that the advice is made from.

    python -m benchmarks.cluster [--only start|core|race] [--repeats 3]

Prints the seconds of each part of a start-up, the multiplications a second of a core in training (the constants of
codeward.training._ray_tasks), and one digits training with and without Ray, in turns; the least of the repeats
counts.
"""

import argparse
import os
import tempfile
import time
from dataclasses import replace

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from codeward._cores import count_cores
from codeward.codes import named_code
from codeward.data import Samples, load_dataset
from codeward.training import PRESETS, Cluster, ModelStore, TrainingSettings, build_network, train_ensemble


def split_users(samples: Samples, n_users: int) -> list[Samples]:
    return [samples.take(part) for part in np.array_split(np.arange(len(samples)), n_users)]


def time_start() -> None:
    """Open a cluster, run a first training of one short model, close it."""
    begin = time.perf_counter()
    import ray  # noqa: F401

    marks = {"import": time.perf_counter() - begin}
    users = split_users(load_dataset("digits").train.take(np.arange(24)), 12)
    settings = replace(PRESETS["digits"], epochs=1)
    cluster = Cluster("local")
    for name, step in (
        ("start", cluster.open),
        ("first task (torch imported)", lambda: train_ensemble(users, named_code("d"), settings, 0, cluster=cluster)),
        ("second task", lambda: train_ensemble(users, named_code("d"), settings, 1, cluster=cluster)),
        ("stop", cluster.close),
    ):
        begin = time.perf_counter()
        step()
        marks[name] = time.perf_counter() - begin
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in marks.items())
    print(
        f"start-up on this machine: {parts}; all {sum(marks.values()):.1f} s (load {os.getloadavg()[0]:.1f})",
        flush=True,
    )


def time_core(name: str, samples: Samples, settings: TrainingSettings, repeats: int) -> None:
    """Print the forward multiplications a second that one core trains at, from processor seconds."""
    users, code = split_users(samples, 12), named_code("d")
    images = settings.epochs * sum(len(users[user]) for row in code.matrix for user in np.flatnonzero(row))
    network = build_network(settings.architecture, samples.images.shape[1:], settings.n_classes, 0).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, *samples.images.shape[1:]))
    least = np.inf
    for _ in range(repeats):
        begin = time.process_time()
        train_ensemble(users, code, settings, 0, device="cpu")
        least = min(least, time.process_time() - begin)
    rate = images * counter.get_total_flops() / 2 / least
    print(f"{name}: {images / least:,.0f} images and {rate:.1e} multiplications a processor second", flush=True)


def race(repeats: int) -> None:
    """Train the digits ensemble of the main job (code c, 20 epochs) with and without Ray, in turns."""
    users, code, settings = split_users(load_dataset("digits").train, 12), named_code("c"), PRESETS["digits"]
    best: dict[str, float] = {}
    for _ in range(repeats):
        for side, cluster in (("serial", None), ("Ray on this machine", "local")):
            with tempfile.TemporaryDirectory() as folder:
                begin = time.perf_counter()
                train_ensemble(users, code, settings, 0, ModelStore(folder), "cpu", cluster=cluster)
                seconds = time.perf_counter() - begin
                best[side] = min(best.get(side, np.inf), seconds)
                print(f"  {side}: {seconds:.1f} s (load {os.getloadavg()[0]:.1f})", flush=True)
    print(f"{code.n_models} digits models, {count_cores()} cores, least: {best}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("start", "core", "race"))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    Cluster("local").check()
    for name, value in (("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"), ("RAY_USAGE_STATS_ENABLED", "0")):
        os.environ.setdefault(name, value)  # Ray is imported here first, to be timed
    if options.only in (None, "start"):
        for _ in range(options.repeats):
            time_start()
    if options.only in (None, "core"):
        rng = np.random.default_rng(0)
        random28 = Samples(rng.integers(0, 256, (600, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, 600))
        time_core("digits CNN", load_dataset("digits").train, replace(PRESETS["digits"], epochs=2), options.repeats)
        time_core("MNIST CNN", random28, replace(PRESETS["mnist"], epochs=1), options.repeats)
    if options.only in (None, "race"):
        race(options.repeats)


if __name__ == "__main__":
    main()
