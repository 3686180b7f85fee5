"""``codeward run``: the main job, where it trains, what it prints at its end; ``codeward revoke``: who leaves it."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from codeward._errors import InputError
from codeward._figures import show_percent

if TYPE_CHECKING:
    from rich.table import Table

    from codeward.experiments import Experiment
    from codeward.runs import Cell, Outlook, RunFolder
    from codeward.training import Cluster


def run(
    config: Path = typer.Argument(None, metavar="[CONFIG.yaml]", help="What to run; see configs/. Default: digits."),
    settings: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Override, such as attack.kind=blended."),
    output: Path = typer.Option(None, "-o", "--output", help="Run folder; by default runs/<data set>-<digest>."),
    engine: str = typer.Option(None, "--engine", metavar="serial|ray", help="Train here (default) or with Ray."),
    address: str = typer.Option(
        None, "--address", metavar="auto|HOST:PORT", help="Ray cluster to join; by default Ray starts on this machine."
    ),
    force: bool = typer.Option(False, "--force", help="Move a folder with another run aside (to FOLDER.1, ...)."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bars."),
    as_json: bool = typer.Option(False, "--json", help="Print the records as one JSON object."),
) -> None:
    """Train a code's sub-models under attack, decode their votes, and write a run folder.

    Without a configuration: scikit-learn's digits, 12 users, 15 sub-models that each learn from a third of them, a
    decoder with 5% false alarms, 0 to 3 attackers; the code names two of them. The paper's: --set decoder.name=bayes
    --set code.name=c. The folder gets the resolved configuration, one record a cell, vote files for decode and certify,
    and plots. Run it again to go on after an interruption, or to train models again that the folder lost; nothing is
    trained twice. Where it trains changes nothing in the results.

    Example: codeward run configs/mnist-c.yaml --set repeats=1 --set data_dir=data -o runs/mnist
    """
    from codeward.runs import load_config

    chosen = json.dumps(pick_address(engine, address))
    resolved = load_config(config, settings if engine is None else [*settings, f"cluster={chosen}"])

    if resolved.dataset.endswith(".npz"):
        from codeward.experiments import settle_users

        invented = resolved.split.kind
        resolved = settle_users(resolved)
        if resolved.split.kind != invented:
            print(
                f"codeward: the groups of {resolved.dataset} are the users, {resolved.users} of them", file=sys.stderr
            )

    from codeward.runs import RunFolder

    folder = RunFolder(output or Path("runs") / f"{Path(resolved.dataset).stem}-{resolved.digest[:8]}")
    moved = folder.move_aside() if force else None
    if moved is not None:
        print(f"codeward: what was in {folder.path} is now in {moved}", file=sys.stderr)

    from codeward.experiments import Experiment

    experiment, cells = Experiment(resolved, folder), []
    try:
        for cell, made in experiment.run(progress=not quiet and not as_json):
            cells.append(cell)
            if not as_json:
                print(_line(cell.record, made), flush=True)
    except KeyboardInterrupt:
        print(f"codeward: interrupted; the same command with -o {folder.path} goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    plots, records = _draw(experiment, cells), [cell.record for cell in cells]
    if as_json:
        print(json.dumps({"folder": str(folder.path), "records": records, "plots": [str(plot) for plot in plots]}))
        return
    print_summary(folder, records)


def _draw(experiment: "Experiment", cells: "Sequence[Cell]") -> list[Path]:
    """Draw accuracy, code and users as SVG files."""
    from codeward.report import draw_accuracy, draw_matrix

    folder = experiment.folder
    plots = [folder.plots / name for name in ("accuracy.svg", "code.svg", "users.svg")]
    draw_accuracy(cells).save(plots[0])
    draw_matrix(folder.code.matrix, folder.code.users).save(plots[1])
    if not plots[2].exists():
        experiment.draw_users(plots[2])
    return plots


def _line(record: dict[str, Any], made: bool = True) -> str:
    work = record["work"]
    done = f"{work['trained']} of {work['models']} sub-models trained" if made else "already there"
    size = record["n_attackers"]
    return f"repeat {record['repeat']}, {size} attacker{'s' * (size != 1)}: {done}"


def print_summary(folder: "RunFolder", records: Sequence[dict[str, Any]]) -> None:
    """Print the figures of a run, one row a cell, what its code guarantees, and what to do next."""
    from rich.console import Console

    from codeward.codes import inspect
    from codeward.runs import Cell, certify_kept, decoder_figures, state_guarantees, sum_up_guarantees

    found = inspect(folder.code)
    kept = certify_kept(Cell(folder, records[0]["repeat"], records[0]["n_attackers"]))
    covered = min(found.correct, found.track) or found.correct
    covered = covered if kept is None else min(covered, kept.n_attackers)
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
    promise = sum_up_guarantees(state_guarantees(found, kept))
    for line in ("", " ".join(told), "", promise, ""):
        console.print(line, highlight=False)
    print(f"run folder: {folder.path}\nnext: codeward report {folder.path}")


def _tabulate(records: Sequence[dict[str, Any]], covered: int) -> tuple["Table", dict[str, Any] | None]:
    from rich.table import Table

    from codeward.runs import decoder_figures

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
    from codeward.runs import rate

    return "" if figure is None else show_percent(rate(figure))


@contextmanager
def open_cluster(engine: str | None, address: str | None) -> "Iterator[Cluster | None]":
    """Open the cluster that the two options name for as long as the context lasts; None where this process trains."""
    from codeward.training import Cluster

    chosen = pick_address(engine, address)
    if chosen is None:
        yield None
        return
    with Cluster(chosen) as cluster:
        cluster.check()
        yield cluster


def pick_address(engine: str | None, address: str | None) -> str | None:
    """Return the address of the cluster to train on; None for this process."""
    if engine not in (None, "serial", "ray"):
        raise InputError(
            f"--engine {engine}: expected serial or ray (how a machine computes is --set training.engine=...)"
        )
    if address is not None and engine != "ray":
        raise InputError("--address: goes with --engine ray")
    return (address or "local") if engine == "ray" else None


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
