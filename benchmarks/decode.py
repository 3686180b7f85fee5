"""Bayes decoding: speed against the printed formula in vectorised NumPy, and growth in users and attackers.

Votes are simulated: inputs differ in difficulty, so models err together and vote vectors repeat, as on real data; a
third of the inputs carries a trigger. All times are of the processor, and told as ratios within the run. Run:
``python -m benchmarks.decode [--docs DIR]`` (with ``--docs`` the page ``decode-speed.md`` is written there).
"""

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import comb
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codeward._files import write_text_atomic
from codeward.codes import Code, named_code
from codeward.decoding import BayesDecoder, estimate_confusion
from codeward.reproduction import PackedSetting

CLASSES = 10
REAL = PackedSetting(Path(__file__).parent.parent / "results" / "cifar10-iid")
INPUTS = 5_000
#: Inputs the baseline is timed on; its time is linear in their number.
BASELINE_INPUTS = 150


def decode_as_printed(
    code: Code, confusion: NDArray[np.float64], votes: NDArray[np.int64], max_attackers: int = 3
) -> list:
    """Baseline: the formula of the paper, all attacker sets, targets and labels of an input in one NumPy expression."""
    rate, success, prior = 0.5, 0.99, 1 / (max_attackers + 1)
    sets = [x for j in range(max_attackers + 1) for x in combinations(range(code.n_users), j)]
    members = np.zeros((len(sets), code.n_users), dtype=np.int64)
    for row, x in enumerate(sets):
        members[row, list(x)] = 1
    hit = (members @ code.matrix.T.astype(np.int64) > 0)[:, :, None, None]
    weight = np.array([prior / comb(code.n_users, len(x)) for x in sets])[:, None, None]
    answers = []
    for word in votes:
        clean = confusion[np.arange(code.n_models), :, word]
        delta = (word[:, None] == np.arange(CLASSES))[:, :, None]
        term = np.where(hit, success * delta + (1 - success) * clean[:, None, :], clean[:, None, :])
        p = weight * term.prod(axis=1)
        product = clean.prod(axis=0)
        attacked, not_attacked = rate * p.sum(), (1 - rate) * CLASSES * product.sum()
        label = np.argmax(rate * p.sum(axis=(0, 1)) + (1 - rate) * CLASSES * product)
        by_set = p.sum(axis=(1, 2))
        users = by_set @ members / by_set.sum()
        answers.append((label, attacked / (attacked + not_attacked), sets[int(np.argmax(by_set))], users))
    return answers


def draw_code(rng: np.random.Generator, n_models: int, n_users: int, density: float) -> Code:
    matrix = rng.random((n_models, n_users)) < density
    matrix[np.arange(n_models), rng.integers(0, n_users, n_models)] = True
    matrix[rng.integers(0, n_models, n_users), np.arange(n_users)] = True
    return Code(matrix)


def draw_votes(
    rng: np.random.Generator,
    code: Code,
    n_inputs: int,
    accuracy: float,
    triggered: float,
    max_attackers: int = 3,
    n_validation: int = INPUTS,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Votes, labels, and confusion matrices estimated on ``n_validation`` clean inputs."""

    def clean_votes(n_inputs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        labels = rng.integers(0, CLASSES, n_inputs)
        chance = rng.beta(2 * accuracy, 2 * (1 - accuracy), n_inputs)
        # Models that err on an input mostly agree on what they see instead.
        common = (labels + rng.integers(1, CLASSES, n_inputs)) % CLASSES
        own = (labels[:, None] + rng.integers(1, CLASSES, (n_inputs, code.n_models))) % CLASSES
        wrong = np.where(rng.random(own.shape) < 0.6, common[:, None], own)
        return np.where(rng.random(own.shape) < chance[:, None], labels[:, None], wrong), labels

    confusion = estimate_confusion(*clean_votes(n_validation), CLASSES)
    votes, labels = clean_votes(n_inputs)
    for row in np.flatnonzero(rng.random(n_inputs) < triggered):
        attackers = rng.choice(code.n_users, rng.integers(1, max_attackers + 1), replace=False)
        votes[row, code.pattern(attackers) & (rng.random(code.n_models) < 0.99)] = rng.integers(0, CLASSES)
    return votes, labels, confusion


def distinct_votes(rng: np.random.Generator, code: Code) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """As many votes as the others, no vector twice."""
    votes, _, confusion = draw_votes(rng, code, 12 * INPUTS, 0.87, 1 / 3)
    return rng.permutation(np.unique(votes, axis=0))[:INPUTS], confusion


def best_time(run: Callable[[], object], repeats: int = 3) -> float:
    """Least processor time of a few runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def compare(rng: np.random.Generator) -> list[str]:
    """Table of ratios at the paper's size."""
    lines = [
        "| code | votes | distinct | times faster |",
        "|---|---|---|---|",
    ]
    codes = {"paper's (c), n = 12": named_code("c"), "random, n = 16": draw_code(rng, 15, 16, 0.5)}
    for name, code in codes.items():
        realistic, _, confusion = draw_votes(rng, code, INPUTS, 0.87, 1 / 3)
        unlike, unlike_confusion = distinct_votes(rng, code)
        lines.append(race(rng, f"{name} | simulated", code, realistic, confusion))
        lines.append(race(rng, f"{name} | simulated, all distinct", code, unlike, unlike_confusion))
    for name, inputs in product(("c", "d"), ("attackers0-clean", "attackers2-triggered")):
        real = REAL.load_votes(f"{name}/votes/repeat0-{inputs}.npz")
        assert real.confusion is not None
        title = f"paper's ({name}), n = 12 | CIFAR-10, {inputs.replace('attackers', '').replace('-', ' attackers, ')}"
        lines.append(race(rng, title, REAL.load_code(name), real.votes, np.asarray(real.confusion, float)))
    return lines


def race(
    rng: np.random.Generator, title: str, code: Code, votes: NDArray[np.int64], confusion: NDArray[np.float64]
) -> str:
    """One row: both sides on the same votes, after a check that they agree."""
    sample = rng.permutation(len(votes))[:BASELINE_INPUTS]
    decoder = BayesDecoder(code, confusion)
    fast = decoder.decode(votes)  # also compiles, and builds the tables
    slow = decode_as_printed(code, confusion, votes[sample])
    assert np.allclose([a[1] for a in slow], fast.attack_probability[sample], atol=1e-9)
    assert np.allclose([a[3] for a in slow], fast.user_probability[sample], atol=1e-9)
    before = best_time(lambda: decode_as_printed(code, confusion, votes[sample]), 2) * len(votes) / BASELINE_INPUTS
    after = best_time(lambda: decoder.decode(votes), 5)
    return f"| {title} | {len(np.unique(votes, axis=0)):,} | {before / after:.0f} |"


def grow(rng: np.random.Generator) -> list[str]:
    """Table of the time an input takes over n and k, 60 models, beside that of 1,000 users and one attacker."""
    lines = [
        "| n | k | attacker sets | validation | method | time | neglected, median | 90% | labels right |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    found = []
    # Few validation inputs make unsure confusion matrices, and those a wide bound: the large cases show both.
    cases = [(n, k, INPUTS) for k in (1, 2, 3) for n in (12, 50, 200, 1000)]
    cases += [(1000, 2, 200), (200, 3, 200), (1000, 3, 200)]
    for n_users, max_attackers, n_validation in cases:
        code = draw_code(rng, 60, n_users, 0.3)
        votes, labels, confusion = draw_votes(rng, code, 200, 0.95, 1 / 3, max_attackers, n_validation)
        prior = [1 / (max_attackers + 1)] * (max_attackers + 1)
        decoder = BayesDecoder(code, confusion, attackers_prior=prior)
        decoded = decoder.decode(votes)
        seconds = best_time(lambda: decoder.decode(votes))  # noqa: B023
        n_sets = sum(comb(n_users, j) for j in range(max_attackers + 1))
        half, most = np.quantile(decoded.neglected, [0.5, 0.9])
        right = (decoded.labels == labels).mean()
        method = "exact" if decoder.is_exact else "pruned"
        found.append((n_users, max_attackers, f"{n_sets:,}", f"{n_validation:,}", method, seconds, half, most, right))
    unit = next(row[5] for row in found if row[:2] == (1000, 1))
    for *facts, seconds, half, most, right in found:
        cells = [*facts, f"{seconds / unit:.2g}", f"{half:.2g}", f"{most:.2g}", f"{right:.1%}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, help="write decode-speed.md here")
    options = parser.parse_args(arguments)
    ratios = compare(np.random.default_rng(0))
    print("\n".join(ratios), flush=True)
    growth = grow(np.random.default_rng(1))
    print("\n".join(growth), flush=True)
    if options.docs:
        write_text_atomic(options.docs / "decode-speed.md", PAGE.format(
            inputs=INPUTS, sample=BASELINE_INPUTS, machine=platform.machine(), ratios="\n".join(ratios),
            growth="\n".join(growth),
        ))  # fmt: skip


PAGE = """# Speed of the Bayes decoder

Ratios of processor time within one run of `python -m benchmarks.decode --docs docs/development` ({machine}); seconds
depend on the machine. Simulated votes have 10 classes and inputs of differing difficulty, a third of them triggered by
up to k users; confusion matrices come from {inputs:,} clean inputs unless stated.

## Against the printed formula

The paper's formula in vectorised NumPy, all attacker sets, targets and labels of an input in one expression, timed on
{sample} inputs and scaled (it is linear in them); BayesDecoder on all {inputs:,}. k <= 3, 15 models (code d: 6);
CIFAR-10 votes are those of `results/cifar10-iid`. Both agree to 1e-9, asserted in the run.

{ratios}

## Growth

60 models, random codes of density 0.3, 200 vote vectors. Up to 50,000 attacker sets all are enumerated; beyond, sets of
provably small mass are left out, and the bound on their share of the posterior is returned ("neglected"). Near 1 it
proves nothing about the rest: a few models dissent, or very many are hit, and a great many sets explain the votes
almost equally well. `BayesDecoder(budget=...)` and more models narrow it; few validation inputs widen it (last rows).
The time of an input is told beside that of 1,000 users with one attacker.

{growth}

Files may be larger than memory: `codeward decode` reads them in parts and decodes a vote vector once, however often it
comes.
"""

if __name__ == "__main__":
    main()
