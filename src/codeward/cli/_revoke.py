"""``codeward revoke``: take users out of a run and train again only what they reached."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from codeward._errors import InputError

if TYPE_CHECKING:
    from codeward.runs import Outlook


def revoke(
    run_dir: Path = typer.Argument(..., metavar="RUN_DIR", help="Run folder, or a state an earlier revocation made."),
    users: list[str] = typer.Argument(..., metavar="USER...", help="Users by name, or by number without names."),
    output: Path = typer.Option(None, "-o", "--output", help="New run folder; by default RUN_DIR/revoked/USERS."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bars."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object; needs --yes."),
) -> None:
    """Remove users: their columns go, the sub-models that saw them are trained again without them, the rest stays.

    First it says what the remaining code guarantees and which models change, then it asks. The untouched models are
    taken over byte for byte; the new state is a run folder of its own. The old folder stays as it is, save for
    a note in RUN_DIR/revoked that a server of it heeds: delete it when the users' data must be gone from all models.

    Example: codeward revoke runs/digits 3 7 -o runs/digits-without-3-7
    """
    from codeward.experiments import name_output, revoke_users
    from codeward.report import write_card
    from codeward.runs import Card, RunFolder, foresee_revocation

    outlook = foresee_revocation(run_dir, users)
    target = output or name_output(run_dir, outlook)
    if not as_json:
        _announce(outlook, target)
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise InputError("nothing was done: nobody can be asked here, so say --yes")
        typer.confirm("Revoke?", abort=True)
    records = []
    for record in revoke_users(run_dir, outlook, target, progress=not quiet and not as_json):
        records.append(record)
        if not as_json:
            work = record["work"]
            print(
                f"repeat {record['repeat']}, {record['n_attackers']} attackers: {work['trained']} sub-models trained, "
                f"{work['reused']} taken over, {record['seconds']:.1f} s",
                flush=True,
            )
    card = RunFolder(target).card_file
    if card.exists():
        write_card(Card.load(card), card.with_suffix(".html"))
    if as_json:
        print(json.dumps({"folder": str(target), **outlook.to_json(), "records": records}))
    else:
        print(f"run folder: {target}; {run_dir} still holds models that saw the revoked users")


def _announce(outlook: "Outlook", target: Path) -> None:
    """Print what would happen and what would still hold."""
    before, after = outlook.guarantees_before, outlook.guarantees_after
    gone = outlook.after.names(outlook.after.steps[-1])
    print(f"revoking {', '.join(gone)}: {before.code.n_users} users become {after.code.n_users}")
    print(f"  {len(outlook.untouched)} sub-models never saw them and stay byte for byte")
    print(f"  {len(outlook.retrained)} sub-models saw them and are trained again without them: {outlook.retrained}")
    if outlook.dropped:
        print(f"  {len(outlook.dropped)} sub-models learnt from them alone and are dropped: {outlook.dropped}")
    print("  largest number of colluding users k among the rest, verified (threat model deterministic unless named):")
    for meaning, was, now in (
        ("detect a triggered input", before.detect, after.detect),
        ("recover the label", before.correct, after.correct),
        ("recover the label, arbitrary", before.correct_arbitrary, after.correct_arbitrary),
        ("name the attackers", before.track, after.track),
    ):
        change = "" if was == now else ("  (weaker)" if now < was else "  (stronger)")
        print(f"    {meaning:30} {was} -> {now}{change}")
    margins = " -> ".join(" ".join(map(str, card.margin)) for card in (before, after))
    print(f"  margins of the label for k = 1, 2, ...: {margins}")
    weights = f"{before.code.row_weight} -> {after.code.row_weight}"
    print(f"  the poorest sub-model learns from {weights} users")
    print(f"  new state: {target}")
