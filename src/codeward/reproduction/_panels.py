"""Small multiples: Figure 5 as the paper draws it, designed codes, detection, attack rates, certified accuracy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from codeward.report import (
    ATTACKER_STYLES,
    Line,
    Marker,
    Panel,
    Point,
    Style,
    count_attackers,
    count_repeats,
    draw_lines,
    draw_roc,
    make_point,
)
from codeward.reproduction._grid_folder import Grid, GridRun, describe_setting, list_certified, list_shares
from codeward.reproduction._studies import FIGURE5
from codeward.reproduction._study_tables import compare_designed

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
    ("runoff", "run-off", "whatever hit models say"),
    ("consensus", "consensus decoder", "whatever hit models say"),
    ("bayes", "the paper's decoder", "hit models say the target"),
)
_DECODERS = {"plurality": "vote", "bayes": "decoder"}

#: Panels in rows.
Rows = list[list[Panel]]


def draw_figure5(grid: Grid) -> tuple[Rows, list[Style], list[str]]:
    """Return the panels of Figure 5, a row a data set, a panel a setting with records; legend; absent settings."""
    runs = grid.pick_attacked(code for code, _, _ in FIGURE5)
    rows: dict[str, list[Panel]] = {}
    for setting in sorted({run.setting for run in runs}):
        here = {run.code_name: run for run in runs if run.setting == setting}
        lines = []
        # Random codes first, so that the paper's own lie above them.
        for code, decoder, label in sorted(FIGURE5, key=lambda line: FIGURE5_STYLES[line[2]].kind == "blue"):
            if code in here:
                style = FIGURE5_STYLES[label]
                points = _make_points(here[code], decoder, f"{code}, {_DECODERS[decoder]}", grid.sizes)
                lines.append(Line(label, style.kind, style.dashed, style.marker, points))
        remark = count_repeats([len(run.repeats) for run in here.values()])
        rows.setdefault(setting.dataset, []).append(_draw_accuracy(lines, setting.name, remark, grid.sizes))
    present, there = {run.code_name for run in runs}, {run.setting.name for run in runs}
    legend = [FIGURE5_STYLES[name] for code, _, name in FIGURE5 if code in present]
    planned = sorted(
        {describe_setting(c) for c in grid.plans["figure5"].values() if max(c.attack.attackers, default=0)}
    )
    return list(rows.values()), legend, [setting.name for setting in planned if setting.name not in there]


def draw_designed(grid: Grid) -> list[Panel]:
    """Return panels that compare codes of one row weight under the paper's decoder, on the repeats they all have."""
    found = []
    for (setting, weight), (runs, repeats) in compare_designed(grid).items():
        lines = []
        seen: Counter[str] = Counter()
        for run in runs:
            look = _find_kind(run)
            marker = _MARKERS[seen[look] % len(_MARKERS)]
            seen[look] += 1
            points = _make_points(run, "bayes", f"{run.code_name}, decoder", grid.sizes, repeats)
            label = f"{run.code_name} ({run.code.n_models})"
            lines.append(Line(label, CERTIFIED_STYLES[look].kind, False, marker, points))
        if repeats:
            many = f"{weight} or more users a model, {count_repeats([len(repeats)])}"
            found.append(_draw_accuracy(lines, setting, many, grid.sizes))
    return found


def draw_detection(grid: Grid) -> tuple[list[Panel], list[Style]]:
    """Return panels of detected triggered inputs against false alarms, IID data, the paper's best codes.

    Thresholds are set on the same clean inputs; triggered inputs of the target's own class are left out.
    """
    panels, sizes = [], set()
    for run in grid.pick(("c", "h16")):
        if run.setting.split != "IID":
            continue
        curves: dict[int, list[tuple[Sequence[float], Sequence[float]]]] = {}
        for study in run.studies:
            curve = study.get("detection", {}).get("bayes", {}).get("roc")
            if curve and 0 < study["n_attackers"] < len(ATTACKER_STYLES):
                curves.setdefault(study["n_attackers"], []).append((curve["false_alarms"], curve["detected"]))
        if curves:
            sizes |= set(curves)
            name = f"{run.setting.name}, code {run.code_name}"
            chart = draw_roc(curves, f"Detection against false alarms: {name}")
            panels.append(Panel(name, count_repeats([len(found) for found in curves.values()]), chart))
    return panels, [ATTACKER_STYLES[size] for size in sorted(sizes)]


def draw_certified(grid: Grid) -> tuple[Rows, list[Style]]:
    """Return panels of certified accuracy with IID data, a row a setting and number of users; and the legend."""
    runs = [run for run in grid.pick() if any(study.get("certified") for study in run.studies)]
    runs = [run for run in runs if run.setting.split == "IID"]
    shown: Rows = []
    kinds: set[str] = set()
    for setting in sorted({run.setting for run in runs}):
        for users in sorted({run.config.users for run in runs if run.setting == setting}):
            here = [run for run in runs if (run.setting, run.config.users) == (setting, users)]
            row = []
            for certificate, title, remark in _CERTIFICATES:
                lines = _certified_lines(here, certificate)
                # One past the last k that anybody certifies: further on there is nothing to see.
                top = 1 + max((int(point.x) for line in lines for point in line.points if point.y), default=-1)
                top = min(top, max((int(point.x) for line in lines for point in line.points), default=0))
                if top > 0:
                    lines = [replace(line, points=line.points[: top + 1]) for line in lines]
                    name = f"{setting.name}, {users} users"
                    label = f"Certified accuracy: {name}, {title}"
                    row.append(Panel(name, title, draw_lines(lines, label, "attackers k", range(top + 1)), remark))
            if row:
                kinds |= {_find_kind(run) for run in here}
                shown.append(row)
    return shown, [style for kind, style in CERTIFIED_STYLES.items() if kind in kinds]


def _certified_lines(runs: Sequence[GridRun], certificate: str) -> list[Line]:
    lines = []
    seen: Counter[str] = Counter()
    for run in runs:
        look = _find_kind(run)
        style = CERTIFIED_STYLES[look]
        found = list_certified(run, certificate).items()
        points = tuple(make_point(k, shares, f"{run.code_name}, k = {k}") for k, shares in found)
        if points:
            lines.append(Line(run.code_name, style.kind, style.dashed, _MARKERS[seen[look] % len(_MARKERS)], points))
            seen[look] += 1
    return lines


def _find_kind(run: GridRun) -> str:
    return _KINDS.get(run.code_name, "own")


def _make_points(
    run: GridRun, decoder: str, name: str, sizes: Sequence[int], repeats: set[int] | None = None
) -> tuple[Point, ...]:
    """Return accuracy by number of attackers, on clean inputs at 0 and on all triggered ones after."""
    points = []
    for size in sizes:
        shares = [share for share in list_shares(run, size, decoder, repeats=repeats) if share["of"]]
        if shares:
            points.append(make_point(size, shares, f"{name}, {count_attackers(size)}"))
    return tuple(points)


def _draw_accuracy(lines: Sequence[Line], title: str, remark: str, sizes: Sequence[int]) -> Panel:
    chart = draw_lines(lines, f"Accuracy by number of attackers: {title}", "attackers", sizes)
    return Panel(title, remark, chart)
