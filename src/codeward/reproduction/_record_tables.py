"""Tables from records: what is there, whether the attack works, accuracy by attackers, clean inputs."""

from collections.abc import Sequence

from codeward.report import Groups, Table, TableEntry, count_attackers, make_table, share_cell
from codeward.reproduction._grid_folder import (
    OTHER,
    Grid,
    GridRun,
    GridSetting,
    Record,
    describe_setting,
    list_records,
    list_shares,
    rank_code,
)
from codeward.reproduction._studies import FIGURE5, STUDIES
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
        rows: dict[str, list[tuple[GridSetting, tuple[TableEntry, ...]]]] = {}
        folders = sorted({path.rsplit("/", 1)[0]: describe_setting(c) for path, c in plan.items()}.items())
        for folder, setting in sorted(folders, key=lambda pair: pair[1].rank):
            cells = [_count_cells(runs.get(f"{folder}/{code}"), plan.get(f"{folder}/{code}")) for code in codes]
            label = ", ".join(part for part in (setting.split, setting.attack) if part)
            rows.setdefault(setting.dataset, []).append((setting, (TableEntry(label), *cells)))
        tables.append(
            Table(
                f"there-{study}",
                "Other runs" if study == OTHER else STUDIES[study].title,
                "Cells there of cells planned.",
                "data set",
                ("setting", *codes),
                tuple((dataset, tuple(row for _, row in found)) for dataset, found in rows.items()),
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
    return Table(
        "weakest",
        "The weakest attack of every run",
        "Votes for the target of models that learned from an attacker, on triggered inputs with another label: the "
        f"lowest share of all repeats and numbers of attackers. Marked: under {WEAK:.0%}.",
        "data set",
        ("setting", *codes),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
        quiet=True,
    )


def tabulate_success(grid: Grid) -> Table:
    """Say whether the trigger works at all: target votes of hit and of clean models."""
    sizes = [size for size in grid.sizes if size]
    groups: Groups = {}
    for run in grid.pick(attack=None):
        cells = [
            share_cell([g["success"][kind] for g in _list_groups(run, size)], WEAK if kind == "hit_models" else 0)
            for kind in ("hit_models", "clean_models")
            for size in sizes
        ]
        if any(cell.value for cell in cells):
            groups.setdefault(run.setting.name, []).append((TableEntry(run.code_name), *cells))
    return Table(
        "success",
        "Whether the trigger works",
        "Votes for the target on triggered inputs whose label is another, of sub-models that learned from an attacker "
        f"(hit) and of the others (clean), by number of attackers. Marked: under {WEAK:.0%} in some repeat, so that "
        "little was defended against.",
        "setting",
        ("code", *(f"hit, {size}" for size in sizes), *(f"clean, {size}" for size in sizes)),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
        folded=True,
    )


def tabulate_figure5(grid: Grid) -> list[Table]:
    """Give the accuracy of every line of Figure 5, and of what the paper does not draw, on all inputs and on others."""
    codes = list(dict.fromkeys(code for code, _, _ in FIGURE5))
    drawn = {(code, decoder) for code, decoder, _ in FIGURE5}
    runs = grid.pick(codes)
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
            Table(
                "figure5-" + kept.replace("_", "-"),
                title,
                note + " Mean ± standard deviation over repeats.",
                "setting",
                ("code and decoder", *map(count_attackers, sizes)),
                tuple((name, tuple(rows)) for name, rows in groups.items()),
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
    return Table(
        "clean",
        "Clean inputs, nobody attacks",
        "Shares of clean test inputs. Alarm: attack probability over one half.",
        "setting",
        ("code", "one sub-model right", "plurality vote right", "decoder right", "false alarms"),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
        folded=True,
    )


def tabulate_calibrated(grid: Grid) -> Table | None:
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
                share_cell([part["all"]["right"] for part in parts]),
                share_cell(known),
                share_cell(list_shares(run, size, "alarms", kept, repeats)),
                share_cell([part[kept]["alarms"] for part in parts]),
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


def _list_groups(run: GridRun, size: int) -> list[Record]:
    return [group for record in list_records(run, size) for group in record["figures"]["groups"]]


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
