"""``codeward inspect``: what a code guarantees."""

import json
from pathlib import Path

import typer


def inspect(
    code: Path = typer.Argument(..., metavar="CODE", help="Code file: CSV of 0/1 (one row a model), .npy or .json."),
    max_attackers: int = typer.Option(
        None, "--max-attackers", "-k", min=1, help="Examine coalitions up to this size; without it, as far as it pays."
    ),
    plot: Path = typer.Option(None, "--plot", help="Draw the matrix to this .svg, .png or .pdf file."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of the card."),
) -> None:
    """Print what a code guarantees: how many colluding users it detects, corrects and tracks, and its margins.

    Example: codeward inspect code.csv --max-attackers 3 --plot code.svg
    """
    from codeward.codes import Code
    from codeward.codes import inspect as inspect_code

    loaded = Code.load(code)
    inspection = inspect_code(loaded, max_attackers)
    if plot:
        from codeward.codes import plot_code

        plot_code(loaded, plot)
    if as_json:
        print(json.dumps(inspection.to_json()))
        return
    from codeward.cli._card import print_card

    print_card(inspection)
    if plot:
        print(f"drawn to {plot}")
