"""ROC curves of detection as small multiples, one panel a code, one line a number of attackers."""

from html import escape
from statistics import fmean, stdev

from codeward.report import Line, Point, count_attackers, count_repeats, draw_lines
from codeward.reproduction._grid_folder import Grid, GridRun
from codeward.reproduction._panels import Style, write_legend

#: False alarms in percent: further right there is nothing to choose from.
_TICKS = (0, 5, 10, 15, 20)
_STYLES: dict[int, Style] = {
    1: Style("blue", False, "disc", "1 attacker"),
    2: Style("orange", False, "frame", "2 attackers"),
    3: Style("green", False, "square", "3 attackers"),
}
#: The decoder whose attack probabilities are ranked.
_DECODER = "bayes"


def draw_roc(grid: Grid) -> str:
    """Return panels of detected triggered inputs against false alarms, for every code whose studies have the curve.

    Thresholds are set on the same clean inputs; triggered inputs of the target's own class are left out.
    """
    panels, sizes = "", set()
    for run in grid.pick():
        lines = []
        for size, style in _STYLES.items():
            points = _list_points(run, size)
            if points:
                lines.append(Line(str(size), style.kind, style.dashed, style.marker, points))
                sizes.add(size)
        if lines:
            name = f"{run.setting.name}, code {run.code_name}"
            chart = draw_lines(lines, f"Detection against false alarms: {name}", "false alarms, %", _TICKS)
            remark = count_repeats([_count(run, size) for size in sizes if _count(run, size)])
            panels += f"<figure><figcaption><b>{escape(name)}</b> {escape(remark)}</figcaption>{chart}</figure>"
    if not panels:
        return ""
    legend = write_legend([(_STYLES[size], _STYLES[size].words) for size in sorted(sizes)])
    return f'<details><summary>Detection: ROC curves</summary>{legend}<div class="panels">{panels}</div></details>'


def _curves(run: GridRun, size: int) -> list[tuple[list[float], list[float]]]:
    found = [
        study["detection"][_DECODER].get("roc")
        for study in run.studies
        if study["n_attackers"] == size and _DECODER in study.get("detection", {})
    ]
    return [(curve["false_alarms"], curve["detected"]) for curve in found if curve]


def _count(run: GridRun, size: int) -> int:
    return len(_curves(run, size))


def _list_points(run: GridRun, size: int) -> tuple[Point, ...]:
    curves = _curves(run, size)
    points = []
    for place, rate in enumerate(curves[0][0] if curves else ()):
        if 100 * rate <= _TICKS[-1]:
            values = [detected[place] for _, detected in curves]
            told = (
                f"{count_attackers(size)}: {fmean(values):.1%} found at {rate:.1%} false alarms, {len(values)} repeats"
            )
            points.append(Point(100 * rate, fmean(values), stdev(values) if len(values) > 1 else None, told))
    return tuple(points)
