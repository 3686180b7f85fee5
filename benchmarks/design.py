"""Models of the paper's construction, of the designer, and the lower bound, over a grid of sizes; guarantee *correct*.

    python benchmarks/design.py --time-limit 3 --table docs/design-table.md --records design-cells.jsonl

Every cell asks for BCC(k, r, n) with r = ceil(utilization * n). The paper's side is column duplication, repaired.
The search is ended by work, not by the clock, so that the table is the same on every machine.
With ``--records`` finished cells are kept in that file and not computed again, save those that the clock cut.
"""

import argparse
import json
import platform
import sys
import time
from fractions import Fraction
from math import ceil, exp, log
from pathlib import Path

import numba
import numpy
import scipy

from codeward import __version__
from codeward._files import write_text_atomic
from codeward._progress import show_progress
from codeward.codes import design, duplicated_code, models_lower_bound

ATTACKERS = (1, 2, 3)
USERS = range(8, 25)
UTILIZATIONS = tuple(Fraction(text) for text in ("1/4", "1/3", "1/2", "2/3"))


def measure_cell(n_attackers: int, n_users: int, utilization: Fraction, time_limit: float, seed: int) -> dict:
    row_weight = ceil(utilization * n_users)
    if n_users < n_attackers + row_weight:
        return {}
    paper = duplicated_code(n_users, n_attackers, row_weight)
    ours = design(
        n_users,
        n_attackers,
        row_weight,
        guarantee="correct",
        margin=1,
        time_limit=time_limit,
        seed=seed,
        reproducible=True,
    )
    return {
        "k": n_attackers,
        "n": n_users,
        "utilization": str(utilization),
        "r": row_weight,
        "paper": paper.n_models,
        "ours": ours.code.n_models,
        "bound": max(models_lower_bound(n_users, n_attackers, row_weight, "correct"), ours.models_lower_bound),
        "construction": ours.construction,
        "seconds": round(ours.seconds, 2),
        "timed_out": ours.timed_out,
        "limit": time_limit,
        "seed": seed,
    }


def collect(time_limit: float, seed: int, records: Path | None) -> list[dict]:
    """Measure all cells, or take them from ``records``."""
    known = {}
    if records is not None and records.exists():
        for line in records.read_text().splitlines():
            cell = json.loads(line)
            if not cell["timed_out"]:
                known[cell["k"], cell["n"], cell["utilization"], cell["limit"], cell["seed"]] = cell
    grid = [(k, n, share) for k in ATTACKERS for n in USERS for share in UTILIZATIONS]
    cells = []
    with show_progress("design", len(grid)) as progress:
        for k, n, share in grid:
            cell = known.get((k, n, str(share), time_limit, seed))
            if cell is None:
                cell = measure_cell(k, n, share, time_limit, seed)
                if cell and records is not None:
                    with records.open("a") as out:
                        out.write(json.dumps(cell) + "\n")
            if cell:
                cells.append(cell)
            progress.advance(1, f"k={k} n={n} utilization {share}")
    return cells


def geometric_mean(values: list[float]) -> float:
    return exp(sum(log(value) for value in values) / len(values))


def render(cells: list[dict], time_limit: float, seed: int) -> str:
    """Write the Markdown page."""
    lines = [
        "# How many models a guarantee takes",
        "",
        "How many models are needed so that the votes determine the true label when k of n users attack (guarantee",
        "*correct*, threat model deterministic)? Every model learns from at least r users, a given share of all.",
        "",
        "| column | meaning |",
        "|---|---|",
        "| paper | the paper's construction: minimal codes with repeated columns, both repairs made |",
        "| designer | what `codeward.design` finds, verified by enumeration |",
        "| bound | no code has fewer models |",
        "",
        "In short, by number of attackers (ratios are geometric means over the cells below):",
        "",
        "| k | cells | paper / designer | largest | smallest | designer / bound | at the bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for k in ATTACKERS:
        here = [cell for cell in cells if cell["k"] == k]
        gains = [cell["paper"] / cell["ours"] for cell in here]
        gaps = [cell["ours"] / cell["bound"] for cell in here]
        lines.append(
            f"| {k} | {len(here)} | {geometric_mean(gains):.3f} | {max(gains):.2f} | {min(gains):.2f} |"
            f" {geometric_mean(gaps):.3f} | {sum(gap == 1 for gap in gaps)} of {len(here)} |"
        )
    lines += [
        "",
        "Cell by cell:",
        "",
        "| k | n | utilization | r | paper | designer | bound | paper / designer | construction |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c['k']} | {c['n']} | {c['utilization']} | {c['r']} | {c['paper']} | {c['ours']} | {c['bound']} |"
        f" {c['paper'] / c['ours']:.2f} | {c['construction']} |"
        for c in cells
    ]
    versions = f"codeward {__version__}, numpy {numpy.__version__}, numba {numba.__version__}"
    seconds, cut = (sum(cell[key] for cell in cells) for key in ("seconds", "timed_out"))
    lines += [
        "",
        f"Made by `benchmarks/design.py` with {versions}, scipy {scipy.__version__},"
        f" on one process of {platform.machine()}. Each cell got the work of {time_limit:g} s"
        f" (`reproducible=True`), {seconds:.0f} s in all, seed {seed}. The clock cut {cut} of {len(cells)} cells.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds a cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=Path, help="file that keeps finished cells, to resume")
    parser.add_argument("--table", type=Path, help="write the page there instead of to the screen")
    arguments = parser.parse_args()
    start = time.monotonic()
    cells = collect(arguments.time_limit, arguments.seed, arguments.records)
    page = render(cells, arguments.time_limit, arguments.seed)
    if arguments.table:
        write_text_atomic(arguments.table, page)
    else:
        print(page)
    worse = [cell for cell in cells if cell["ours"] > cell["paper"]]
    print(
        f"{len(cells)} cells in {time.monotonic() - start:.0f} s; worse than the paper in {len(worse)}", file=sys.stderr
    )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
