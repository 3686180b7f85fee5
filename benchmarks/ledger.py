"""What incidents settle together: suspects found and convictions against their number.

Real votes of real runs: ``codeward run`` on scikit-learn's digits with the paper's codes g (one attacker) and h (one
and two), half of an attacker's data poisoned. Run: ``python -m benchmarks.ledger [--runs DIR] [--docs DIR]``; run
folders are made under ``--runs`` when they are not there; with ``--docs`` the figure is written.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from codeward._files import write_atomic
from codeward.experiments import run_experiment
from codeward.runs import Cell, list_cells, load_config
from codeward.serve import make_examiner

COUNTS = (1, 2, 3, 5, 10, 20)
REPEATS = 3
#: Draws of incidents for each number of them and each run.
DRAWS = 200
RUNS = {"g": 1, "h": 2}
#: Limits whose convictions the curves show.
CURVE_ALPHAS = (0.01, 0.05)


@dataclass(frozen=True)
class Point:
    """Means over draws and repeats; convictions by alpha, as (right, wrong)."""

    incidents: int
    named_right: float
    named_wrong: float
    convicted: dict[float, tuple[float, float]]


def make_run(name: str, folder: Path) -> None:
    settings = [
        f"code.name={name}",
        "users=16",
        f"attack.attackers={list(range(RUNS[name] + 1))}",
        "attack.fraction=0.5",
        f"decoder.max_attackers={RUNS[name]}",
        f"repeats={REPEATS}",
    ]
    for _ in run_experiment(load_config(None, settings), folder):
        pass


def load_cells(runs: Path) -> dict[str, list[Cell]]:
    found = {}
    for name in RUNS:
        make_run(name, runs / f"ledger-{name}")
        found[name] = list_cells(runs / f"ledger-{name}")
    return found


def measure_curve(cells: Sequence[Cell], rng: np.random.Generator) -> list[Point]:
    """Incidents drawn from the triggered inputs of a run that raise an alarm, whatever target they point at."""
    rows: dict[int, list[list[int]]] = {count: [] for count in COUNTS}
    for cell in cells:
        examiner = make_examiner(cell)
        attackers = set(cell.record["figures"]["groups"][0]["attackers"])
        votes = cell.triggered[0].votes
        alarms = np.flatnonzero(examiner.decoder_.decode(votes).attack_probability > examiner.threshold)
        for count in COUNTS:
            for draw in range(DRAWS):
                chosen = rng.choice(alarms, count, replace=False)
                evidence = examiner.examine(votes[chosen], [f"{draw} {row}" for row in chosen]).values()
                # The target most incidents point at; the smaller class on a tie.
                main = max(evidence, key=lambda item: (item.incidents, -item.target))
                row = _count_named(set(main.suspects), attackers)
                for alpha in CURVE_ALPHAS:
                    found = [replace(item, alpha=alpha).convicted for item in evidence]
                    row += _count_named({user for users in found for user in users}, attackers)
                rows[count].append(row)
    points = []
    for count in COUNTS:
        right, wrong, *rest = np.mean(rows[count], axis=0).tolist()
        pairs = zip(rest[::2], rest[1::2], strict=True)
        points.append(Point(count, right, wrong, dict(zip(CURVE_ALPHAS, pairs, strict=True))))
    return points


def _count_named(named: set[int], attackers: set[int]) -> list[int]:
    return [len(named & attackers), len(named - attackers)]


def write_table(curves: dict[str, list[Point]]) -> str:
    lines = [
        "| run | incidents | named: right / wrong | "
        + " | ".join(f"convicted at alpha = {alpha:g}: right / wrong" for alpha in CURVE_ALPHAS)
        + " |",
        "|---|---|---|" + "---|" * len(CURVE_ALPHAS),
    ]
    for name, points in curves.items():
        for point in points:
            pairs = [(point.named_right, point.named_wrong), *point.convicted.values()]
            cells = " | ".join(f"{right:.2f} / {wrong:.2f}" for right, wrong in pairs)
            lines.append(f"| {name} | {point.incidents} | {cells} |")
    return "\n".join(lines) + "\n"


def draw_figure(curves: dict[str, list[Point]], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "codeward"
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    for place, (name, points) in enumerate(curves.items()):
        attackers = int(name.split("k = ")[1])
        counts = [point.incidents for point in points]
        named = [(point.named_right, point.named_wrong) for point in points]
        convicted = [point.convicted[0.05] for point in points]
        for axes, pairs in ((left, named), (right, convicted)):
            for column, (word, style) in enumerate((("right", "-"), ("wrong", "--"))):
                shares = [pair[column] / attackers for pair in pairs]
                label = f"{name}: {word}"
                axes.plot(counts, shares, style, label=label, color=f"C{place}", marker="os^"[place], markersize=4)
    for axes, title in ((left, "named: most probable attacker set"), (right, "convicted: alpha 5%, certainty 99%")):
        axes.set_xscale("log")
        axes.set_xticks(COUNTS, [str(count) for count in COUNTS], minor=False)
        axes.minorticks_off()
        axes.set_xlabel("incidents")
        axes.set_ylabel("users, per true attacker")
        axes.set_ylim(-0.02, 1.05)
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    right.legend(fontsize=7)
    write_atomic(path, lambda out: figure.savefig(out, format="svg", metadata={"Date": None}))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="where the run folders are, or are made")
    parser.add_argument("--docs", type=Path, help="write figures/ledger-curve.svg there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        cells = load_cells(options.runs or Path(scratch))
        rng = np.random.default_rng(0)
        curves = {}
        for name, most in RUNS.items():
            for k in range(1, most + 1):
                chosen = [cell for cell in cells[name] if cell.n_attackers == k]
                curves[f"code {name}, k = {k}"] = measure_curve(chosen, rng)
    print(write_table(curves))
    if options.docs:
        draw_figure(curves, options.docs / "figures" / "ledger-curve.svg")


if __name__ == "__main__":
    main()
