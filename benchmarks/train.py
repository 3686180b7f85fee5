"""Training speed on a CPU against a plain PyTorch loop and adversarial-robustness-toolbox; work saved by the store.

    python benchmarks/train.py [--only plain|art|store] [--repeats 3]

Prints one table; every ratio compares two timings of this run, ours against the faster of a plain loop with torch's own
number of threads and one with a single thread. For a GPU see train_gpu.py. The comparison with the
toolbox needs ``pip install adversarial-robustness-toolbox``; it is skipped without.
"""

import argparse
import statistics
import tempfile
import time
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


def seconds(job, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare_with_plain(repeats: int) -> None:
    rng = np.random.default_rng(1)
    code = Code(np.array([rng.permutation(12) < 6 for _ in range(15)]))
    random28 = Samples(rng.integers(0, 256, (1536, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, 1536))
    cases = (
        ("15 digits CNNs", digits(), replace(PRESETS["digits"], epochs=3)),
        ("15 digits MLPs", digits(), replace(PRESETS["digits"], architecture="mlp", epochs=10)),
        ("15 MNIST CNNs, 128 random images a user", random28, replace(PRESETS["mnist"], epochs=1)),
    )
    print(f"{'seconds, 12 users, 6 in each model':42}      plain, 1 thread   codeward    ratio")
    for name, samples, settings in cases:
        users = split(samples, 12)
        times: list[list[float]] = [[], [], []]
        before = torch.get_num_threads()
        for _ in range(repeats):
            for column, threads in enumerate((before, 1)):
                torch.set_num_threads(threads)
                times[column].append(seconds(lambda u=users, s=settings: plain_loop(u, code, s), 1))
            torch.set_num_threads(before)
            times[2].append(seconds(lambda u=users, s=settings: train_ensemble(u, code, s, 0, device="cpu"), 1))
        many, one, ours = (statistics.median(column) for column in times)
        print(f"{name:42} {many:10.2f} {one:10.2f} {ours:10.2f} {min(many, one) / ours:8.2f}", flush=True)


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
            optimizer=torch.optim.Adam(network.parameters(), settings.learning_rate),
            device_type="cpu",
        )
        ensemble = DeepPartitionEnsemble(
            classifier, ensemble_size=12, channels_first=True, hash_function=lambda x: owner[x.tobytes()]
        )
        one_hot = np.eye(10, dtype=np.float32)[samples.labels]
        ensemble.fit(images, one_hot, batch_size=128, nb_epochs=settings.epochs)

    code = Code(np.eye(12, dtype=bool))
    slow = seconds(toolbox, 1)
    fast = seconds(lambda: train_ensemble(users, code, settings, 0, device="cpu"), repeats)
    print(f"12 models on 1,200 digits, one user each, {settings.epochs} epochs: DeepPartitionEnsemble of toolbox")
    print(f"{art.__version__} {slow:.2f} s, codeward {fast:.2f} s, ratio {slow / fast:.1f}", flush=True)


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
