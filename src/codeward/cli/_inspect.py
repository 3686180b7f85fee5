"""``codeward inspect``: what a code guarantees, on a card of its own; ``codeward design`` ends with the same."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from codeward._figures import show_percent
from codeward._notebook import check_drawing_path

if TYPE_CHECKING:
    from codeward.codes import Inspection


def inspect(
    code: Path = typer.Argument(..., metavar="CODE", help="Code file: CSV of 0/1 (one row a model), .npy or .json."),
    max_attackers: int = typer.Option(
        None, "--max-attackers", "-k", min=1, help="Examine coalitions up to this size; without it, as far as it pays."
    ),
    plot: Path = typer.Option(None, "--plot", help="Draw the matrix to this .svg file."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of the card."),
) -> None:
    """Print what a code guarantees: how many colluding users it detects, corrects and tracks, and its margins.

    Example: codeward inspect code.csv --max-attackers 3 --plot code.svg
    """
    from codeward.codes import Code
    from codeward.codes import inspect as inspect_code

    check_drawing_path(plot)
    loaded = Code.load(code)
    inspection = inspect_code(loaded, max_attackers)
    if plot:
        loaded.plot().save(plot)
    if as_json:
        print(json.dumps(inspection.to_json()))
        return
    print_card(inspection)
    if plot:
        print(f"drawn to {plot}")


def print_card(inspection: "Inspection", title: str = "") -> None:
    """Print the card to stdout."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from codeward.codes import sketch_code

    code = inspection.code
    console = Console()
    facts = Table.grid(padding=(0, 2))
    bound = inspection.models_lower_bound
    gap = "that is optimal" if bound == code.n_models else f"lower bound for its row weight and detection: {bound}"
    facts.add_row("sub-models", f"{code.n_models} ({gap})")
    facts.add_row("users", str(code.n_users))
    facts.add_row(
        "row weight",
        f"{code.row_weight} (each model learns from at least {show_percent(code.utilization)} of the users)",
    )
    if code.construction:
        facts.add_row("construction", code.construction)
    facts.add_row("digest", code.digest[:16])
    for note in inspection.notes:
        facts.add_row("note", note)
    console.print(Panel(facts, title=title or "code", title_align="left"))

    table = Table(title="guarantees", title_justify="left", title_style="bold")
    table.add_column("property")
    table.add_column("threat model")
    table.add_column("holds up to k", justify="right")
    table.add_column("broken by")
    rows = (
        ("detect a triggered input", "deterministic", inspection.detect, "detect"),
        ("recover the label", "deterministic", inspection.correct, "correct"),
        ("recover the label", "arbitrary", inspection.correct_arbitrary, "correct_arbitrary"),
        ("name the attackers", "deterministic", inspection.track, "track"),
    )
    for meaning, threat, size, name in rows:
        table.add_row(meaning, threat, str(size), _witness(inspection, name))
    console.print(table)

    margins = Table(title="margins (d corrects (d-1)/2 wrong votes)", title_justify="left", title_style="bold")
    margins.add_column("k", justify="right")
    for name in ("label", "tracking", "label, arbitrary"):
        margins.add_column(name, justify="right")
    columns = (inspection.margin, inspection.margin_track, inspection.margin_arbitrary)
    for k, values in enumerate(zip(*columns, strict=True), start=1):
        margins.add_row(str(k), *("?" if value is None else str(value) for value in values))
    console.print(margins)
    console.print(Text(sketch_code(code, width=max(1, console.width // 2 - 4))), no_wrap=True, crop=True)


def _witness(inspection: "Inspection", name: str) -> str:
    found = inspection.witness.get(name)
    if found is None:
        return "nothing found"
    named = [" ".join(map(inspection.code.user_name, attackers)) or "nobody" for attackers in found.attackers]
    return " | ".join(named)
