"""A picture of who holds which classes."""

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from codeward._figures import check_plot_path, save_figure


def plot_class_shares(
    labels: NDArray[np.int64], split: Sequence[NDArray[np.int64]], path: str | os.PathLike[str], n_classes: int = 0
) -> None:
    """Draw the class shares of every user, like the paper's Figure 4: a row a user, a colour a class.

    Parameters
    ----------
    labels : ndarray of int64, shape (N,)
    split : sequence of ndarray
        Sample indices of each user.
    path : path-like
        ``.svg``, ``.png`` or ``.pdf``.
    n_classes : int
        Classes to show; those in ``labels`` when 0.
    """
    check_plot_path(path)
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    classes = n_classes or int(labels.max()) + 1
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in split], dtype=float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure(figsize=(6, 1 + 0.25 * len(split)), layout="constrained")
    axes = figure.add_subplot()
    left = np.zeros(len(split))
    colours = colormaps["tab10" if classes <= 10 else "tab20"]
    for label in range(classes):
        axes.barh(
            range(len(split)), shares[:, label], left=left, color=colours(label % colours.N), height=0.9, label=label
        )
        left += shares[:, label]
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_yticks(range(len(split)))
    axes.set_xlabel("share of the user's samples")
    axes.set_ylabel("user")
    axes.legend(title="class", bbox_to_anchor=(1.01, 1), loc="upper left", fontsize=7, title_fontsize=7)
    save_figure(figure, path)
