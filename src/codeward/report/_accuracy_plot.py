"""Figures drawn from records alone."""

import os
from collections.abc import Sequence
from typing import Any

from codeward._errors import InputError
from codeward._figures import save_figure

Record = dict[str, Any]

_LINES = (
    ("plurality vote", "plurality", "o--", "0.45"),
    ("Bayes decoder", "bayes", "s-", "C0"),
)


def accuracy_points(records: Sequence[Record], decoder: str) -> dict[int, list[float]]:
    """Return accuracy by number of attackers, one value a repeat and group.

    With attackers it is the accuracy on all triggered inputs; without, on clean ones.

    Examples
    --------
    >>> clean = {"all": {"bayes": {"count": 9, "of": 10}}}
    >>> accuracy_points([{"n_attackers": 0, "figures": {"clean": clean, "groups": []}}], "bayes")
    {0: [0.9]}
    """
    points: dict[int, list[float]] = {}
    for record in records:
        figures = record["figures"]
        cells = [group["triggered"] for group in figures["groups"]] or [figures["clean"]]
        for cell in cells:
            figure = cell["all"][decoder]
            points.setdefault(record["n_attackers"], []).append(figure["count"] / figure["of"])
    return dict(sorted(points.items()))


def plot_accuracy(records: Sequence[Record], path: str | os.PathLike[str]) -> None:
    """Draw accuracy against the number of attackers, like one panel of the paper's Figure 5.

    A line is the mean over repeats, a bar its standard deviation.

    Examples
    --------
    >>> plot_accuracy([], "accuracy.svg")
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no records to draw
    """
    if not records:
        raise InputError("no records to draw")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for label, decoder, style, colour in _LINES:
        points = accuracy_points(records, decoder)
        means = [sum(values) / len(values) for values in points.values()]
        spread = [
            (sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5
            for mean, values in zip(means, points.values(), strict=True)
        ]
        axes.errorbar(list(points), means, yerr=spread, fmt=style, color=colour, label=label, capsize=3)
    config = records[0]["config"]
    axes.set_title(
        f"{config['dataset']}, {records[0]['code']['models']} sub-models, {config['users']} users", fontsize=10
    )
    axes.set_xlabel("attackers")
    axes.set_ylabel("accuracy (clean at 0, triggered after)")
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, path)
