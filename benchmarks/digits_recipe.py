"""How the recipe of digits was chosen: settings tried on training images that no model learned from.

    python -m benchmarks.digits_recipe [-o FILE]

scikit-learn's 1,258 training digits are cut into five parts, three times. Each part is judged once, by fifteen models
that learned from the others, dealt to twelve users (the code of `codeward run`). The test images are never looked at.
Prints a row a setting, means over the fifteen cases in percent with standard errors: one model on clean inputs; one
model that no attacker reaches, on inputs with the trigger; hit models that say the target there, two users attacking;
the vote of all models on clean inputs; processor seconds of training.

Then the same models on fewer samples: the mean of six draws, on 308 images that none of them learned from, by number of
epochs. About six minutes on two cores.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from codeward.attacks import draw_groups, poison_users, trigger_inputs
from codeward.codes import named_code
from codeward.data import Samples, load_dataset, split_iid
from codeward.decoding import PluralityDecoder
from codeward.training import MODERN, PRESETS, TrainingSettings, train_ensembles

PAPER = PRESETS["digits"]
MIXED = replace(PAPER, batches="mixed", batch_size=32)
SMOOTH = replace(MIXED, label_smoothing=0.3)
CYCLE = replace(SMOOTH, schedule="one-cycle", learning_rate=0.005)
SMALL = replace(CYCLE, batch_size=16, epochs=16)
CANDIDATES: dict[str, TrainingSettings] = {
    "the paper's: batches of 128 of one user": PAPER,
    "+ labels smoothed by 0.3": replace(PAPER, label_smoothing=0.3),
    "mixed batches of 64": replace(MIXED, batch_size=64),
    "mixed batches of 32": MIXED,
    "mixed batches of 16": replace(MIXED, batch_size=16),
    "32, smoothed by 0.1": replace(SMOOTH, label_smoothing=0.1),
    "32, smoothed by 0.3": SMOOTH,
    "32, smoothed by 0.5": replace(SMOOTH, label_smoothing=0.5),
    "16, smoothed by 0.3": replace(SMOOTH, batch_size=16),
    "32, smoothed by 0.3, rate 0.002": replace(SMOOTH, learning_rate=0.002),
    "32, smoothed by 0.3, rate 0.005": replace(SMOOTH, learning_rate=0.005),
    "32, smoothed by 0.3, rate 0.01": replace(SMOOTH, learning_rate=0.01),
    "32, smoothed by 0.3, decay 0.001": replace(SMOOTH, weight_decay=1e-3),
    "32, smoothed by 0.3, one cycle up to 0.005": CYCLE,
    "32, smoothed by 0.3, one cycle up to 0.01": replace(CYCLE, learning_rate=0.01),
    "16, smoothed by 0.3, one cycle up to 0.005": replace(CYCLE, batch_size=16),
    "the same, 16 epochs": SMALL,
    "the same, 16 epochs, smoothed by 0.4": MODERN["digits"],
    "the same, 16 epochs, smoothed by 0.5": replace(SMALL, label_smoothing=0.5),
    "the same, 16 epochs, up to 0.003": replace(SMALL, learning_rate=0.003),
    "the same, 16 epochs, up to 0.007": replace(SMALL, learning_rate=0.007),
    "32, smoothed by 0.3, 40 epochs": replace(SMOOTH, epochs=40),
    "32, smoothed by 0.3, three networks a model": replace(SMOOTH, committee=3),
}
N_USERS, N_CUTS, N_PARTS = 12, 3, 5
#: By samples of a model: numbers of epochs. Draws of each, and samples that at most are learned from.
SIZES = {20: (64, 128, 256), 40: (32, 64, 128), 60: (32, 64, 128), 105: (16, 32, 64), 160: (16, 32, 64),
         240: (16, 32), 315: (16, 32)}  # fmt: skip
N_DRAWS, LARGEST = 6, 950


def measure(train: Samples, cut: int, part: int, settings: TrainingSettings) -> dict[str, float]:
    """Train on all parts but one, with and without attackers, and judge on that one."""
    code, seed = named_code("btc2412"), [cut, part]
    parts = np.array_split(np.random.default_rng(cut).permutation(len(train)), N_PARTS)
    held, rest = train.take(parts[part]), train.take(np.concatenate(parts[:part] + parts[part + 1 :]))
    users = [rest.take(own) for own in split_iid(rest.labels, N_USERS, np.random.default_rng([*seed, 0]))]
    groups = draw_groups(
        n_users=N_USERS, n_attackers=2, n_groups=1, image_shape=held.images.shape[1:], n_classes=settings.n_classes,
        kind="patch", position="corner", fraction=0.5, rng=np.random.default_rng([*seed, 1]),
    )  # fmt: skip
    begin = time.process_time()
    [clean] = train_ensembles([(users, code)], settings, seed=part, device="cpu")
    used = time.process_time() - begin
    [attacked] = train_ensembles([(poison_users(users, groups, [*seed, 2]), code)], settings, seed=part, device="cpu")
    triggered, hit = trigger_inputs(held, groups[0], seed=[*seed, 3]), code.pattern(groups[0].attackers)
    votes, others = attacked.votes(triggered), triggered.labels != groups[0].target
    before = clean.votes(held)
    return {
        "clean": float((before == held.labels[:, None]).mean()),
        "unreached": float((votes[:, ~hit] == triggered.labels[:, None]).mean()),
        "works": float((votes[others][:, hit] == groups[0].target).mean()),
        "vote": float((PluralityDecoder(n_classes=10).predict(before) == held.labels).mean()),
        "seconds": used,
    }


def measure_size(train: Samples, size: int, settings: TrainingSettings) -> float:
    """Return how often one model of ``size`` samples is right on images that it did not learn from."""
    code, right = named_code("btc2412"), []
    for draw in range(N_DRAWS):
        order = np.random.default_rng(draw).permutation(len(train))
        own, held = train.take(order[: 3 * size]), train.take(order[LARGEST:])  # a third of the users feed a model
        users = [own.take(part) for part in split_iid(own.labels, N_USERS, np.random.default_rng(draw))]
        [ensemble] = train_ensembles([(users, code)], settings, seed=draw, device="cpu")
        right.append(float((ensemble.votes(held) == held.labels[:, None]).mean()))
    return round(float(np.mean(right)), 4)


def summarize(rows: list[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return mean and standard error of each figure."""
    values = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    return {
        key: [round(float(of.mean()), 4), round(float(of.std(ddof=1) / len(of) ** 0.5), 4)]
        for key, of in values.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    train = load_dataset("digits").train
    found = {}
    for name, settings in CANDIDATES.items():
        found[name] = summarize(
            [measure(train, cut, part, settings) for cut in range(N_CUTS) for part in range(N_PARTS)]
        )
        cells = [f"{key} {100 * mean:.1f} ±{100 * error:.1f}" for key, (mean, error) in found[name].items()][:-1]
        print(f"{name:45} {', '.join(cells)}, {found[name]['seconds'][0]:.2f} s", flush=True)
    sizes: dict[int, dict[str, float]] = {}
    for size, epochs in SIZES.items():
        tried = {"the paper's": PAPER} | {f"{many} epochs": replace(MODERN["digits"], epochs=many) for many in epochs}
        sizes[size] = {name: measure_size(train, size, settings) for name, settings in tried.items()}
        print(f"{size:4} samples: " + ", ".join(f"{name} {100 * right:.1f}" for name, right in sizes[size].items()))
    if options.output:
        about = {"dataset": "digits", "torch": torch.__version__, "cases": N_CUTS * N_PARTS, "settings": found}
        about |= {"draws": N_DRAWS, "sizes": sizes}
        options.output.write_text(json.dumps(about, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
