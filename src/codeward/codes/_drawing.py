"""Pictures of a code: in the terminal, and as SVG or PNG in the style of the paper's figures."""

import os

from codeward._figures import check_plot_path, save_figure
from codeward.codes._code import Code


def sketch_code(code: Code, width: int = 100, height: int = 40) -> str:
    """Draw the matrix in text, two characters a cell: a full block is one, a dot is zero.

    A matrix larger than ``width`` users or ``height`` models is cut, and the last line says so.
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
    """Write the matrix as ``.svg``, ``.png`` or ``.pdf``: black is one, white is zero, axes labelled."""
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
