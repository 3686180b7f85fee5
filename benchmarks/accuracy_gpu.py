"""Accuracy of the modern recipe on shares of CIFAR-10: five sizes, five models of each, the test set asked once.

    python -m benchmarks.accuracy_gpu [--sizes N ...] [--seeds N] [--held-out] [-o FILE]
    python -m benchmarks.accuracy_gpu show FILE ...

Model s of a size learns from its own draw of that many training images, with a seed of its own, through the public
`train_ensemble`; every model then says the label of every test image, once. ``--held-out`` tests on 5,000 training
images that no model learns from instead: that is for choosing recipes. Needs ``CODEWARD_DATA``; made for a GPU.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from codeward.codes import Code
from codeward.data import load_dataset
from codeward.training import MODERN, train_ensemble

#: Images of a model, and the share of the test images that it should get right.
TARGETS = {200: 0.47, 1_000: 0.69, 4_167: 0.815, 16_667: 0.905, 25_000: 0.92}


def measure(size: int, n_seeds: int, held_out: bool) -> dict[str, object]:
    pair = load_dataset("cifar10")
    train, test = pair.train, pair.test
    if held_out:
        train, test = train.take(np.arange(45_000)), train.take(np.arange(45_000, 50_000))
    users = [train.take(np.random.default_rng([size, seed]).permutation(len(train))[:size]) for seed in range(n_seeds)]
    begin = time.perf_counter()
    ensemble = train_ensemble(users, Code(np.eye(n_seeds, dtype=bool)), MODERN["cifar10"], seed=0)
    right = (ensemble.votes(test) == test.labels[:, None]).mean(0)
    found: dict[str, object] = {"images": size, "models": n_seeds, "test_images": len(test), "held_out": held_out}
    found |= {"accuracy": [round(float(share), 4) for share in right], "mean": round(float(right.mean()), 4)}
    return found | {"settings": MODERN["cifar10"].for_samples(size).to_json(), "seconds": time.perf_counter() - begin}


def show(files: Sequence[Path]) -> None:
    rows = [row for file in files for row in json.loads(file.read_text())["sizes"]]
    for row in sorted(rows, key=lambda row: row["images"]):
        error = np.std(row["accuracy"], ddof=1) / np.sqrt(row["models"])
        wanted = TARGETS.get(row["images"])
        print(
            f"{row['images']:6} images, {row['models']} models, {row['test_images']} test images: "
            f"{row['mean']:.4f} +- {error:.4f} (standard error), to reach {wanted}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=("measure", "show"), default="measure")
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.command == "show":
        show(options.files)
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about: dict[str, object] = {"dataset": "cifar10", "torch": torch.__version__, "device": device}
    rows = []
    for size in options.sizes:
        rows.append(measure(size, options.seeds, options.held_out))
        print(json.dumps(rows[-1]), flush=True)
        if options.output:
            options.output.write_text(json.dumps(about | {"sizes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
