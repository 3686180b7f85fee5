"""What ``codeward run`` prints at its end: figures per number of attackers, the guarantee, the next command."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from codeward._figures import show_percent
from codeward.codes import inspect
from codeward.runs import RunFolder, decoder_figures, rate, state_guarantees, sum_up_guarantees


def print_summary(folder: RunFolder, records: Sequence[dict[str, Any]]) -> None:
    """Print the figures of a run, one row a cell, what its code guarantees, and what to do next."""
    found = inspect(folder.code)
    covered = min(found.correct, found.track) or found.correct
    table, pooled = _tabulate(records, covered)
    console = Console()
    console.print(table)
    figures = decoder_figures(records[0])
    inputs = figures["clean"]["right"]["of"]
    told = [
        f"Shares of {inputs:,} test inputs: clean ones without attackers and for false alarms, else all triggered.",
        "vote: plurality of all sub-models. known: plurality of those that no attacker reaches. decoder: "
        f"{figures['name']}.",
    ]
    if pooled:
        told.append(
            f"named: by the evidence of {pooled['inputs']} flagged inputs pooled. rightly: attackers found; wrongly: "
            f"times that anybody else was accused, of {pooled['wrongly']['of']} in the last row."
        )
    promise = sum_up_guarantees(state_guarantees(found))
    for line in ("", " ".join(told), "", promise, ""):
        console.print(line, highlight=False)
    print(f"run folder: {folder.path}\nnext: codeward report {folder.path}")


def _tabulate(records: Sequence[dict[str, Any]], covered: int) -> tuple[Table, dict[str, Any] | None]:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    repeats = len({record["repeat"] for record in records}) > 1
    heads = ["attackers", "guarantee", "vote right", "decoder right", "known", "alarms", "false alarms"]
    for name in ["repeat"] * repeats + [*heads, "named rightly", "named wrongly"]:
        table.add_column(name.replace(" ", "\n"), justify="left" if name == "guarantee" else "right")
    pooled = None
    for record in records:
        figures, size = decoder_figures(record), record["n_attackers"]
        first = [str(record["repeat"])] * repeats + [str(size)]
        false_alarms = _show(figures["clean"]["alarms"])
        if not size:
            vote = record["figures"]["clean"]["all"]["plurality"]
            table.add_row(*first, "", _show(vote), _show(figures["clean"]["right"]), "", "", false_alarms, "", "")
        for group, plain in zip(figures["groups"], record["figures"]["groups"], strict=True):
            pooled = group["pooled"] or pooled
            table.add_row(
                *first,
                "within" if size <= covered else "past",
                _show(plain["triggered"]["all"]["plurality"]),
                _show(group["all"]["right"]),
                _show(group["all"].get("unreached")),
                _show(group["all"]["alarms"]),
                false_alarms,
                *_name(group["pooled"], plain["tracking"]),
            )
    return table, pooled


def _name(pooled: dict[str, Any] | None, tracking: dict[str, Any]) -> tuple[str, str]:
    """Return who was named; per input and in users where nothing was pooled."""
    if pooled is not None:
        return _show(pooled["rightly"]), _show(pooled["wrongly"])
    return f"{tracking['true_positives']:.2f} an input", f"{tracking['false_positives']:.2f}"


def _show(figure: dict[str, int] | None) -> str:
    return "" if figure is None else show_percent(rate(figure))
