"""The paper's decoder under other rates of attack and success than the paper's."""

from html import escape
from typing import Any

from codeward.codes import inspect
from codeward.report import (
    Cell,
    Groups,
    Line,
    Marker,
    Share,
    Table,
    count_attackers,
    count_repeats,
    draw_lines,
    make_table,
    share_cell,
)
from codeward.reproduction._grid_folder import Grid, GridRun
from codeward.reproduction._panels import make_point
from codeward.reproduction._past import BESIDE
from codeward.reproduction._studies import DESIGNED

#: Colour and marker of a line by number of attackers; none: clean inputs.
_LOOKS: tuple[tuple[str, Marker], ...] = (("soft", "disc"), ("blue", "disc"), ("orange", "frame"), ("green", "square"))


def tabulate_dial(grid: Grid) -> Table | None:
    """Show what becomes of clean and of triggered inputs as the paper's decoder expects fewer attacks."""
    return _tabulate_rates(
        grid,
        grid.pick([*BESIDE, *DESIGNED]),
        "dial",
        "The attack rate as a dial",
        "The paper's decoder told that a share A of inputs is triggered (the paper: A = 0.5, S = 0.99). First the "
        "most attackers whose every attack it undoes when all models that they leave alone are right (proved with the "
        "confusion matrices of every repeat, up to 3), and the most that the code lets any decoder undo. Without "
        "attackers on clean inputs, else right labels on all triggered inputs.",
        with_kept=True,
    )


def tabulate_assumed(grid: Grid) -> Table | None:
    """Show what becomes of the paper's decoder under wrong rates of attack and success."""
    return _tabulate_rates(
        grid,
        grid.pick(attack=None),
        "assumed",
        "Wrong assumptions",
        "The paper's decoder told that a share A of inputs is triggered and that hit models obey with probability S "
        "(the paper: A = 0.5, S = 0.99). Without attackers on clean inputs, else right labels on all triggered inputs.",
    )


def draw_dial(grid: Grid) -> str:
    """Return panels of right labels against the attack rate that the decoder is told, one a code, folded."""
    rows: dict[str, str] = {}
    for run in grid.pick([*BESIDE, *DESIGNED]):
        panel = _draw_panel(run)
        if panel:
            rows[run.setting.name] = rows.get(run.setting.name, "") + panel
    if not rows:
        return ""
    words = (
        "<p>Right labels of the paper's decoder against the share A of triggered inputs that it is told: on clean "
        "inputs (dashed) and under 1, 2 and 3 attackers. To the right it raises fewer false alarms; a line that falls "
        "there is one that only a high A defends.</p>"
    )
    panels = "".join(f'<div class="panels">{row}</div>' for row in rows.values())
    return f"<details><summary>Turning the attack rate down, code by code</summary>{words}{panels}</details>"


def _draw_panel(run: GridRun) -> str:
    found: dict[int, dict[float, list[Share]]] = {}
    for study in run.studies:
        size = study["n_attackers"]
        for row in study.get("dial", []):
            share = row["right"] if size else row["clean_right"]
            found.setdefault(size, {}).setdefault(row["attack_rate"], []).append(share)
    rates = sorted({rate for shares in found.values() for rate in shares}, reverse=True)
    if len(rates) < 2:
        return ""
    lines = []
    for size, shares in sorted(found.items()):
        kind, marker = _LOOKS[min(size, len(_LOOKS) - 1)]
        name = count_attackers(size) if size else "clean inputs"
        points = tuple(
            make_point(place, shares[rate], f"{run.code_name}, {name}, A = {rate:g}")
            for place, rate in enumerate(rates)
            if rate in shares
        )
        lines.append(Line(str(size) if size else "clean", kind, not size, marker, points))
    title = f"{run.setting.name}, {run.code_name}"
    names = [f"{rate:g}" for rate in rates]
    chart = draw_lines(lines, f"Right labels by attack rate: {title}", "attack rate A", range(len(rates)), names)
    remark = count_repeats([len({study["repeat"] for study in run.studies if study.get("dial")})])
    return f"<figure><figcaption><b>{escape(title)}</b> {remark}</figcaption>{chart}</figure>"


def _tabulate_rates(
    grid: Grid, runs: list[GridRun], part: str, title: str, note: str, with_kept: bool = False
) -> Table | None:
    sizes = [size for size in grid.sizes if size]
    groups: Groups = {}
    for run in runs:
        rows = [(study["n_attackers"], row) for study in run.studies for row in study.get(part, [])]
        name = f"{run.setting.name}, code {run.code_name}"
        for rate, success in dict.fromkeys((row["attack_rate"], row["success_rate"]) for _, row in rows):
            here = [(size, r) for size, r in rows if (r["attack_rate"], r["success_rate"]) == (rate, success)]
            cells = [_show_kept(run, [row for _, row in here])] if with_kept else []
            cells += [
                share_cell([row["clean_right"] for size, row in here if size == 0]),
                share_cell([row["clean_alarms"] for size, row in here if size == 0]),
                *(share_cell([row["right"] for k, row in here if k == size and "right" in row]) for size in sizes),
            ]
            groups.setdefault(name, []).append((Cell(f"A = {rate:g}, S = {success:g}"), *cells))
    kept = ("undone if no model errs",) if with_kept else ()
    heads = ("assumed", *kept, "clean right", "false alarms", *map(count_attackers, sizes))
    return make_table(part, title, note, heads, groups, folded=True)


def _show_kept(run: GridRun, rows: list[dict[str, Any]]) -> Cell:
    """Return the attackers that are undone as long as no model errs, beside those that the code could undo."""
    kept = [row["kept"] for row in rows if "kept" in row]
    if not kept:
        return Cell("")
    told = str(min(kept)) if min(kept) == max(kept) else f"{min(kept)} to {max(kept)}"
    return Cell(told, f"code: {inspect(run.code).correct}")
