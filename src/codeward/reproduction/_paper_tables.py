"""Tables from records: what is there, whether the attack works, Figure 5 in numbers, clean inputs; and Table 1."""

from collections.abc import Sequence
from statistics import fmean, stdev

from codeward._figures import show_percent
from codeward.report import Groups, Table, TableEntry, count_attackers, make_table, share_cell
from codeward.reproduction._grid_folder import (
    OTHER,
    Grid,
    GridRun,
    Record,
    describe_setting,
    list_calibrated,
    list_common,
    list_records,
    list_shares,
    list_success,
    rank_code,
)
from codeward.reproduction._studies import CONTRAST, FIGURE5, OWN_CODE, PAPER_CODE, STUDIES, TABLE1, Printed
from codeward.runs import RunConfig

#: Success in hit models under which a cell says little about a defence.
WEAK = 0.9


def tabulate_progress(grid: Grid) -> list[Table]:
    """Say for every study which cells of which codes are there; a cell is one repeat with one number of attackers."""
    runs = {run.path: run for run in grid.runs}
    tables = []
    for study, plan in grid.plans.items():
        if not plan:
            continue
        codes = list(dict.fromkeys(path.rsplit("/", 1)[1] for path in plan))
        rows: Groups = {}
        folders = sorted({path.rsplit("/", 1)[0]: describe_setting(c) for path, c in plan.items()}.items())
        for folder, setting in sorted(folders, key=lambda pair: pair[1].rank):
            cells = [_count_cells(runs.get(f"{folder}/{code}"), plan.get(f"{folder}/{code}")) for code in codes]
            label = ", ".join(part for part in (setting.split, setting.attack) if part)
            rows.setdefault(setting.dataset, []).append((TableEntry(label), *cells))
        tables.append(
            make_table(
                f"there-{study}",
                "Other runs" if study == OTHER else STUDIES[study].title,
                "Cells there of cells planned.",
                ("setting", *codes),
                rows,
                "data set",
            )
        )
    return tables


def count_progress(grid: Grid) -> tuple[int, int, int]:
    """Return cells there and cells planned, over all studies, and the cells with a study beside the record."""
    runs = {run.path: run for run in grid.runs}
    plan = {path: config for runs_of in grid.plans.values() for path, config in runs_of.items()}
    there = sum(len(find_cells(runs.get(path), config)) for path, config in plan.items())
    planned = sum(config.repeats * len(config.attack.attackers) for config in plan.values())
    return there, planned, sum(len(run.studies) for run in grid.runs)


def tabulate_weakest(grid: Grid) -> Table:
    """Give the attack of every run that worked least."""
    runs = grid.pick(attack=None)
    codes = list(dict.fromkeys(run.code_name for run in sorted(runs, key=lambda run: rank_code(run.code_name))))
    groups: Groups = {}
    for setting in sorted({run.setting for run in runs}):
        here = {run.code_name: run for run in runs if run.setting == setting}
        label = ", ".join(part for part in (setting.split, setting.attack) if part)
        cells = [_find_weakest(here[code]) if code in here else TableEntry("") for code in codes]
        if any(cell.value for cell in cells):
            groups.setdefault(setting.dataset, []).append((TableEntry(label), *cells))
    return make_table(
        "weakest",
        "The weakest attack of every run",
        "Votes for the target of models that learned from an attacker, on triggered inputs with another label: the "
        f"lowest share of all repeats and numbers of attackers. Marked: under {show_percent(WEAK)}.",
        ("setting", *codes),
        groups,
        "data set",
        quiet=True,
    )


def tabulate_success(grid: Grid) -> Table:
    """Say whether the trigger works at all: target votes of hit and of clean models."""
    sizes = [size for size in grid.sizes if size]
    groups: Groups = {}
    for run in grid.pick(attack=None):
        cells = [
            share_cell(list_success(run, size, kind), WEAK if kind == "hit_models" else 0)
            for kind in ("hit_models", "clean_models")
            for size in sizes
        ]
        if any(cell.value for cell in cells):
            groups.setdefault(run.setting.name, []).append((TableEntry(run.code_name), *cells))
    return make_table(
        "success",
        "Whether the trigger works",
        "Votes for the target on triggered inputs whose label is another, of sub-models that learned from an attacker "
        f"(hit) and of the others (clean), by number of attackers. Marked: under {show_percent(WEAK)} in some repeat, "
        "so that little was defended against.",
        ("code", *(f"hit, {size}" for size in sizes), *(f"clean, {size}" for size in sizes)),
        groups,
        folded=True,
    )


def tabulate_figure5(grid: Grid) -> list[Table]:
    """Give the accuracy of every line of Figure 5, and of what the paper does not draw, on all inputs and on others."""
    codes = list(dict.fromkeys(code for code, _, _ in FIGURE5))
    drawn = {(code, decoder) for code, decoder, _ in FIGURE5}
    runs = grid.pick_attacked(codes)
    if not runs:
        return []
    tables = []
    for kept, title, note in (
        ("all", "Accuracy by number of attackers", "0: all clean inputs; else all triggered inputs."),
        (
            "other_labels",
            "The same on inputs whose label is not the target",
            "Triggered inputs whose label is not the target.",
        ),
    ):
        sizes = [size for size in grid.sizes if size or kept == "all"]
        groups: Groups = {}
        for run in runs:
            for decoder, word in (("plurality", "vote"), ("bayes", "decoder")):
                label = f"{run.code_name}, {word}" + (
                    "" if (run.code_name, decoder) in drawn else " (not in the paper)"
                )
                cells = [share_cell(list_shares(run, size, decoder, kept)) for size in sizes]
                groups.setdefault(run.setting.name, []).append((TableEntry(label), *cells))
        tables.append(
            make_table(
                "figure5-" + kept.replace("_", "-"),
                title,
                note + " Mean ± standard deviation over repeats.",
                ("code and decoder", *map(count_attackers, sizes)),
                groups,
                folded=True,
            )
        )
    return tables


def tabulate_clean(grid: Grid) -> Table:
    """Right labels and false alarms where nobody attacks."""
    names = ("single_model", "plurality", "bayes", "alarms")
    groups: Groups = {}
    for run in grid.pick():
        clean = [record["figures"]["clean"]["all"] for record in list_records(run, 0)]
        if clean:
            cells = [share_cell([cell[name] for cell in clean]) for name in names]
            groups.setdefault(run.setting.name, []).append((TableEntry(run.code_name), *cells))
    return make_table(
        "clean",
        "Clean inputs, nobody attacks",
        "Shares of clean test inputs. Alarm: attack probability over one half.",
        ("code", "one sub-model right", "plurality vote right", "decoder right", "false alarms"),
        groups,
        folded=True,
    )


def tabulate_calibrated(grid: Grid) -> Table:
    """Right labels and alarms of the calibrated decoder, where runs have it, beside the vote and the paper's."""
    groups: Groups = {}
    for run in grid.pick():
        for size in grid.sizes:
            records = [record for record in list_records(run, size) if "decoder" in record["figures"]]
            if not records:
                continue
            own = [record["figures"]["decoder"] for record in records]
            repeats = {record["repeat"] for record in records}
            parts = [part for figures in own for part in (figures["groups"] if size else [{"all": figures["clean"]}])]
            known = [part["all"]["unreached"] for part in parts if "unreached" in part["all"]]
            kept = "other_labels" if size else "all"
            cells = [
                *(share_cell(list_shares(run, size, name, repeats=repeats)) for name in ("plurality", "bayes")),
                share_cell(list_calibrated(run, size)),
                share_cell(known),
                share_cell(list_shares(run, size, "alarms", kept, repeats)),
                share_cell(list_calibrated(run, size, "alarms", kept)),
            ]
            groups.setdefault(run.setting.name, []).append((TableEntry(f"{run.code_name}, {size}"), *cells))
    heads = ("vote right", "paper's decoder right", "calibrated right", "unreached models' vote")
    return make_table(
        "calibrated",
        "The calibrated decoder",
        "0: clean inputs, alarms are false ones (set on other clean inputs for 5%); else all triggered inputs, and "
        "alarms on those whose label is not the target. Unreached: models that no attacker feeds.",
        ("code, attackers", *heads, "paper's alarms", "calibrated alarms"),
        groups,
    )


def _find_weakest(run: GridRun) -> TableEntry:
    found = [
        (group["success"]["hit_models"], record)
        for record in run.records
        for group in record["figures"]["groups"]
        if group["success"]["hit_models"]["of"]
    ]
    if not found:
        return TableEntry("")
    share, record = min(found, key=lambda pair: pair[0]["count"] / pair[0]["of"])
    cell = share_cell([share], WEAK)
    where = f"repeat {record['repeat']}, {count_attackers(record['n_attackers'])}: {cell.counts}"
    return TableEntry(cell.value, where, cell.mark)


def find_cells(run: GridRun | None, config: RunConfig) -> Sequence[Record]:
    """Return the records that the plan asks for."""
    if run is None:
        return ()
    sizes = config.attack.attackers
    return [r for r in run.records if r["repeat"] < config.repeats and r["n_attackers"] in sizes]


def _count_cells(run: GridRun | None, config: RunConfig | None) -> TableEntry:
    if config is None:
        return TableEntry("")
    there = len(find_cells(run, config))
    planned = config.repeats * len(config.attack.attackers)
    return TableEntry(f"{there}/{planned}", mark="full" if there == planned else "partly" if there else "none")


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
    ours = round(fmean(right), 2), -round(fmean(wrong), 2)  # at the two digits that the paper prints
    good = printed is not None and ours[0] >= printed.true_positives and ours[1] >= -printed.false_positives
    spread = f"± {stdev(right):.2f} / {stdev(wrong):.2f}" if len(found) > 1 else ""
    return TableEntry(f"{fmean(right):.2f} / {fmean(wrong):.2f}", of, "good" if good else "", spread=spread)


def tabulate_headline(grid: Grid) -> Table:
    """Return the paper's Table 1 beside ours."""
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
    own_models = next((run.code.n_models for run in own.values()), None)
    own_name = OWN_CODE if own_models is None else f"{OWN_CODE} ({own_models} models)"
    ways = ("our run, paper's decoder", "paper's, somebody named", "our decoder", "5 inputs pooled")
    heads = ("attackers", "paper", *ways, f"{own_name}, our decoder", f"{own_name}, 5 inputs pooled")
    note = (
        f"{_NOTE} Somebody named: the attackers of the most probable explanation by an attack, one at least, which is "
        "what the paper's own figures seem to count (they add up to 1.00 in every cell of g). Bold: neither worse than "
        "the paper's, at the two digits it prints."
    )
    return make_table("table1-paper", "The paper's Table 1 beside ours", note, heads, groups, "code")


def tabulate_trackers(grid: Grid) -> Table:
    """Return every way to name suspects, for every code."""
    runs = [run for run in grid.pick(attack=None) if any(study.get("tracking") for study in run.studies)]
    names = [name for name in TRACKERS if any(name in s.get("tracking", {}) for run in runs for s in run.studies)]
    groups: Groups = {}
    for run in runs:
        for size in _SIZES:
            found = list_common(run, size, "tracking", names)
            cells = [tracking_cell(found[name]) for name in names]
            if any(cell.value for cell in cells):
                groups.setdefault(run.setting.name, []).append((TableEntry(f"{run.code_name}, {size}"), *cells))
    heads = ("code, attackers", *(TRACKERS[name] for name in names))
    note = f"{_NOTE} On the repeats that all of a row have."
    title = "Every code and every way to name suspects"
    return make_table("table1-all", title, note, heads, groups, folded=True)


def tabulate_contrast(grid: Grid) -> Table:
    """Return codes a to f on the task of Table 1, for contrast."""
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
    return make_table(
        "table1-contrast",
        "Codes a to f on the same task, for contrast",
        "Users named rightly / wrongly: mean ± standard deviation over the codes, of each code the mean over its "
        "repeats. These codes are not made to name anybody.",
        ("attackers", "paper", "our runs, paper's decoder", "our decoder", "5 inputs pooled"),
        groups,
        "data set",
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
    named = f"{printed.true_positives:.2f} / {printed.false_positives:.2f}"
    return TableEntry(named, spread=f"± {printed.true_spread:.2f} / {printed.false_spread:.2f}")


def _name_group(run: GridRun) -> str:
    printed = PAPER_CODE[run.code_name]
    same = run.code_name if run.code_name == printed else f"{run.code_name}, the paper's {printed}"
    if run.code_name == "h":
        same = "h, which tracks as many as the paper's h with fewer models"
    return f"{run.setting.dataset}, code {same}: {run.code.n_models} models"
