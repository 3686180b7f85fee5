"""Certified accuracy against the number of attackers, as data and as a plot."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward._figures import check_plot_path, save_figure
from codeward.certificates._certificates import Certificates, Threat


@dataclass(frozen=True, eq=False)
class CertifiedCurve:
    """Share of all inputs that are right and certified against k users, for k = 0, 1, ...

    Attributes
    ----------
    attackers : ndarray of int64, shape (K + 1,)
        k, from 0.
    accuracy : ndarray of float64, shape (K + 1,)
        Inputs with the right label and radius >= k, as a fraction of all ``n_inputs``; at k = 0 the clean accuracy.
    n_inputs : int
        The denominator.
    threat : {"deterministic", "arbitrary"}
    decoder : str
    """

    attackers: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    n_inputs: int
    threat: Threat
    decoder: str


def certified_accuracy(
    certificates: Certificates, labels: ArrayLike | None = None, max_attackers: int | None = None
) -> CertifiedCurve:
    """Return the certified accuracy for k = 0..K; without ``labels`` the fraction with a certified verdict.

    Parameters
    ----------
    certificates : Certificates
    labels : array_like of int, shape (N,), optional
        True labels.
    max_attackers : int, optional
        K; by default the largest radius plus one, but no more than was searched. Past what was searched the curve is
        0, which is a true statement: nothing is certified there.
    """
    right = certificates.labels >= 0
    if labels is not None:
        true = np.asarray(labels)
        if true.shape != certificates.labels.shape:
            raise InputError(f"labels: expected shape {certificates.labels.shape}, got {true.shape}")
        right &= certificates.labels == true
    top = max_attackers
    if top is None:
        top = min(int(certificates.radius.max(initial=0)) + 1, certificates.searched)
    attackers = np.arange(top + 1, dtype=np.int64)
    held = right[:, None] & (certificates.radius[:, None] >= attackers)
    return CertifiedCurve(attackers, held.mean(axis=0), len(certificates), certificates.threat, certificates.decoder)


def plot_certified_accuracy(curves: Mapping[str, CertifiedCurve], path: str | os.PathLike[str]) -> None:
    """Draw the curves, one step line a name, to an image file (.png, .svg or .pdf); needs matplotlib."""
    check_plot_path(path)
    if not curves:
        raise InputError("no curves to plot")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("plots need matplotlib: install codeward[plot]") from error
    figure: Any = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, curve in curves.items():
        axes.step(curve.attackers, 100 * curve.accuracy, where="post", marker="o", markersize=3, label=name)
    axes.set_xlabel("attackers k")
    axes.set_ylabel("certified, % of all inputs")
    axes.set_ylim(0, 102)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    # No date and no random ids in the file: the same curves give the same bytes.
    save_figure(figure, path)
