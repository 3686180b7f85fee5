"""Charts and matrices as SVG elements in the page's own colours and letters: one builder for reports and notebooks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, stdev
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from codeward._figures import Share, show_percent, sum_up_shares
from codeward._notebook import Drawing

Marker = Literal["disc", "ring", "square", "frame"]

WIDTH, HEIGHT = 276, 224
_LEFT, _TOP, _BOTTOM = 34, 10, 34
#: Least distance of two labels at the ends of lines.
LABEL_GAP = 11.5
#: A bar shorter than this is not seen behind its dot.
_DOT = 5.0
#: Lines of shares stand a little beside each other, so that their bars do not cover one another.
_DODGE = 2.4


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
    >>> Panel("MNIST, IID", "5 repeats", Drawing("<svg></svg>")).note
    ''
    """

    title: str
    remark: str
    chart: Drawing
    note: str = ""


#: Looks by number of attackers, from 0: clean inputs; the last stands for all above.
ATTACKER_STYLES = (
    Style("soft", True, "disc", "clean inputs"),
    Style("blue", False, "disc", "1 attacker"),
    Style("orange", False, "frame", "2 attackers"),
    Style("green", False, "square", "3 attackers"),
)
COLOURS = ("blue", "orange", "green", "gold")
#: False alarms in percent at which ROC curves are drawn: further right there is nothing to choose from.
ROC_TICKS = (0, 5, 10, 15, 20)
#: What stands at the heights of a chart of shares.
SHARES = {0.0: "0", 0.25: "25", 0.5: "50", 0.75: "75", 1.0: "100%"}


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


def draw_roc(curves: dict[int, list[tuple[Sequence[float], Sequence[float]]]], label: str) -> Drawing:
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


def draw_lines(
    lines: Sequence[Line],
    label: str,
    x_label: str,
    x_ticks: Sequence[int],
    x_names: Sequence[str] | None = None,
    y_names: Mapping[float, str] = SHARES,
    width: int = WIDTH,
) -> Drawing:
    """Return a chart, of shares between 0 and 100% if nothing else is said; every line has its label at its end.

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
    y_names : mapping of float to str
        What stands at which height between 0 and 1.
    width : int

    Examples
    --------
    >>> line = Line("vote", "blue", False, "disc", (Point(0, 0.9, None, "0 attackers: 90%"), Point(1, 0.5, None, "")))
    >>> draw_lines([line], "Accuracy", "attackers", (0, 1)).startswith('<svg class="chart"')
    True
    """
    drawn = [line for line in lines if line.points]
    # Room for the longest label: letters are about this wide.
    right = width - 20 - 6.3 * max((len(line.label) for line in drawn), default=0)
    body = _draw_axes(x_label, x_ticks, right, x_names or [str(tick) for tick in x_ticks], y_names)
    ends = []
    for place, line in enumerate(drawn):
        shift = (place - (len(drawn) - 1) / 2) * _DODGE if y_names is SHARES else 0.0
        points = [(_place_x(point.x, x_ticks, right) + shift, place_y(point.y), point) for point in line.points]
        body += _draw_line(line, points)
        ends.append((points[-1][0], points[-1][1]))
    for line, (x, y), height in zip(drawn, ends, spread_labels([y for _, y in ends]), strict=True):
        edge = right + 14
        body += (
            f'<path class="leader {line.kind}" d="M{x + 4:.1f} {y:.1f}L{edge - 3:.1f} {height:.1f}"></path>'
            f'<text class="end {line.kind}" x="{edge:.1f}" y="{height + 3.5:.1f}">{escape(line.label)}</text>'
        )
    opening = f'<svg class="chart" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    return Drawing(f"{opening}{body}</svg>")  # texts were escaped one by one


def draw_flagged(probability: NDArray[np.float64], total: int) -> Drawing:
    """Draw of ``total`` inputs the share whose attack probability is above a threshold, by threshold.

    Examples
    --------
    >>> "above 50.0%: 25.0% (1 of 4)" in draw_flagged(np.array([0.9, 0.2]), 4)
    True
    """
    above = {tick: int((probability > tick / 100).sum()) for tick in range(0, 101, 5)}
    points = tuple(
        make_point(t, [{"count": n, "of": max(total, 1)}], f"above {show_percent(t / 100)}") for t, n in above.items()
    )
    line = Line("alarms", "blue", False, "disc", points)
    label = "Share of inputs with an alarm by threshold"
    return draw_lines([line], label, "attack probability above, %", (0, 25, 50, 75, 100))


def draw_sample(style: Style) -> Drawing:
    """Return a short piece of a line for a legend.

    Examples
    --------
    >>> draw_sample(ATTACKER_STYLES[1]).startswith('<svg class="chart sample"')
    True
    """
    dash, kind = " dashed" if style.dashed else "", style.kind
    return Drawing(
        f'<svg class="chart sample" viewBox="0 0 34 12" aria-hidden="true"><path class="line {kind}{dash}" d="M1 6H33">'
        f"</path>{_draw_marker(style.marker, kind, 17, 6, '')}</svg>"
    )


def _draw_axes(
    x_label: str, x_ticks: Sequence[int], right: float, x_names: Sequence[str], y_names: Mapping[float, str]
) -> str:
    bottom, heights = HEIGHT - _BOTTOM, {place_y(share): name for share, name in y_names.items()}
    rules = "".join(f"M{_LEFT} {y:g}H{right + 8:.1f}" for y in heights if y != bottom)
    shares = "".join(f'<text x="{_LEFT - 6}" y="{y + 3.5:g}">{name}</text>' for y, name in heights.items())
    names = "".join(
        f'<text x="{_place_x(tick, x_ticks, right):.1f}" y="{bottom + 14}">{escape(name)}</text>'
        for tick, name in zip(x_ticks, x_names, strict=True)
    )
    names += f'<text x="{(_LEFT + right) / 2:.1f}" y="{HEIGHT - 6}">{escape(x_label)}</text>'
    return (
        f'<path class="rule" d="{rules}"></path><path class="axis" d="M{_LEFT} {bottom:g}H{right + 8:.1f}"></path>'
        f'<g text-anchor="end">{shares}</g><g text-anchor="middle">{names}</g>'
    )


def _draw_line(line: Line, points: Sequence[tuple[float, float, Point]]) -> str:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
    found = f'<path class="line {line.kind}{" dashed" if line.dashed else ""}" d="{path}"></path>'
    for x, _, point in points:
        if point.spread:
            # What lies past 0 or 100% is no accuracy: the bar ends there.
            low, high = place_y(max(point.y - point.spread, 0)), place_y(min(point.y + point.spread, 1))
            if low - high < _DOT:  # hidden behind its dot
                continue
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


def place_y(share: float) -> float:
    """Return the height at which a share is drawn."""
    bottom = HEIGHT - _BOTTOM
    return bottom - share * (bottom - _TOP)


def spread_labels(heights: Sequence[float]) -> list[float]:
    """Move labels apart until none covers another, in their order, within the chart; ties keep the lines' order."""
    order = sorted(range(len(heights)), key=lambda place: (heights[place], place))
    moved = [heights[place] for place in order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + LABEL_GAP)
    limit = HEIGHT - _BOTTOM + 6.0
    for i in range(len(moved) - 1, -1, -1):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - LABEL_GAP
    found = [0.0] * len(heights)
    for place, height in zip(order, moved, strict=True):
        found[place] = height
    return found


def draw_matrix(
    matrix: NDArray[np.bool_],
    users: Sequence[str] | None = None,
    marked: Sequence[int] = (),
    says: Sequence[str] = (),
    right: Sequence[bool] = (),
    label: str | None = None,
    small: bool = False,
) -> Drawing:
    """Draw a code: a row a sub-model, a column a user, a filled cell where the one learns from the other.

    Parameters
    ----------
    matrix : ndarray of bool, shape (m, n)
    users : sequence of str, optional
        Names, written upwards; numbers without.
    marked : sequence of int
        Users in another colour.
    says, right : sequence of str, of bool
        What each sub-model says, beside its row, and whether that is green or red.
    label : str, optional
        What a screen reader says.
    small : bool
        Half the size, without numbers.

    Examples
    --------
    >>> picture = draw_matrix(np.eye(3, dtype=bool), ["ann", "bob", "eve"], [2], ["cat", "cat", "dog"], [1, 1, 0])
    >>> picture.count(">cat<"), ">eve<" in picture
    (2, True)
    """
    size, gap = (7, 1) if small else (14, 2)
    m, n = matrix.shape
    names = [name if len(name) <= 18 else f"{name[:17]}…" for name in users or map(str, range(n))]
    widest = max(map(len, names), default=0)
    left, top = (0, 0) if small else (24, 12 + 4.6 * widest if users else 18)
    reach, parts = set(marked), {"zero": f"M0 0h{n * size}v{m * size}h{-n * size}z" * small, "one": "", "bad": ""}
    for i in range(m):
        for j in range(n):
            kind = ("bad" if j in reach else "one") if matrix[i, j] else "zero"
            if small and kind == "zero":
                continue
            parts[kind] += f"M{left + j * size} {top + i * size:g}h{size - gap}v{size - gap}h{gap - size}z"
    drawn = "".join(f'<path class="{kind}" d="{path}"></path>' for kind, path in parts.items() if path)
    if not small:
        for j in range(0, n, -(-n // (60 if users else 24))):
            x, kind = left + j * size + 6, "bad" if j in reach else "user"
            place = f'transform="translate({x + 3} {top - 6:g}) rotate(-90)"' if users else f'x="{x}" y="{top - 6:g}"'
            anchor = "start" if users else "middle"
            drawn += f'<text class="{kind}" {place} text-anchor="{anchor}">{escape(names[j])}</text>'
        for i in range(0, m, -(-m // 60)):
            drawn += f'<text x="{left - 6}" y="{top + i * size + 9:g}" text-anchor="end">{i}</text>'
    edge, width = left + n * size, float(left + n * size)
    drawn += f'<text x="{edge + 8}" y="{top - 6:g}">says</text>' if says else ""
    for i, (word, good) in enumerate(zip(says, right, strict=True)):
        place = f'x="{edge + 8}" y="{top + i * size + 10:g}"'
        drawn += f'<text class="says {"right" if good else "wrong"}" {place}>{escape(word)}</text>'
        width = max(width, edge + 20 + 5.2 * len(word))
    told = escape(label or f"Code matrix: {m} sub-models, {n} users")
    opening = f'<svg class="matrix" viewBox="0 0 {width:g} {top + m * size:g}" style="max-width:{1.4 * width:.0f}px"'
    return Drawing(f'{opening} role="img" aria-label="{told}">{drawn}</svg>')


def draw_shares(shares: NDArray[np.float64], row: str, part: str) -> Drawing:
    """Draw what rows are made of, a bar each, a colour a part; numbers stand at the bars and in the legend.

    Examples
    --------
    >>> picture = draw_shares(np.array([[0.5, 0.5], [1.0, 0.0]]), "user", "class")
    >>> "user 1: 100.0% class 0" in picture
    True
    """
    n, parts = shares.shape
    left, wide, tall, bars = 34, 260, 10, ""
    # A report rebuilds the picture and drops its style sheet: the size stands at the letters themselves.
    small = "font-size:8px"
    hues = [f"fill:hsl({360 * i // parts} 45% {45 if i % 2 else 62}%)" for i in range(parts)]
    for i, starts in enumerate(np.cumsum(shares, axis=1) - shares):
        named = f'<text x="{left - 6}" y="{8 + tall * i}" text-anchor="end" style="{small}">{i}</text>'
        bars += named if i % -(-n // 40) == 0 else ""
        for j in np.flatnonzero(shares[i]).tolist():
            told = f"<title>{row} {i}: {escape(show_percent(shares[i, j]))} {part} {j}</title>"
            place = f'x="{left + wide * starts[j]:.1f}" y="{tall * i}" width="{wide * shares[i, j]:.1f}"'
            bars += f'<rect {place} height="{tall - 1}" style="{hues[j]}">{told}</rect>'
    for j in range(parts):
        x, y = left + wide + 12 + 34 * (j // 10), 12 * (j % 10)
        bars += f'<rect x="{x}" y="{y}" width="9" height="9" style="{hues[j]}"></rect>'
        bars += f'<text x="{x + 12}" y="{y + 8}" style="{small}">{j}</text>'
    box = f"0 0 {left + wide + 14 + 34 * (-(-parts // 10))} {max(tall * n, 12 * min(parts, 10))}"
    told = f"Share of each {part} by {row}, {n} {row}s"
    return Drawing(f'<svg class="chart shares" viewBox="{box}" role="img" aria-label="{told}">{bars}</svg>')
