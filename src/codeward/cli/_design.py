"""``codeward design``: find a code for some users and attackers; ``codeward inspect``: what a code guarantees."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from codeward._errors import InputError
from codeward._figures import show_percent
from codeward._files import read_bytes
from codeward._notebook import check_drawing_path

if TYPE_CHECKING:
    from codeward.codes import Design, Inspection

#: Larger files of weights are refused: a million users fit.
MAX_WEIGHTS_BYTES = 16 * 2**20


def design(
    users: int = typer.Option(..., "--users", "-n", help="Number of users n."),
    attackers: int = typer.Option(..., "--attackers", "-k", help="Largest number of colluding users k."),
    row_weight: int = typer.Option(None, "--row-weight", "-r", help="Users that every model learns from, at least."),
    utilization: float = typer.Option(
        None, "--utilization", "-u", help="The same as a share of the users (of samples, with --weights); else 1/3."
    ),
    guarantee: str = typer.Option(
        "correct", "--guarantee", "-g", help="detect, correct, correct-arbitrary or track (see below)."
    ),
    margin: int = typer.Option(
        3,
        "--margin",
        "-d",
        help="By how many models the guarantee holds: 3 absorbs a wrong vote, 5 two (hard tasks), 1 none.",
    ),
    max_models: int = typer.Option(
        None, "--max-models", "-m", help="Most sub-models; alone, it asks for the largest row weight that fits."
    ),
    time_limit: float = typer.Option(20.0, "--time-limit", "-t", help="Seconds to search."),
    seed: int = typer.Option(0, "--seed", help="Seed of the search."),
    weights: str = typer.Option(
        None, "--weights", help="Samples of each user: 10,20,... or a file of numbers. Utilization then counts samples."
    ),
    groups: bool = typer.Option(
        False, "--groups", help="Where single users are too many to track, let them share columns and track groups."
    ),
    reproducible: bool = typer.Option(
        False, "--reproducible", help="End by work done, not by the clock: the same code on a busy machine."
    ),
    output: Path = typer.Option(None, "--output", "-o", help="Write the code to this .csv, .npy or .json file."),
    curve: Path = typer.Option(None, "--curve", help="Draw models against utilization for k = 1..4 to this .svg file."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of the card."),
) -> None:
    """Find the code with fewest sub-models for a guarantee, verified, with a lower bound.

    detect: some model is always clean. correct: the true label is recoverable (attackers who hand in data).
    correct-arbitrary: the same when hit models may say anything. track: the attackers are named as well (with --groups
    and very many users, the groups of users that hold them). A design that misses its guarantee exits 1.

    Example: codeward design --users 12 --attackers 2 --guarantee track -o code.json

    Example: codeward design --users 40 --attackers 2 --max-models 12 --curve trade-off.svg
    """
    from codeward._progress import show_progress
    from codeward.codes import design as design_code
    from codeward.codes import inspect as inspect_code

    _check_suffix(output, (".csv", ".npy", ".json"))
    _check_suffix(curve, (".svg",))
    sizes = None if weights is None else _read_weights(weights)
    with show_progress("designing", time_limit, not as_json) as progress:
        found = design_code(
            users,
            attackers,
            row_weight,
            utilization,
            guarantee,
            margin,
            max_models,
            time_limit,
            seed,
            sizes,
            progress,
            groups,
            reproducible,
        )
    if output is not None:
        found.code.save(output)
    if curve is not None:
        from codeward.codes import compare_models, plot_trade_off

        with show_progress("drawing", time_limit, not as_json) as progress:
            points = compare_models(users, seconds=time_limit, seed=seed, progress=progress)
        plot_trade_off(points, users).save(curve)
    inspection = _add_verified(inspect_code(found.code), found)
    if as_json:
        result: dict[str, Any] = inspection.to_json()
        result |= {
            "utilization": found.utilization,
            "models_lower_bound": found.models_lower_bound,
            "matrix": found.code.matrix.astype(int).tolist(),
            "construction": found.construction,
            "seconds": found.seconds,
            "gap": found.gap,
            "guarantee": found.guarantee,
            "n_attackers": found.n_attackers,
            "requested_margin": found.margin,
            "timed_out": found.timed_out,
            "grouped": found.grouped,
            "note": found.note,
        }
        print(json.dumps(result))
        return
    print_card(inspection, f"{found.guarantee}, k = {found.n_attackers}, margin {found.margin}")
    optimal = "optimal" if found.gap == 0 else f"{found.gap} above the lower bound {found.models_lower_bound}"
    print(f"{found.code.n_models} sub-models, {optimal}; {found.seconds:.1f} s")
    if sizes is not None:
        print(f"the poorest model learns from {show_percent(found.utilization)} of the samples")
    if found.note:
        print(found.note)
    print(_describe_margin(found.guarantee, found.margin))
    if all(given is None for given in (row_weight, utilization, max_models)):
        print(f"every model learns from at least {found.row_weight} of {users} users (--utilization asks for others)")
    for path in (output, curve):
        if path is not None:
            print(f"written to {path}")


def _describe_margin(guarantee: str, margin: int) -> str:
    """Say in one sentence what a margin absorbs."""
    if guarantee == "detect":
        return f"margin {margin}: at least {margin} model{'s stay' if margin > 1 else ' stays'} clean, whoever attacks"
    errors = (margin - 1) // 2
    if not errors:
        return f"margin {margin} absorbs no wrong vote: it is for models that never err (--margin 3 absorbs one)"
    votes = "one wrong vote" if errors == 1 else f"{errors} wrong votes"
    return (
        f"margin {margin} absorbs {votes} beside the attack: a model that errs, or a trigger that fails in one it hit"
    )


def _add_verified(inspection: "Inspection", found: "Design") -> "Inspection":
    """Raise the sizes of an inspection to what the design verified, where many users cut the inspection short.

    BTC(k) is BCC(k), BCC(k) is BDC(k), and BDC(2k) is BCC(k). Margins that were not compared are None.
    """
    k, guarantee = found.n_attackers, "correct" if found.grouped else found.guarantee
    arbitrary = guarantee == "correct-arbitrary"
    missing = (None,) * max(0, k - inspection.max_attackers)
    note = f"the guarantee for {k} attackers was verified by the design, not inspected again"
    return replace(
        inspection,
        max_attackers=max(inspection.max_attackers, k),
        detect=max(inspection.detect, 2 * k if arbitrary else k),
        correct=max(inspection.correct, 0 if guarantee == "detect" else k),
        correct_arbitrary=max(inspection.correct_arbitrary, k if arbitrary else 0),
        track=max(inspection.track, k if guarantee == "track" else 0),
        margin=inspection.margin + missing,
        margin_track=inspection.margin_track + missing,
        margin_arbitrary=inspection.margin_arbitrary + missing,
        notes=inspection.notes + ((note,) if missing else ()),
    )


def _check_suffix(path: Path | None, allowed: tuple[str, ...]) -> None:
    """Refuse a file name before the search, not after it."""
    if path is not None and path.suffix.lower() not in allowed:
        raise InputError(f"{path}: the file name must end in {', '.join(allowed)}")


def _read_weights(text: str) -> list[float]:
    """Read numbers from a comma list, or from a file of numbers apart by commas or white space."""
    path = Path(text)
    try:
        content = read_bytes(path, MAX_WEIGHTS_BYTES).decode() if path.is_file() else text
        return [float(word) for word in content.replace(",", " ").split()]
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"--weights: neither a file nor a comma list of numbers: {text}") from error


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
    for meaning, threat, size, broken in inspection.list_properties():
        table.add_row(meaning, threat, str(size), broken)
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
