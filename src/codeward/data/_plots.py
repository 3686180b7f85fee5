"""The picture of a split."""

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._files import write_atomic
from codeward.data._splits import count_classes


def plot_class_shares(labels: ArrayLike, split: Sequence[NDArray[np.int64]], path: str | os.PathLike[str]) -> None:
    """Draw each user's class shares as the paper's figure of Dirichlet splits: a row a user, a colour a class.

    Parameters
    ----------
    labels : array-like of int, shape (N,)
    split : sequence of ndarray of int
        Index arrays, one a user.
    path : path-like
        Written atomically; its suffix chooses the format (png, svg, pdf).
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = count_classes(labels, split)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    starts = np.cumsum(shares, axis=1) - shares
    n_users, n_classes = counts.shape
    colours = colormaps["tab10" if n_classes <= 10 else "gist_rainbow"]
    figure = Figure(figsize=(6, 0.8 + 0.22 * n_users), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for c in range(n_classes):
        colour = colours(c if n_classes <= 10 else c / (n_classes - 1))
        axes.barh(np.arange(n_users), shares[:, c], left=starts[:, c], height=0.9, color=colour, label=str(c))
    axes.set(xlim=(0, 1), xlabel="share of the user's samples", ylabel="user", yticks=np.arange(n_users))
    axes.invert_yaxis()
    if n_classes <= 20:
        figure.legend(*axes.get_legend_handles_labels(), title="class", loc="outside right", fontsize="small")
    suffix = os.path.splitext(os.fspath(path))[1].lstrip(".") or "png"
    write_atomic(path, lambda out: figure.savefig(out, format=suffix))
