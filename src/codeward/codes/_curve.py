"""The trade-off people need before they choose: models against utilization, for k = 1 .. 4."""

import os
from dataclasses import dataclass

from codeward._errors import TooLargeError
from codeward._figures import check_plot_path, save_figure
from codeward._progress import Progress, silent
from codeward.codes._bounds import models_lower_bound
from codeward.codes._designer import design
from codeward.codes._paper import duplicated_code

#: Row weights sampled for each k, evenly from 1 to n - k.
SAMPLES = 10
#: Codes with more models are off the chart: nobody trains them.
MAX_CURVE_MODELS = 2_000


@dataclass(frozen=True)
class TradeOff:
    """Models for one k and row weight: the paper's construction, the designer's code, the lower bound."""

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
            ours = design(n_users, k, r, time_limit=8 * seconds / len(cells), seed=seed)
        except TooLargeError:
            continue
        finally:
            shown.advance(seconds / len(cells), f"k = {k}, row weight {r}")
        if ours.code.n_models <= MAX_CURVE_MODELS:
            paper = duplicated_code(n_users, k, r).n_models
            points.append(TradeOff(k, r, paper, ours.code.n_models, ours.models_lower_bound))
    return points


def plot_trade_off(points: list[TradeOff], n_users: int, path: str | os.PathLike[str]) -> None:
    """Draw models (logarithmic) against utilization as ``.svg``, ``.png`` or ``.pdf``, one colour a k."""
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
