"""Line charts as SVG elements in the page's own colours and letters: small, sharp, for every report alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from markupsafe import Markup, escape

from codeward._figures import show_percent
from codeward.report._table_builder import Share, sum_up_shares

Marker = Literal["disc", "ring", "square", "frame"]

_WIDTH, _HEIGHT = 276, 224
_LEFT, _TOP, _BOTTOM = 34, 10, 34
#: Least distance of two labels at the ends of lines.
_LABEL_GAP = 11.5
#: Lines stand a little beside each other, so that their bars do not cover one another.
_DODGE = 2.4


#: The page's light colours, for files that stand alone.
_STYLE = (
    "svg{background:#fff}text{font:10.5px system-ui,sans-serif;fill:#55626f}.soft{--hue:#55626f}.blue{--hue:#1f5f7a}"
    ".orange{--hue:#d9653b}.green{--hue:#1c6b45}.gold{--hue:#7a5b00}text.end{fill:var(--hue);font-weight:600}"
    ".rule,.axis{stroke:#d9dee3;fill:none}.line{stroke:var(--hue);stroke-width:1.8;fill:none}"
    ".dashed{stroke-dasharray:4.5 3}.bar-line,.leader{stroke:var(--hue);fill:none;opacity:.5}"
    ".dot{stroke:var(--hue);stroke-width:1.5}"
    ".full{fill:var(--hue)}.hollow{fill:#fff}.matrix text{font-size:8px}.one{fill:#1f5f7a}.zero{fill:#f0f2f4;"
    "stroke:#d9dee3;stroke-width:.5}.bad{fill:#d9653b}.votes .says{font-size:9px}text.right{fill:#1c6b45}"
    "text.wrong,text.bad{fill:#a8320f}"
)


@dataclass(frozen=True)
class Point:
    """A point of a line: place, height between 0 and 1, spread, and what the pointer is told.

    Examples
    --------
    >>> Point(1, 0.9, None, "1 attacker: 90%").y
    0.9
    """

    x: float
    y: float
    spread: float | None
    title: str


@dataclass(frozen=True)
class Line:
    """A line: its label at the end, the class that gives its colour, whether it is dashed, and its marker.

    Examples
    --------
    >>> Line("vote", "blue", True, "disc", ()).dashed
    True
    """

    label: str
    kind: str
    dashed: bool
    marker: Marker
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Style:
    """How a line looks: colour by kind, dashes, marker; and its words in a legend.

    Examples
    --------
    >>> Style("blue", False, "disc", "1 attacker").kind
    'blue'
    """

    kind: str
    dashed: bool
    marker: Marker
    words: str


@dataclass(frozen=True)
class Panel:
    """A chart with its caption: title, remark beside it, note under it.

    Examples
    --------
    >>> Panel("MNIST, IID", "5 repeats", Markup("<svg></svg>")).note
    ''
    """

    title: str
    remark: str
    chart: Markup
    note: str = ""


#: Looks by number of attackers, from 0: clean inputs; the last stands for all above.
ATTACKER_STYLES = (
    Style("soft", True, "disc", "clean inputs"),
    Style("blue", False, "disc", "1 attacker"),
    Style("orange", False, "frame", "2 attackers"),
    Style("green", False, "square", "3 attackers"),
)
#: False alarms in percent at which ROC curves are drawn: further right there is nothing to choose from.
ROC_TICKS = (0, 5, 10, 15, 20)


def make_point(x: float, shares: Sequence[Share], name: str) -> Point:
    """Return the mean of shares with its spread; the pointer is told the counts.

    Examples
    --------
    >>> make_point(2, [{"count": 3, "of": 4}], "vote").title
    'vote: 75.0% (3 of 4)'
    """
    values = [share["count"] / share["of"] for share in shares]
    value, of = sum_up_shares(shares)
    return Point(x, fmean(values), stdev(values) if len(values) > 1 else None, f"{name}: {value} ({of})")


def draw_roc(curves: dict[int, list[tuple[Sequence[float], Sequence[float]]]], label: str) -> Markup:
    """Return detected triggered inputs against false alarms, a line a number of attackers, means over repeats.

    Parameters
    ----------
    curves : dict
        By number of attackers: pairs of shares of false alarms, the same in all, and of triggered inputs found.
    label : str
        What a screen reader says.

    Examples
    --------
    >>> chart = draw_roc({1: [([0.0, 0.05], [0.5, 0.9])]}, "Detection")
    >>> "1 attacker: 90.0% found at 5.0% false alarms" in chart
    True
    """
    lines = []
    for size, found in sorted(curves.items()):
        points = []
        for place, rate in enumerate(found[0][0]):
            if 100 * rate <= ROC_TICKS[-1]:
                values = [detected[place] for _, detected in found]
                who = f"{size} attacker{'s' * (size != 1)}"
                found_at = f"{show_percent(fmean(values))} found at {show_percent(rate)} false alarms"
                told = f"{who}: {found_at}, {len(values)} repeats"
                points.append(Point(100 * rate, fmean(values), stdev(values) if len(values) > 1 else None, told))
        style = ATTACKER_STYLES[min(size, len(ATTACKER_STYLES) - 1)]
        lines.append(Line(str(size), style.kind, style.dashed, style.marker, tuple(points)))
    return draw_lines(lines, label, "false alarms, %", ROC_TICKS)


def stand_alone(chart: Markup) -> str:
    """Return an SVG element of a page as a file of its own: with its name space, colours and letters.

    Examples
    --------
    >>> stand_alone(draw_sample(ATTACKER_STYLES[1])).startswith('<svg xmlns="http://www.w3.org/2000/svg" class')
    True
    """
    opening, _, rest = str(chart).removeprefix("<svg ").partition(">")
    return f'<svg xmlns="http://www.w3.org/2000/svg" {opening}><style>{_STYLE}</style>{rest}\n'


def draw_lines(
    lines: Sequence[Line], label: str, x_label: str, x_ticks: Sequence[int], x_names: Sequence[str] | None = None
) -> Markup:
    """Return a chart of shares between 0 and 100%; every line has its label at its end.

    Guarantees: text is escaped, ids are not used, and the same lines give the same bytes.

    Parameters
    ----------
    lines : sequence of Line
    label : str
        What a screen reader says.
    x_label : str
        What the horizontal axis counts.
    x_ticks : sequence of int
        At least two, rising.
    x_names : sequence of str, optional
        What stands at the ticks, where it is not their numbers.

    Examples
    --------
    >>> line = Line("vote", "blue", False, "disc", (Point(0, 0.9, None, "0 attackers: 90%"), Point(1, 0.5, None, "")))
    >>> draw_lines([line], "Accuracy", "attackers", (0, 1)).startswith('<svg class="chart"')
    True
    """
    drawn = [line for line in lines if line.points]
    # Room for the longest label: letters are about this wide.
    right = _WIDTH - 20 - 6.3 * max((len(line.label) for line in drawn), default=0)
    body = _draw_axes(x_label, x_ticks, right, x_names or [str(tick) for tick in x_ticks])
    ends = []
    for place, line in enumerate(drawn):
        shift = (place - (len(drawn) - 1) / 2) * _DODGE
        points = [(_place_x(point.x, x_ticks, right) + shift, _place_y(point.y), point) for point in line.points]
        body += _draw_line(line, points)
        ends.append((points[-1][0], points[-1][1]))
    for line, (x, y), height in zip(drawn, ends, _spread([y for _, y in ends]), strict=True):
        edge = right + 14
        body += (
            f'<path class="leader {line.kind}" d="M{x + 4:.1f} {y:.1f}L{edge - 3:.1f} {height:.1f}"></path>'
            f'<text class="end {line.kind}" x="{edge:.1f}" y="{height + 3.5:.1f}">{escape(line.label)}</text>'
        )
    opening = f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
    return Markup(f"{opening}{body}</svg>")  # texts were escaped one by one


def draw_sample(style: Style) -> Markup:
    """Return a short piece of a line for a legend.

    Examples
    --------
    >>> draw_sample(ATTACKER_STYLES[1]).startswith('<svg class="chart sample"')
    True
    """
    dash, kind = " dashed" if style.dashed else "", style.kind
    return Markup(
        f'<svg class="chart sample" viewBox="0 0 34 12" aria-hidden="true"><path class="line {kind}{dash}" d="M1 6H33">'
        f"</path>{_draw_marker(style.marker, kind, 17, 6, '')}</svg>"
    )


def _draw_axes(x_label: str, x_ticks: Sequence[int], right: float, x_names: Sequence[str]) -> str:
    bottom = _HEIGHT - _BOTTOM
    found = ""
    for share in (0, 25, 50, 75, 100):
        y = _place_y(share / 100)
        found += f'<path class="{"axis" if share == 0 else "rule"}" d="M{_LEFT} {y:.1f}H{right + 8:.1f}"></path>'
        found += (
            f'<text x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{share}{"%" if share == 100 else ""}</text>'
        )
    for tick, name in zip(x_ticks, x_names, strict=True):
        x = _place_x(tick, x_ticks, right)
        found += f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{escape(name)}</text>'
    middle = (_LEFT + right) / 2
    return (
        found + f'<text class="quiet" x="{middle:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
    )


def _draw_line(line: Line, points: Sequence[tuple[float, float, Point]]) -> str:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
    found = f'<path class="line {line.kind}{" dashed" if line.dashed else ""}" d="{path}"></path>'
    for x, _, point in points:
        if point.spread:
            # What lies past 0 or 100% is no accuracy: the bar ends there.
            low, high = _place_y(max(point.y - point.spread, 0)), _place_y(min(point.y + point.spread, 1))
            bar = f"M{x - 2:.1f} {low:.1f}h4M{x:.1f} {low:.1f}V{high:.1f}M{x - 2:.1f} {high:.1f}h4"
            found += f'<path class="bar-line {line.kind}" d="{bar}"></path>'
    return found + "".join(_draw_marker(line.marker, line.kind, x, y, point.title) for x, y, point in points)


def _draw_marker(marker: Marker, kind: str, x: float, y: float, title: str) -> str:
    fill = "full" if marker in ("disc", "square") else "hollow"
    told = f"<title>{escape(title)}</title>" if title else ""
    if marker in ("disc", "ring"):
        return f'<circle class="dot {fill} {kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.9">{told}</circle>'
    corner = f'x="{x - 2.6:.1f}" y="{y - 2.6:.1f}" width="5.2" height="5.2"'
    return f'<rect class="dot {fill} {kind}" {corner}>{told}</rect>'


def _place_x(value: float, ticks: Sequence[int], right: float) -> float:
    # Room for the dodge of many lines at both ends.
    left, width = _LEFT + 12, right - 6 - (_LEFT + 12)
    return left + (value - ticks[0]) / max(ticks[-1] - ticks[0], 1) * width


def _place_y(share: float) -> float:
    bottom = _HEIGHT - _BOTTOM
    return bottom - share * (bottom - _TOP)


def _spread(heights: Sequence[float]) -> list[float]:
    """Move labels apart until none covers another, in their order, within the chart; ties keep the lines' order."""
    order = sorted(range(len(heights)), key=lambda place: (heights[place], place))
    moved = [heights[place] for place in order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + _LABEL_GAP)
    limit = _HEIGHT - _BOTTOM + 6.0
    for i in range(len(moved) - 1, -1, -1):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - _LABEL_GAP
    found = [0.0] * len(heights)
    for place, height in zip(order, moved, strict=True):
        found[place] = height
    return found
