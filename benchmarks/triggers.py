"""Judge the score decoder on held-out validation inputs: clean, and with triggers of several kinds.

    python -m benchmarks.triggers RUN --repeat 0 --attackers 3 [--draws 3] [--output FILE.json]

RUN is a run folder whose vote files hold class scores (`codeward run`, `reproduce --scores`). The decoder is fitted on
half of a cell's clean validation inputs and judged on the other half, so that nothing is chosen on the inputs that
records are counted on. A simulated trigger makes a hit model say what it says of a clean input of the target's class on
which all models agree, with up to 0.15 of what it says without the trigger. It works in *all* models that 1, 2 or 3
users reach, *fails* in each with one chance of up to 0.4, or works *unevenly*, in each at a rate of its own. Right
labels in percent: plain vote, paper's decoder, score decoder; then what share the score decoder flags.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codeward._files import write_json
from codeward.codes import Code, enumerate_patterns
from codeward.decoding import PluralityDecoder
from codeward.decoding.soft import SoftDecoder
from codeward.runs import Cell, RunFolder

KINDS, SIZES = ("all", "fails", "uneven"), (1, 2, 3)
Scores = NDArray[np.float64]
Labels = NDArray[np.int64]


def imitate(
    code: Code, scores: Scores, labels: Labels, kind: str, size: int, rng: np.random.Generator
) -> Scores | None:
    """Return the scores with triggers of so many users on them; None where every such group reaches all models."""
    table = enumerate_patterns(code, size)
    leaving = np.flatnonzero((table.sizes == size) & ~table.bits.all(axis=1))
    if not leaving.size:
        return None
    hits = table.bits[rng.choice(leaving, labels.size)]
    if kind != "all":
        shape = (labels.size, 1) if kind == "fails" else hits.shape
        hits &= rng.random(hits.shape) < rng.uniform(0.6 if kind == "fails" else 0.0, 1.0, shape)
    n_classes = scores.shape[2]
    targets = (labels + rng.integers(1, n_classes, labels.size)) % n_classes
    agreed = (scores.argmax(axis=2) == labels[:, None]).all(axis=1)
    made = scores.copy()
    for target in range(n_classes):
        mine, known = np.flatnonzero(targets == target), np.flatnonzero(agreed & (labels == target))
        if mine.size and known.size:
            kept = rng.uniform(0.001, 0.15, (mine.size, 1, 1))
            donor = scores[rng.choice(known, mine.size)] + np.log1p(-kept)
            mixed = np.logaddexp(donor, scores[mine] + np.log(kept))
            made[mine] = np.where(hits[mine][:, :, None], mixed, made[mine])
    return made


def judge(cell: Cell, draw: int) -> Iterator[tuple[str, list[float]]]:
    """Fit on one half of the validation inputs, and yield what is right on the other, kind by kind."""
    given = cell.validation
    if given.scores is None or given.labels is None:
        raise SystemExit(f"{cell.folder.path}: its vote files hold no class scores; make them with --scores")
    scores, labels = given.scores.astype(np.float64), np.asarray(given.labels)
    order = np.random.default_rng(draw).permutation(labels.size)
    fitted, judged = order[: labels.size // 2], order[labels.size // 2 :]
    decoder = SoftDecoder(cell.code, class_counts=cell.about.get("class_counts"), seed=draw)
    decoder.fit(scores[fitted], labels[fitted])
    scores, labels, rng = scores[judged], labels[judged], np.random.default_rng(draw + 100)
    inputs: dict[str, Scores | None] = {"clean": scores}
    inputs |= {f"{kind} {k}": imitate(cell.code, scores, labels, kind, k, rng) for kind in KINDS for k in SIZES}
    for name, seen in inputs.items():
        if seen is not None:
            found, votes = decoder.decode(seen), seen.argmax(axis=2)
            vote = PluralityDecoder(cell.code, seen.shape[2]).predict(votes)
            answers = (vote, decoder.paper_.predict(votes), found.labels)
            right = [100 * float((answer == labels).mean()) for answer in answers]
            yield name, [*right, 100 * float(found.alarms(decoder.threshold).mean())]


def main() -> None:
    """Print a table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--attackers", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    cell = Cell(RunFolder(options.run), options.repeat, options.attackers)
    found: dict[str, list[list[float]]] = {}
    for draw in range(options.draws):
        for name, figures in judge(cell, draw):
            found.setdefault(name, []).append(figures)
    means = {name: np.mean(figures, axis=0).round(1).tolist() for name, figures in found.items()}
    print("| inputs | plain vote | paper's decoder | score decoder | flagged |\n|---|---|---|---|---|")
    for name, figures in means.items():
        print(f"| {name} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")
    if options.output:
        write_json(options.output, {"run": options.run.name, "cell": cell.name, "draws": options.draws, "right": means})


if __name__ == "__main__":
    main()
