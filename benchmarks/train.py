"""Training speed on a CPU against a plain PyTorch loop and adversarial-robustness-toolbox; work saved by the store.

    python benchmarks/train.py [--only plain|art|store] [--repeats 3]

Prints one table; every ratio compares timings of this run. The sides take turns, and the least of the repeats counts,
so that other work on the machine hits both; the processor seconds beside it are what is left of a timing when the
machine is busy. For a GPU see train_gpu.py. The comparison with the toolbox needs
``pip install adversarial-robustness-toolbox``; it is skipped without.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from codeward.codes import Code, named_code
from codeward.data import Samples
from codeward.training import PRESETS, ModelStore, build_network, plan_batches, plan_models, train_ensemble


def digits() -> Samples:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.images))
    return Samples((data.images[order] * 15.9).astype(np.uint8)[:, None], data.target[order].astype(np.int64))


def split(samples: Samples, n_users: int) -> list[Samples]:
    return [samples.take(part) for part in np.array_split(np.arange(len(samples)), n_users)]


def plain_loop(users: list[Samples], code: Code, settings) -> None:
    """Train one model after the other as a first PyTorch program would, with torch's own number of threads."""
    images = torch.from_numpy(np.concatenate([user.images for user in users])).float() / 255
    images = (images - settings.mean[0]) / settings.std[0]
    labels = torch.from_numpy(np.concatenate([user.labels for user in users]))
    for plan in plan_models(code, 0):
        network = build_network(settings.architecture, tuple(images.shape[1:]), settings.n_classes, plan.seed)
        optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
        stream = plan_batches(plan, [len(user) for user in users], settings, settings.batch_size)
        for row, count in zip(torch.from_numpy(stream.index), stream.counts.tolist(), strict=True):
            optimizer.zero_grad()
            functional.cross_entropy(network(images[row[:count]]), labels[row[:count]]).backward()
            optimizer.step()


def race(sides: dict[str, tuple[int, Callable[[], object]]], repeats: int) -> dict[str, tuple[float, float]]:
    """Time jobs in turns, each with its number of torch threads; return the least wall and processor seconds."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    before = torch.get_num_threads()
    for _ in range(repeats):
        for name, (threads, job) in sides.items():
            torch.set_num_threads(threads)
            wall, used = time.perf_counter(), time.process_time()
            job()
            times[name].append((time.perf_counter() - wall, time.process_time() - used))
    torch.set_num_threads(before)
    return {name: (min(wall for wall, _ in rows), min(used for _, used in rows)) for name, rows in times.items()}


def show(title: str, results: dict[str, tuple[float, float]]) -> None:
    """Print a line a side: seconds, processor seconds, and how many times longer than the last side it took."""
    print(f"{title} (load {os.getloadavg()[0]:.1f})")
    ours = list(results.values())[-1]
    for name, (wall, used) in results.items():
        print(
            f"  {name:34} {wall:8.2f} s {wall / ours[0]:6.2f}   processor {used:8.2f} s {used / ours[1]:6.2f}",
            flush=True,
        )


def compare_with_plain(repeats: int) -> None:
    rng = np.random.default_rng(1)
    code = Code(np.array([rng.permutation(12) < 6 for _ in range(15)]))
    random28 = Samples(rng.integers(0, 256, (1536, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, 1536))
    cases = (
        ("15 digits CNNs", digits(), replace(PRESETS["digits"], epochs=2)),
        ("15 digits MLPs", digits(), replace(PRESETS["digits"], architecture="mlp", epochs=5)),
        ("15 MNIST CNNs, 128 random images a user", random28, replace(PRESETS["mnist"], epochs=1)),
    )
    threads = torch.get_num_threads()
    for name, samples, settings in cases:
        users = split(samples, 12)

        def plain(users=users, settings=settings):
            plain_loop(users, code, settings)

        def ours(users=users, settings=settings):
            train_ensemble(users, code, settings, 0, device="cpu")

        sides = {f"plain loop, {threads} threads": (threads, plain)} if threads > 1 else {}
        sides |= {"plain loop, 1 thread": (1, plain), "codeward": (1, ours)}
        show(f"{name}, 12 users, 6 in each model, {settings.epochs} epochs", race(sides, repeats))


def compare_with_toolbox(repeats: int) -> None:
    try:
        import art
        from art.estimators.classification import DeepPartitionEnsemble, PyTorchClassifier
    except ImportError:
        print("adversarial-robustness-toolbox is not installed: comparison skipped")
        return
    samples = digits().take(np.arange(1200))
    settings = replace(PRESETS["digits"], epochs=20)
    users = split(samples, 12)
    images = ((samples.images.astype(np.float32) / 255) - settings.mean[0]) / settings.std[0]
    owner = {images[i].tobytes(): user for user in range(12) for i in range(user * 100, user * 100 + 100)}

    def toolbox() -> None:
        network = build_network(settings.architecture, (1, 8, 8), 10, 0)
        classifier = PyTorchClassifier(
            network,
            torch.nn.CrossEntropyLoss(),
            (1, 8, 8),
            10,
            optimizer=torch.optim.Adam(
                network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
            ),
            device_type="cpu",
        )
        ensemble = DeepPartitionEnsemble(
            classifier, ensemble_size=12, channels_first=True, hash_function=lambda x: owner[x.tobytes()]
        )
        one_hot = np.eye(10, dtype=np.float32)[samples.labels]
        ensemble.fit(images, one_hot, batch_size=128, nb_epochs=settings.epochs)

    # Like for like: the toolbox takes one batch of 100 a model and epoch too (its batch size is an upper limit).
    code = Code(np.eye(12, dtype=bool))
    threads = torch.get_num_threads()
    sides = {f"toolbox {art.__version__}, {threads} threads": (threads, toolbox)} if threads > 1 else {}
    sides[f"toolbox {art.__version__}, 1 thread"] = (1, toolbox)
    sides["codeward"] = (1, lambda: train_ensemble(users, code, settings, 0, device="cpu"))
    title = f"12 models on 1,200 digits, one user each, {settings.epochs} epochs, DeepPartitionEnsemble of the toolbox"
    show(title, race(sides, repeats))


def count_saved_work() -> None:
    """Codes a to f of 12 users with 0 to 3 attackers on one seed: models used against models trained."""
    users = split(digits(), 12)
    settings = replace(PRESETS["digits"], architecture="mlp", epochs=1)
    used = trained = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in "abcdef":
            code = named_code(name)
            if code.n_users != 12:
                continue
            for attackers in range(4):
                # What an attacker hands in differs from its clean data; what it is does not matter to the count.
                data = [
                    user.take(np.arange(len(user))[::-1]) if i < attackers else user for i, user in enumerate(users)
                ]
                ensemble = train_ensemble(data, code, settings, 0, ModelStore(folder), "cpu")
                used += code.n_models
                trained += ensemble.trained
    print(f"named codes of 12 users, 0 to 3 attackers, one seed: {trained} models trained of {used} used")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("plain", "art", "store"))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    if options.only in (None, "plain"):
        compare_with_plain(options.repeats)
    if options.only in (None, "art"):
        compare_with_toolbox(options.repeats)
    if options.only in (None, "store"):
        count_saved_work()


if __name__ == "__main__":
    main()
