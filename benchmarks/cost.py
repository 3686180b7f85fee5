"""How the cost of a code grows: the paper's three statements, by the designer; and codes over samples at equal work.

    python -m benchmarks.cost [--only growth|samples] [--time-limit 5] [--repeats 3] [-o FILE]

``growth``: for fixed k and r/n the cost should not depend on n; for fixed k/n and r it should grow with n in a straight
line; for fixed k/n and r/n exponentially. Cost is the number of models m, and the work m r/n, data sets learned from;
beside them processor seconds of one training on digits, the least of the repeats, and what is proved of m from below.

``samples``: codes over hashed parts of the digits, all models together trained on equally many images, whatever their
number (and partitions on three times as many, as one network a part or as three); a repeat is a seed. Share of the
test digits that is right and certified against so many samples.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from codeward.codes import design
from codeward.data import load_dataset
from codeward.reproduction import SAMPLE_CODES, SampleStudy, certify_samples, vote_samples
from codeward.training import PRESETS, train_ensemble

#: n, k and r, statement by statement.
SERIES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "k = 2, r = n/2": ((6, 2, 3), (12, 2, 6), (24, 2, 12), (48, 2, 24)),
    "k = n/6, r = 2": ((12, 2, 2), (24, 4, 2), (36, 6, 2), (48, 8, 2)),
    "k = n/6, r = n/2": ((6, 1, 3), (12, 2, 6), (18, 3, 9), (24, 4, 12)),
}


def measure(time_limit: float, repeats: int) -> Iterator[dict[str, object]]:
    train = load_dataset("digits").train
    order = np.random.default_rng(0).permutation(len(train))
    for name, sizes in SERIES.items():
        for n, k, r in sizes:
            found = design(n, k, row_weight=r, margin=1, time_limit=time_limit)
            users = [train.take(part) for part in np.array_split(order, n)]
            took = []
            for seed in range(repeats):
                begin = time.process_time()
                train_ensemble(users, found.code, PRESETS["digits"], seed, device="cpu")
                took.append(time.process_time() - begin)
            models = found.code.n_models
            work = float(found.code.matrix.sum() / n)
            row: dict[str, object] = {"series": name, "n": n, "k": k, "r": r, "models": models}
            yield row | {"at_least": found.models_lower_bound, "work": round(work, 2), "seconds": round(min(took), 2)}


#: Parts, epochs of the models of a partition into them, and the numbers of samples that are shown.
PARTS, EPOCHS, SHOWN = 25, 60, (0, 1, 3, 5, 8, 10)


#: Codes, networks a model, and how often the work of a partition's single networks is done; an epoch at the least.
CASES = [(name, 1, 1) for name in SAMPLE_CODES] + [("partition", 3, 1), ("partition", 1, 3), ("partition", 3, 3)]


def compare_codes(seeds: int) -> Iterator[dict[str, object]]:
    pair = load_dataset("digits")
    for name, committee, times in CASES:
        curves: dict[str, list[list[float]]] = {}
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                study = SampleStudy(Path(folder), "digits", PARTS, name, seed, committee=committee)
                work = float((study.code.matrix.sum(axis=1) / study.code.n_users).sum())  # data sets an epoch
                epochs = max(1, round(times * EPOCHS / work / committee))
                vote_samples(study, pair, replace(PRESETS["digits"], epochs=epochs, committee=committee))
                record = certify_samples(study, ("plurality", "runoff"))
            for decoder, curve in record["certified"].items():
                held = [curve[k] / record["inputs"] if k < len(curve) else 0.0 for k in SHOWN]
                curves.setdefault(decoder, []).append(held)
        for decoder, found in curves.items():
            row: dict[str, object] = {"code": name, "models": study.code.n_models, "networks": committee}
            row |= {"work": times, "epochs": epochs, "decoder": decoder}
            means, errors = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / seeds**0.5
            yield row | {
                str(k): [round(100 * m, 1), round(100 * e, 1)] for k, m, e in zip(SHOWN, means, errors, strict=True)
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("growth", "samples"))
    parser.add_argument("--time-limit", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = []
    parts = {"growth": measure(options.time_limit, options.repeats), "samples": compare_codes(options.repeats)}
    for part in [options.only] if options.only else parts:
        for row in parts[part]:
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
