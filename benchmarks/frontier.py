"""What any decoder of votes alone must lose: the least loss on the worst kind of simulated attack.

    python -m benchmarks.frontier [c d e f]

Models that nobody attacks never err. One, two or three of twelve users attack, alike often, every set of a size alike
often; a trigger works in all models that they reach, or fails in each with one chance, uniform in 0..0.4 an attack, and
in at least one. A *kind* of attack is a number of models left alone, and whether the trigger fails somewhere. On each
kind the better of the plain vote and the paper's decoder is the mark. Who answers what on which votes is a linear
program: one variable a split of the models in two camps (the chance to answer the label of the first), the largest
shortfall is minimised. Camps are all that votes show, so no decoder of votes does better.
"""

import sys
from itertools import pairwise
from math import comb
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.special import beta, betainc

from codeward.codes import Code, enumerate_patterns
from codeward.decoding import BayesDecoder
from codeward.reproduction import PackedSetting

#: Attackers at most, and models left alone of each kind: from, up to the next.
MOST, ALONE = 3, (1, 2, 3, 4, 6, 10, 100)
#: Chance of a wrong vote that the paper's decoder takes, and the least chance that a trigger works.
ERROR, WORST = 0.005, 0.6

Kinds = dict[tuple[int, str], dict[int, float]]


def list_attacks(code: Code) -> Kinds:
    """Return for every kind the models that say the target, as bits of a number, with their weights."""
    table, n = enumerate_patterns(code, MOST), code.n_users
    sets = np.array([0.0] + [1 / (MOST * comb(n, size)) for size in range(1, MOST + 1)])
    kinds: Kinds = {}
    for pattern, weight in zip(table.bits, table.counts @ sets, strict=True):
        hits = int(pattern.sum())
        if not 0 < hits < code.n_models:
            continue
        alone = max(start for start in ALONE if start <= code.n_models - hits)
        whole = sum(1 << int(model) for model in np.flatnonzero(pattern))
        works = kinds.setdefault((alone, "works"), {})
        works[whole] = works.get(whole, 0.0) + weight
        fails, part = kinds.setdefault((alone, "fails"), {}), (whole - 1) & whole
        while part:
            said = part.bit_count()
            # Mean of S^said (1 - S)^(hits - said) over S uniform in WORST..1.
            a, b = said + 1, hits - said + 1
            fails[part] = fails.get(part, 0.0) + weight * beta(a, b) * (1 - betainc(a, b, WORST)) / (1 - WORST)
            part = (part - 1) & whole
    return kinds


def find_frontier(code: Code) -> tuple[float, dict[tuple[int, str], tuple[float, float, float]]]:
    """Return the least loss on the worst kind; and of every kind the shares of vote, paper's decoder and optimum."""
    kinds, everybody = list_attacks(code), (1 << code.n_models) - 1
    camps = sorted({min(said, everybody ^ said) for attacks in kinds.values() for said in attacks})
    place = {camp: column for column, camp in enumerate(camps)}
    votes = np.array([[camp >> model & 1 for model in range(code.n_models)] for camp in camps])
    confusion = np.full((code.n_models, 10, 10), ERROR / 9)
    confusion[:, np.arange(10), np.arange(10)] = 1 - ERROR
    answers = (2 * votes.sum(axis=1) > code.n_models, BayesDecoder(code, confusion).predict(votes) == 1)
    gains, bases, marks = [], [], []
    for attacks in kinds.values():
        gain, total = np.zeros(len(camps)), sum(attacks.values())
        base = 0.0
        for said, weight in attacks.items():
            column = place[min(said, everybody ^ said)]
            wrong = said == camps[column]  # to answer the label of this camp is to answer the target
            gain[column] += weight / total * (-1 if wrong else 1)
            base += weight / total * wrong
        gains.append(gain)
        bases.append(base)
        marks.append([float(base + gain @ answer) for answer in answers])
    need = np.array(bases) - np.max(marks, axis=1)
    rows = np.hstack([-np.array(gains), -np.ones((len(kinds), 1))])
    bounds = [(0, 1)] * len(camps) + [(None, None)]
    found = linprog(np.append(np.zeros(len(camps)), 1.0), A_ub=rows, b_ub=need, bounds=bounds)
    best = np.array(bases) + np.array(gains) @ found.x[:-1]
    return max(0.0, float(found.x[-1])), {kind: (*marks[i], float(best[i])) for i, kind in enumerate(kinds)}


def main() -> None:
    setting = PackedSetting(Path("results/mnist-iid-modern"))
    upper = dict(pairwise(ALONE))
    for name in sys.argv[1:] or ("c", "d", "e", "f"):
        loss, kinds = find_frontier(setting.load_code(name))
        print(f"\n{name}: any decoder of votes loses {100 * loss:.1f} points or more on some kind")
        for (alone, trigger), shares in sorted(kinds.items()):
            shown = " ".join(f"{100 * abs(share):6.1f}" for share in shares)
            print(f"  {alone:2} to {upper[alone] - 1:2} models left alone, trigger {trigger}: {shown}")


if __name__ == "__main__":
    main()
