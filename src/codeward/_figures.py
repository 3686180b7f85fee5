"""Saving pictures: the same figure gives the same bytes, written atomically."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from codeward._errors import InputError
from codeward._files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = ("svg", "png", "pdf")


def check_plot_path(path: str | os.PathLike[str]) -> str:
    """Return the format that a plot's file name asks for; refuse others before any work is done."""
    suffix = Path(path).suffix.lower().lstrip(".")
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: a plot ends in .svg, .png or .pdf")
    return suffix


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a figure as ``.svg``, ``.png`` or ``.pdf``, by suffix."""
    from matplotlib import rc_context

    suffix = check_plot_path(path)
    # No date, and ids that do not depend on chance.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix)
    with rc_context({"svg.hashsalt": "codeward"}):
        write_atomic(path, lambda out: figure.savefig(out, format=suffix, dpi=150, metadata=metadata))
