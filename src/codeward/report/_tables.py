"""Tables of figures; every share says what it is a fraction of, and several repeats give mean and spread."""

from collections.abc import Sequence
from html import escape
from statistics import fmean, stdev
from typing import Any

from codeward.report._run import ReportedRun

Share = dict[str, int]


def sum_up_shares(shares: Sequence[Share]) -> tuple[str, str]:
    """Return a share and its counts; of several, mean and sample standard deviation, and the denominators."""
    kept = [share for share in shares if share["of"]]
    if not kept:
        return "none", ""
    values = [100 * share["count"] / share["of"] for share in kept]
    if len(kept) == 1:
        return f"{values[0]:.1f}%", f"{kept[0]['count']:,} of {kept[0]['of']:,}"
    totals = sorted({share["of"] for share in kept})
    of = f"{totals[0]:,}" if len(totals) == 1 else f"{totals[0]:,} to {totals[-1]:,}"
    return f"{fmean(values):.1f}% ± {stdev(values):.1f}", f"{len(kept)} times {of}"


def show_share(shares: Sequence[Share]) -> str:
    """Return `sum_up_shares` as HTML."""
    value, of = sum_up_shares(shares)
    return f"{value}<small>{of}</small>" if of else value


def show_number(values: Sequence[float], digits: int = 2) -> str:
    """Return a number; of several, the mean and the sample standard deviation."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def write_table(title: str, note: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with caption, in a box that scrolls by itself; cells are HTML, title, note and heads plain text.

    The first cell of a row is its header.
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(title)}"><table class="figures">'
        f"<caption><span><b>{escape(title)}.</b> {escape(note)}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def tabulate_attack(run: ReportedRun) -> str:
    """Say whether the attack worked at all: the share of target votes in hit and in clean models."""
    rows = []
    for size, groups in list_groups(run).items():
        who = "; ".join(
            f"{', '.join(escape(run.code.user_name(user)) for user in group['attackers'])} → {group['target']}"
            for group in groups[:4]
        ) + (f"; {len(groups) - 4} more" if len(groups) > 4 else "")
        rows.append(
            [
                _size(run, size),
                show_share([group["success"]["hit_models"] for group in groups]),
                show_share([group["success"]["clean_models"] for group in groups]),
                f'<span class="wrap">{who}</span>',
            ]
        )
    return write_table(
        "Whether the trigger works",
        "Votes for the target on triggered inputs whose label is another. Little in hit models: nothing was defended "
        "against.",
        ("attackers", "hit models say the target", "clean models say the target", "attackers → target"),
        rows,
    )


def tabulate_clean(run: ReportedRun) -> str:
    """Right labels and false alarms on inputs without a trigger."""
    rows = []
    for size, records in run.cells.items():
        clean = [record["figures"]["clean"]["all"] for record in records]
        names = ("single_model", "plurality", "bayes", "alarms")
        rows.append([_size(run, size), *(show_share([cell[name] for cell in clean]) for name in names)])
    return write_table(
        "Clean inputs",
        "Shares of all test inputs, without trigger; with attackers, the models they poisoned judge them too.",
        ("attackers", "one sub-model right", "plurality vote right", "decoder right", "false alarms"),
        rows,
    )


def tabulate_triggered(run: ReportedRun) -> str:
    """Right labels, alarms and suspects on triggered inputs, on all and on those whose label is not the target."""
    rows = []
    for size, groups in list_groups(run).items():
        cells = [
            show_share([group["triggered"][kept][name] for group in groups])
            for name in ("plurality", "bayes", "alarms")
            for kept in ("all", "other_labels")
        ]
        right = show_number([group["tracking"]["true_positives"] for group in groups])
        wrong = show_number([group["tracking"]["false_positives"] for group in groups])
        rows.append([_size(run, size), *cells, f"{right}<small>of {size}</small>", wrong])
    heads = [f"{what}, {of}" for what in ("plurality right", "decoder right", "alarms") for of in ("all", "others")]
    return write_table(
        "Triggered inputs",
        "All: every triggered test input. Others: those whose true label is not the target. Suspects: mean number "
        "named per triggered input.",
        ("attackers", *heads, "suspects, rightly", "suspects, wrongly"),
        rows,
    )


def list_groups(run: ReportedRun) -> dict[int, list[dict[str, Any]]]:
    """Return the attacking groups of all repeats by number of attackers, without 0."""
    found = {
        size: [group for record in records for group in record["figures"]["groups"]]
        for size, records in run.cells.items()
    }
    return {size: groups for size, groups in found.items() if groups}


def _size(run: ReportedRun, size: int) -> str:
    """Return a number of attackers, marked where the code does not promise to correct so many."""
    if size <= run.inspection.correct:
        return str(size)
    return f'{size} <span class="past">past the guarantee</span>'
