"""Small multiples: Figure 5 as the paper draws it, designed codes beside the paper's, and certified accuracy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean, stdev

from codeward.report import (
    Line,
    Marker,
    Point,
    Share,
    count_attackers,
    count_repeats,
    draw_lines,
    draw_sample,
    sum_up_shares,
)
from codeward.reproduction._accuracy import list_shares
from codeward.reproduction._grid_folder import Grid, GridRun, describe_setting
from codeward.reproduction._paper import FIGURE5
from codeward.reproduction._past import compare_designed, list_certified


@dataclass(frozen=True)
class Style:
    """How a line looks: colour by kind of code, marker by code, dashes for the plain vote."""

    kind: str
    dashed: bool
    marker: Marker
    words: str


#: Colour: kind of code. Marker: which of the two. Dashed: plurality vote; solid: decoder.
FIGURE5_STYLES = {
    "a": Style("soft", True, "disc", "a, partition into 12, vote"),
    "b": Style("soft", True, "frame", "b, partition into 6, vote"),
    "c": Style("blue", False, "disc", "c, correcting code, decoder"),
    "d": Style("blue", False, "frame", "d, correcting code, decoder"),
    "e maj": Style("orange", True, "disc", "e, random rows, vote"),
    "e dec": Style("orange", False, "disc", "e, random rows, decoder"),
    "f maj": Style("orange", True, "frame", "f, random rows, vote"),
    "f dec": Style("orange", False, "frame", "f, random rows, decoder"),
}
#: Of designed codes and certificates, by kind of code.
CERTIFIED_STYLES = {
    "partition": Style("soft", True, "disc", "partition: DPA (a, b)"),
    "paper": Style("blue", False, "disc", "the paper's codes (c, d, g, h16)"),
    "random": Style("orange", True, "disc", "random rows: bagging (e, f)"),
    "finite": Style("gold", True, "square", "Finite Aggregation (fa)"),
    "own": Style("green", False, "square", "ours: designed codes, h, btc3416"),
}
_KINDS = {"a": "partition", "b": "partition", "e": "random", "f": "random", "fa": "finite"} | dict.fromkeys(
    ("c", "d", "g", "h16"), "paper"
)
_MARKERS: tuple[Marker, ...] = ("disc", "frame", "square", "ring")
_CERTIFICATES = (
    ("plurality", "plurality vote", "whatever hit models say"),
    ("consensus", "consensus decoder", "whatever hit models say"),
    ("bayes", "the paper's decoder", "hit models say the target"),
)
_DECODERS = {"plurality": "vote", "bayes": "decoder"}


def draw_figure5(grid: Grid) -> str:
    """Return the panels of Figure 5, a row a data set, one panel a setting with records, under one legend."""
    codes = list(dict.fromkeys(code for code, _, _ in FIGURE5))
    runs = grid.pick(codes)
    if not runs:
        return ""
    rows: dict[str, str] = {}
    for setting in sorted({run.setting for run in runs}):
        here = {run.code_name: run for run in runs if run.setting == setting}
        lines = []
        # Random codes first, so that the paper's own lie above them.
        for code, decoder, label in sorted(FIGURE5, key=lambda line: FIGURE5_STYLES[line[2]].kind == "blue"):
            if code in here:
                style = FIGURE5_STYLES[label]
                points = make_points(here[code], decoder, f"{code}, {_DECODERS[decoder]}", grid.sizes)
                lines.append(Line(label, style.kind, style.dashed, style.marker, points))
        remark = count_repeats([len(run.repeats) for run in here.values()])
        panel = _write_panel(lines, setting.name, remark, grid.sizes)
        rows[setting.dataset] = rows.get(setting.dataset, "") + panel
    present = {run.code_name for run in runs}
    legend = [(FIGURE5_STYLES[name], FIGURE5_STYLES[name].words) for code, _, name in FIGURE5 if code in present]
    there = {run.setting.name for run in runs}
    planned = sorted({describe_setting(config) for config in grid.plans["figure5"].values()})
    absent = [setting.name for setting in planned if setting.name not in there]
    note = f'<p class="hint">No records yet: {escape("; ".join(absent))}.</p>' if absent else ""
    return write_legend(legend) + "".join(f'<div class="panels">{row}</div>' for row in rows.values()) + note


def draw_designed(grid: Grid) -> str:
    """Return panels that compare codes of one row weight under the paper's decoder, on the repeats they all have."""
    found = ""
    for (setting, weight), (runs, repeats) in compare_designed(grid).items():
        lines = []
        seen: Counter[str] = Counter()
        for run in runs:
            look = _find_kind(run)
            marker = _MARKERS[seen[look] % len(_MARKERS)]
            seen[look] += 1
            points = make_points(run, "bayes", f"{run.code_name}, decoder", grid.sizes, repeats)
            label = f"{run.code_name} ({run.code.n_models})"
            lines.append(Line(label, CERTIFIED_STYLES[look].kind, False, marker, points))
        if repeats:
            many = f"{weight} or more users a model, {count_repeats([len(repeats)])}"
            found += _write_panel(lines, setting, many, grid.sizes)
    return f'<div class="panels">{found}</div>' if found else ""


def draw_certified(grid: Grid) -> tuple[str, list[str]]:
    """Return panels of certified accuracy by setting, number of users and certificate, and the kinds of codes shown.

    IID settings come first; the others are folded.
    """
    runs = [run for run in grid.pick() if any(study.get("certified") for study in run.studies)]
    shown, folded = "", ""
    kinds: list[str] = []
    for setting in sorted({run.setting for run in runs}):
        for users in sorted({run.config.users for run in runs if run.setting == setting}):
            here = [run for run in runs if (run.setting, run.config.users) == (setting, users)]
            found = ""
            for kind, title, remark in _CERTIFICATES:
                lines = _certified_lines(here, kind)
                # One past the last k that anybody certifies: further on there is nothing to see.
                top = 1 + max((int(point.x) for line in lines for point in line.points if point.y), default=-1)
                top = min(top, max((int(point.x) for line in lines for point in line.points), default=0))
                lines = [replace(line, points=line.points[: top + 1]) for line in lines]
                ticks = range(top + 1)
                if len(ticks) > 1:
                    name = f"{setting.name}, {users} users"
                    chart = draw_lines(lines, f"Certified accuracy: {name}, {title}", "attackers k", ticks)
                    words = f"<b>{escape(name)}</b> {title}<br>{remark}"
                    found += f"<figure><figcaption>{words}</figcaption>{chart}</figure>"
            kinds += [_find_kind(run) for run in here if found]
            row = f'<div class="panels three">{found}</div>' if found else ""
            if setting.split == "IID":
                shown += row
            else:
                folded += row
    if folded:
        shown += f"<details><summary>Certified accuracy in other settings</summary>{folded}</details>"
    return shown, [kind for kind in CERTIFIED_STYLES if kind in kinds]


def _certified_lines(runs: Sequence[GridRun], kind: str) -> list[Line]:
    lines = []
    seen: Counter[str] = Counter()
    for run in runs:
        look = _find_kind(run)
        style = CERTIFIED_STYLES[look]
        points = tuple(
            make_point(k, shares, f"{run.code_name}, k = {k}") for k, shares in list_certified(run, kind).items()
        )
        if points:
            lines.append(Line(run.code_name, style.kind, style.dashed, _MARKERS[seen[look] % len(_MARKERS)], points))
            seen[look] += 1
    return lines


def _find_kind(run: GridRun) -> str:
    return _KINDS.get(run.code_name, "own")


def make_points(
    run: GridRun, decoder: str, name: str, sizes: Sequence[int], repeats: set[int] | None = None
) -> tuple[Point, ...]:
    """Return accuracy by number of attackers, on clean inputs at 0 and on all triggered ones after."""
    points = []
    for size in sizes:
        shares = [share for share in list_shares(run, size, decoder, repeats=repeats) if share["of"]]
        if shares:
            points.append(make_point(size, shares, f"{name}, {count_attackers(size)}"))
    return tuple(points)


def make_point(x: float, shares: Sequence[Share], name: str) -> Point:
    """Return the mean of shares with its spread; the pointer is told the counts."""
    values = [share["count"] / share["of"] for share in shares]
    value, of = sum_up_shares(shares)
    return Point(x, fmean(values), stdev(values) if len(values) > 1 else None, f"{name}: {value} ({of})")


def write_legend(entries: Sequence[tuple[Style, str]]) -> str:
    """Return samples of lines with their words."""
    items = "".join(
        f"<li>{draw_sample(style.kind, style.dashed, style.marker)}{escape(words)}</li>" for style, words in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _write_panel(lines: Sequence[Line], title: str, remark: str, sizes: Sequence[int]) -> str:
    chart = draw_lines(lines, f"Accuracy by number of attackers: {title}", "attackers", sizes)
    return f"<figure><figcaption><b>{escape(title)}</b> {escape(remark)}</figcaption>{chart}</figure>"
