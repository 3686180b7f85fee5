"""Table 1: who was named, beside what the paper prints."""

from collections.abc import Sequence
from statistics import fmean, stdev

from codeward.report import Groups, Table, TableEntry, count_attackers
from codeward.reproduction._grid_folder import Grid, GridRun, Record, list_common
from codeward.reproduction._studies import CONTRAST, OWN_CODE, PAPER_CODE, TABLE1, Printed

#: Ways to name suspects, as studies call them, in words.
TRACKERS = {
    "bayes": "paper's decoder",
    "bayes-joint": "paper's, somebody named",
    "discounted": "our decoder",
    "soft": "score decoder, earlier",
    "pooled-2": "2 inputs pooled",
    "pooled-5": "5 inputs pooled",
    "pooled-20": "20 inputs pooled",
}
_SIZES = (1, 2, 3)
_NOTE = (
    "Users named rightly / wrongly, per triggered input whose label is not the target: mean ± standard deviation over "
    "repeats. Best: as many as attack / 0. Pooled: what the paper's decoder says of several such inputs together, for "
    "random pools. Where a cell says all labels, inputs whose label is the target count too; they show no attack. "
    "Scores: an earlier version of our decoder on class scores, which are not kept; else ours on votes."
)


def tabulate_table1(grid: Grid) -> list[Table]:
    """Return the paper's Table 1 beside ours, every way to name suspects, and codes a to f for contrast."""
    tables = [_tabulate_headline(grid), _tabulate_trackers(grid), _tabulate_contrast(grid)]
    return [table for table in tables if table is not None]


def list_tracking(run: GridRun, size: int, name: str) -> list[Record]:
    """Return one tracking figure a repeat; ``own`` is our decoder, on class scores where they were kept, else on votes.

    The paper's decoder is in the records too, there on all triggered inputs; they are taken where there are more.
    """
    if name == "own":
        scored = [{**figure, "scores": True} for figure in list_tracking(run, size, "soft")]
        return scored or list_tracking(run, size, "discounted")
    found = [s["tracking"][name] for s in run.studies if s["n_attackers"] == size and name in s.get("tracking", {})]
    if name != "bayes":
        return found
    records = [record for record in run.records if record["n_attackers"] == size]
    counted = [{**group["tracking"], "all_labels": True} for record in records for group in record["figures"]["groups"]]
    return found if len(found) >= len(counted) else counted


def tracking_cell(found: Sequence[Record], printed: Printed | None = None) -> TableEntry:
    """Return rightly and wrongly named users; ``good`` where neither is worse than what the paper prints."""
    if not found:
        return TableEntry("")
    right, wrong = ([figure[key] for figure in found] for key in ("true_positives", "false_positives"))
    counts = sorted({figure["inputs"] for figure in found})
    inputs = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    of = f"{len(found)} times {inputs}" if len(found) > 1 else f"1 time {inputs}"
    of += ", all labels" if found[0].get("all_labels") else ", scores" if found[0].get("scores") else ""
    good = printed is not None and _is_as_good(fmean(right), fmean(wrong), printed)
    spread = f"± {stdev(right):.2f} / {stdev(wrong):.2f}" if len(found) > 1 else ""
    return TableEntry(f"{fmean(right):.2f} / {fmean(wrong):.2f}", of, "good" if good else "", spread=spread)


def _is_as_good(right: float, wrong: float, printed: Printed) -> bool:
    """Compare at the two digits that the paper prints."""
    return round(right, 2) >= printed.true_positives and round(wrong, 2) <= printed.false_positives


def _tabulate_headline(grid: Grid) -> Table | None:
    runs = [run for run in grid.pick(PAPER_CODE) if run.config.split.kind == "iid"]
    own = {run.setting.dataset: run for run in grid.pick([OWN_CODE]) if run.config.split.kind == "iid"}
    groups: Groups = {}
    for run in runs:
        printed = TABLE1.get((run.config.dataset, PAPER_CODE[run.code_name]))
        for size in _SIZES:
            paper = None if printed is None else printed[size - 1]
            cells = [
                tracking_cell(list_tracking(run, size, name), paper)
                for name in ("bayes", "bayes-joint", "own", "pooled-5")
            ]
            beside = own.get(run.setting.dataset) if PAPER_CODE[run.code_name] == "h" else None
            cells += [
                TableEntry("") if beside is None else tracking_cell(list_tracking(beside, size, name), paper)
                for name in ("own", "pooled-5")
            ]
            if any(cell.value for cell in cells):
                row = (TableEntry(count_attackers(size)), _show_printed(paper), *cells)
                groups.setdefault(_name_group(run), []).append(row)
    if not groups:
        return None
    own_models = next((run.code.n_models for run in own.values()), None)
    own_name = OWN_CODE if own_models is None else f"{OWN_CODE} ({own_models} models)"
    heads = (
        "attackers",
        "paper",
        "our run, paper's decoder",
        "paper's, somebody named",
        "our decoder",
        "5 inputs pooled",
        f"{own_name}, our decoder",
        f"{own_name}, 5 inputs pooled",
    )
    note = (
        f"{_NOTE} Somebody named: the attackers of the most probable explanation by an attack, one at least, which is "
        "what the paper's own figures seem to count (they add up to 1.00 in every cell of g). Bold: neither worse than "
        "the paper's, at the two digits it prints."
    )
    return Table("table1-paper", "The paper's Table 1 beside ours", note, "code", heads, _freeze(groups))


def _tabulate_trackers(grid: Grid) -> Table | None:
    runs = [run for run in grid.pick(attack=None) if any(study.get("tracking") for study in run.studies)]
    names = [name for name in TRACKERS if any(name in s.get("tracking", {}) for run in runs for s in run.studies)]
    groups: Groups = {}
    for run in runs:
        for size in _SIZES:
            found = list_common(run, size, "tracking", names)
            cells = [tracking_cell(found[name]) for name in names]
            if any(cell.value for cell in cells):
                groups.setdefault(run.setting.name, []).append((TableEntry(f"{run.code_name}, {size}"), *cells))
    if not groups:
        return None
    heads = ("code, attackers", *(TRACKERS[name] for name in names))
    note = f"{_NOTE} On the repeats that all of a row have."
    return Table(
        "table1-all", "Every code and every way to name suspects", note, "setting", heads, _freeze(groups), True
    )


def _tabulate_contrast(grid: Grid) -> Table | None:
    runs = [run for run in grid.pick("abcdef") if run.config.split.kind == "iid"]
    groups: Groups = {}
    for dataset in dict.fromkeys(run.setting.dataset for run in runs):
        here = [run for run in runs if run.setting.dataset == dataset]
        for size in _SIZES:
            cells = [_average(here, size, name) for name in ("bayes", "own", "pooled-5")]
            if any(cell.value for cell in cells):
                right, wrong = CONTRAST[size - 1]
                row = (TableEntry(count_attackers(size)), TableEntry(f"{right:.1f} / {wrong:.1f}"), *cells)
                groups.setdefault(dataset, []).append(row)
    if not groups:
        return None
    return Table(
        "table1-contrast",
        "Codes a to f on the same task, for contrast",
        "Users named rightly / wrongly: mean ± standard deviation over the codes, of each code the mean over its "
        "repeats. These codes are not made to name anybody.",
        "data set",
        ("attackers", "paper", "our runs, paper's decoder", "our decoder", "5 inputs pooled"),
        _freeze(groups),
    )


def _average(runs: Sequence[GridRun], size: int, name: str) -> TableEntry:
    per_code = [found for run in runs if (found := list_tracking(run, size, name))]
    if not per_code:
        return TableEntry("")
    right, wrong = (
        [fmean(figure[key] for figure in found) for found in per_code] for key in ("true_positives", "false_positives")
    )
    counts = sorted({len(found) for found in per_code})
    repeats = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    spread = f"± {stdev(right):.2f} / {stdev(wrong):.2f}" if len(per_code) > 1 else ""
    of = f"{len(per_code)} codes, repeats: {repeats}"
    return TableEntry(f"{fmean(right):.2f} / {fmean(wrong):.2f}", of, spread=spread)


def _show_printed(printed: Printed | None) -> TableEntry:
    if printed is None:
        return TableEntry("")
    return TableEntry(
        f"{printed.true_positives:.2f} / {printed.false_positives:.2f}",
        spread=f"± {printed.true_spread:.2f} / {printed.false_spread:.2f}",
    )


def _name_group(run: GridRun) -> str:
    printed = PAPER_CODE[run.code_name]
    same = run.code_name if run.code_name == printed else f"{run.code_name}, the paper's {printed}"
    if run.code_name == "h":
        same = "h, which tracks as many as the paper's h with fewer models"
    return f"{run.setting.dataset}, code {same}: {run.code.n_models} models"


def _freeze(groups: Groups) -> tuple[tuple[str, tuple[tuple[TableEntry, ...], ...]], ...]:
    return tuple((name, tuple(rows)) for name, rows in groups.items())
