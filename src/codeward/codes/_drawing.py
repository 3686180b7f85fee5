"""Pictures: a code in the terminal and as SVG, PNG or PDF in the style of the paper; models against utilization."""

import os
from dataclasses import dataclass

from codeward._errors import TooLargeError
from codeward._figures import check_plot_path, save_figure
from codeward._progress import Progress, silent
from codeward.codes._code import Code
from codeward.codes._constructions import duplicated_code
from codeward.codes._designer import design
from codeward.codes._guarantees import models_lower_bound


def sketch_code(code: Code, width: int = 100, height: int = 40) -> str:
    """Draw the matrix in text, two characters a cell: a full block is one, a dot is zero.

    A matrix larger than ``width`` users or ``height`` models is cut, and the last line says so.

    Examples
    --------
    >>> print(sketch_code(Code([[1, 0], [0, 1]])))
      0 1
    0 ██·
    1 · ██
    """
    wide, tall = min(code.n_users, width), min(code.n_models, height)
    label = len(str(tall - 1))
    # Column numbers are written downwards, one digit a line, so that two characters a user suffice.
    digits = len(str(wide - 1))
    lines = []
    for place in range(digits):
        ruler = "".join(f"{str(j).rjust(digits)[place]} " for j in range(wide))
        lines.append(" " * (label + 1) + ruler.rstrip())
    for i in range(tall):
        row = "".join("██" if bit else "· " for bit in code.matrix[i, :wide])
        lines.append(f"{i:>{label}} {row}".rstrip())
    if (tall, wide) != code.matrix.shape:
        lines.append(f"(showing {tall} of {code.n_models} models and {wide} of {code.n_users} users)")
    return "\n".join(lines)


def plot_code(code: Code, path: str | os.PathLike[str], title: str = "") -> None:
    """Write the matrix as ``.svg``, ``.png`` or ``.pdf``: black is one, white is zero, axes labelled.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     plot_code(Code([[1, 0], [0, 1]]), Path(folder, "code.svg"))
    ...     Path(folder, "code.svg").exists()
    True
    """
    check_plot_path(path)
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    m, n = code.matrix.shape
    cell = min(0.28, 14 / max(m, n))
    figure = Figure(figsize=(1.2 + cell * n, 1.2 + cell * m), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(code.matrix, cmap="gray_r", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    if max(m, n) <= 64:  # finer grids turn into grey
        axes.set_xticks([j - 0.5 for j in range(n + 1)], minor=True)
        axes.set_yticks([i - 0.5 for i in range(m + 1)], minor=True)
        axes.grid(which="minor", color="0.8", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=min(n, 16)))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=min(m, 16)))
    if code.users and n <= 24:
        axes.set_xticks(range(n), labels=list(code.users), rotation=60, ha="right")
    if code.models and m <= 40:
        axes.set_yticks(range(m), labels=list(code.models))
    axes.set_xlabel("user")
    axes.set_ylabel("sub-model")
    axes.set_title(title or code.construction or f"{m} sub-models, {n} users", fontsize=9)
    save_figure(figure, path)


#: Row weights sampled for each k, evenly from 1 to n - k.
SAMPLES = 10
#: Codes with more models are off the chart: nobody trains them.
MAX_CURVE_MODELS = 2_000


@dataclass(frozen=True)
class TradeOff:
    """Models for one k and row weight: the paper's construction, the designer's code, the lower bound.

    Examples
    --------
    >>> point = TradeOff(n_attackers=2, row_weight=9, paper=55, ours=13, bound=13)
    >>> point.paper / point.ours > 4
    True
    """

    n_attackers: int
    row_weight: int
    paper: int
    ours: int
    bound: int


def compare_models(
    n_users: int, max_attackers: int = 4, seconds: float = 20.0, seed: int = 0, progress: Progress | None = None
) -> list[TradeOff]:
    """Design codes with guarantee *correct* over a range of row weights for k = 1 .. ``max_attackers``.

    ``seconds`` is about the time for all of them together. Every search gets the same limit, whatever the clock says,
    so that the same request draws the same curve.

    Examples
    --------
    >>> points = compare_models(6, max_attackers=1, seconds=1)
    >>> [(point.row_weight, point.ours, point.bound) for point in points]
    [(1, 3, 3), (2, 3, 3), (3, 3, 3), (4, 3, 3), (5, 6, 6)]
    """
    shown = progress or silent()
    cells = []
    for k in range(1, max_attackers + 1):
        top = n_users - k
        weights = sorted({max(1, round(top * i / SAMPLES)) for i in range(1, SAMPLES + 1)}) if top > 0 else []
        cells += [(k, r) for r in weights if models_lower_bound(n_users, k, r) <= MAX_CURVE_MODELS]
    points = []
    for k, r in cells:
        try:
            # A metered search takes a fraction of its limit, and nothing where it meets the bound at once: 8 shares
            # of the time each were measured to keep to the whole.
            ours = design(n_users, k, r, time_limit=8 * seconds / len(cells), seed=seed, reproducible=True)
        except TooLargeError:
            continue
        finally:
            shown.advance(seconds / len(cells), f"k = {k}, row weight {r}")
        if ours.code.n_models <= MAX_CURVE_MODELS:
            paper = duplicated_code(n_users, k, r).n_models
            points.append(TradeOff(k, r, paper, ours.code.n_models, ours.models_lower_bound))
    return points


def plot_trade_off(points: list[TradeOff], n_users: int, path: str | os.PathLike[str]) -> None:
    """Draw models (logarithmic) against utilization as ``.svg``, ``.png`` or ``.pdf``, one colour a k.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> points = [TradeOff(1, 2, 3, 3, 3), TradeOff(1, 3, 4, 3, 3)]
    >>> with TemporaryDirectory() as folder:
    ...     plot_trade_off(points, 6, Path(folder, "curve.svg"))
    ...     Path(folder, "curve.svg").exists()
    True
    """
    check_plot_path(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    for k in sorted({point.n_attackers for point in points}):
        here = [point for point in points if point.n_attackers == k]
        share = [point.row_weight / n_users for point in here]
        colour = f"C{k - 1}"
        axes.plot(share, [point.paper for point in here], ":", color=colour, label=f"k = {k}, paper")
        axes.plot(share, [point.ours for point in here], "o-", color=colour, markersize=4, label=f"k = {k}, designer")
        axes.plot(share, [point.bound for point in here], "--", color=colour, linewidth=0.8, label=f"k = {k}, bound")
    axes.set_yscale("log")
    axes.set_xlabel("utilization r / n")
    axes.set_ylabel("sub-models m")
    axes.set_title(f"Sub-models that correct k attackers among {n_users} users", fontsize=10)
    figure.legend(fontsize=7, ncols=max(1, len({point.n_attackers for point in points})), loc="outside lower center")
    axes.grid(which="both", color="0.9", linewidth=0.5)
    save_figure(figure, path)
