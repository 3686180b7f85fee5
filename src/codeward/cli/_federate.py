"""``codeward federate``: train where the data are, in rounds or in one, by statistics that are sent once as files."""

import json
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from codeward._figures import show_percent
from codeward.cli._consortium import gate, init, users

if TYPE_CHECKING:
    from rich.table import Table

one_round_app = typer.Typer(
    help="Train heads in one round: every user sends its statistics once.\n\n"
    "Example: codeward federate one-round plan --code code.json --backbone strokes --classes 10",
    no_args_is_help=True,
)
federate_app = typer.Typer(
    help="Federated training: users keep their data, the server enforces the code.\n\n"
    "Example: codeward federate simulate configs/federated-digits.yaml",
    no_args_is_help=True,
)


class Engine(StrEnum):
    """What carries the rounds; both give the same bytes."""

    flower = "flower"
    reference = "reference"


@federate_app.command("simulate")
def simulate(
    config: Path = typer.Argument(None, metavar="[CONFIG.yaml]", help="What to run; see configs/federated-*.yaml."),
    settings: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Override: federated.rounds=5."),
    output: Path = typer.Option(None, "-o", "--output", help="Run folder; by default runs/federated-<digest>."),
    engine: Engine = typer.Option(
        Engine.flower, "--engine", help="flower: Flower's simulation runtime; reference: this process, no Flower."
    ),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bars."),
    as_json: bool = typer.Option(False, "--json", help="Print the records as one JSON object."),
) -> None:
    """Simulate a federation, one Flower node a user, and write a run folder as codeward run does.

    Each round every user gets the sub-models of its column of the code, trains them on its own data and sends them
    back; the server checks what it gets and combines, per model, what its users sent. Attackers may send anything, so
    read the guarantees for the arbitrary threat model. decode, certify, report and serve work on the folder.

    Example: codeward federate simulate configs/federated-digits.yaml --set federated.rounds=5 -o runs/federated
    """
    from codeward.experiments import run_federated
    from codeward.runs import load_federated_config

    resolved = load_federated_config(config, settings)
    folder = output or Path("runs") / f"federated-{resolved.digest[:8]}"
    records: list[dict[str, Any]] = []
    try:
        for record in run_federated(resolved, folder, engine.value, progress=not quiet and not as_json):
            records.append(record)
            if not as_json:
                print(_line(record), flush=True)
    except KeyboardInterrupt:
        print(f"codeward: interrupted; the same command with -o {folder} goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps({"folder": str(folder), "records": records}))
        return
    from rich.console import Console

    console = Console()
    console.print(_table(records))
    console.print(_explain(records), highlight=False)
    console.print(f"run folder: {folder} (config.yaml, code.json, records/, votes/)", highlight=False)


@federate_app.command("collect")
def collect(
    federation: Path = typer.Argument(..., help="Folder with result.json: server/federation of a consortium."),
    dataset: str = typer.Option(..., "--data", help="Labelled test data: a data set, or a file of them."),
    data_dir: Path = typer.Option(None, "--data-dir", help="Where named data sets are kept."),
    output: Path = typer.Option(..., "--output", "-o", help="Run folder to make."),
    as_json: bool = typer.Option(False, "--json", help="Print the record as one JSON object."),
) -> None:
    """Make a run folder of a federation that has finished, for decode, certify, report and serve.

    The users' data stay where they are: the server asks the models about labelled test data of its own. Half of them
    estimates how each model errs, the other half is counted.

    Example: codeward federate collect server/federation --data test.npz -o runs/consortium
    """
    from codeward.experiments import collect_federation

    record = collect_federation(federation, dataset, output, data_dir)
    if as_json:
        print(json.dumps({"folder": str(output), "records": [record]}))
        return
    rounds = len(record["federated"]["rounds"])
    print(f"{output}: {record['code']['models']} sub-models, {rounds} round{'s' * (rounds != 1)}")


federate_app.command("init")(init)
federate_app.command("gate")(gate)
federate_app.command("users")(users)
federate_app.add_typer(one_round_app, name="one-round")


def _line(record: dict[str, Any]) -> str:
    rounds = record["federated"]["rounds"]
    refused = sum(len(report["refusals"]) for report in rounds)
    silent = sum(len(report["silent"]) for report in rounds)
    return (
        f"repeat {record['repeat']}, {record['n_attackers']} attackers: {len(rounds)} rounds in "
        f"{record['federated']['seconds']:.1f} s, {refused} refusals, {silent} silences"
    )


def _table(records: Sequence[dict[str, Any]]) -> "Table":
    """Lay out the figures: consensus, which assumes nothing about what attackers send, before Bayes, which does."""
    from rich.table import Table

    inputs = records[0]["figures"]["clean"]["all"]["plurality"]["of"]
    title = f"{inputs} test inputs a row, under attack all of them triggered"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("attack\nby", justify="right")
    names = ["consensus", "Bayes", "plurality", "verdicts", "consensus\nnames", "Bayes\nnames", "trigger\nworks"]
    for name in names:
        table.add_column(name, justify="right")
    for record in records:
        figures = record["figures"]
        agreed = figures["consensus"] or {"clean": None, "groups": [None] * len(figures["groups"])}
        pairs = zip(figures["groups"], agreed["groups"], strict=True)
        rows = [(group["triggered"]["all"], consensus, group) for group, consensus in pairs]
        for plain, consensus, group in rows or [(figures["clean"]["all"], agreed["clean"], None)]:
            table.add_row(
                str(record["n_attackers"]),
                _percent(consensus and consensus["right"]),
                _percent(plain["bayes"]),
                _percent(plain["plurality"]),
                _percent(consensus and consensus["verdicts"]),
                _named(group and consensus and consensus["tracking"]),
                _named(group and group["tracking"]),
                _percent(group and group["success"]["hit_models"]),
            )
    return table


def _explain(records: Sequence[dict[str, Any]]) -> str:
    consensus = records[0]["figures"]["consensus"]
    if consensus is None:
        return "The code guarantees nothing against users who send what they like: no consensus decoder."
    k, errors = consensus["n_attackers"], consensus["n_errors"]
    return (
        "consensus, Bayes, plurality: right labels. verdicts: inputs with a consensus verdict, which is the true label "
        f"if at most {k} users attack and at most {errors} models they do not reach are wrong, whatever was sent; the "
        "other inputs get the plurality label. names: attackers / others, mean of an input. trigger works: "
        "votes of reached models for the target planted in each."
    )


def _percent(figure: dict[str, int] | None) -> str:
    return show_percent(figure["count"] / figure["of"]) if figure and figure["of"] else "-"


def _named(tracking: dict[str, Any] | None) -> str:
    return f"{tracking['true_positives']:.2f}/{tracking['false_positives']:.2f}" if tracking else "-"


@one_round_app.command("plan")
def plan(
    code: Path = typer.Option(..., "--code", help="Code file (.json, .csv, .npy); its columns are the users."),
    users: str = typer.Option(None, "--users", metavar="A,B,...", help="Their names, where the code has none."),
    backbone: str = typer.Option("strokes", "--backbone", help="What makes features; or features: users bring them."),
    classes: str = typer.Option(..., "--classes", metavar="N|A,B,...", help="How many (0, 1, ...), or their names."),
    ridge: float = typer.Option(0.1, "--ridge", help="Of the heads: stated, never estimated."),
    width: int = typer.Option(None, "--width", help="Of users' own features."),
    output: Path = typer.Option(
        Path("one-round.json"), "-o", "--output", help="The plan, for the server and all users."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Write what all parties agree on before anybody sends anything.

    In server/federation of a consortium (`codeward federate init`) the file turns its Flower run into one round.

    Example: codeward federate one-round plan --code code.json --users alice,bob,carol,dave,erin --classes 10
    """
    from codeward._errors import InputError
    from codeward.codes import Code
    from codeward.federated import OneRoundPlan

    names = None if classes.isdecimal() else [name.strip() for name in classes.split(",")]
    count = len(names) if names else int(classes)
    if count < 2:
        raise InputError(f"--classes {classes}: expected a number from 2 on, or names with commas between them")
    columns = Code.load(code)
    if users is not None:
        columns = Code(columns.matrix, users=[name.strip() for name in users.split(",")], models=columns.models)
    made = OneRoundPlan.make(columns, backbone, count, ridge, width, names)
    made.save(output)
    told = {"file": str(output), "plan": made.identity, "users": made.code.n_users, "models": made.code.n_models}
    text = f"{output}: {told['users']} users, {told['models']} heads on {backbone}, plan {made.identity[:16]}"
    print(json.dumps(told | {"backbone": backbone, "digest": made.digest, "width": made.width}) if as_json else text)


@one_round_app.command("send")
def send(
    data: str = typer.Argument(..., metavar="DATA", help="This user's samples: .npz, .csv, a folder of images."),
    agreed: Path = typer.Option(Path("one-round.json"), "--plan", help="What was agreed on."),
    user: str = typer.Option(..., "--user", help="Who this is: a column of the code."),
    label: str = typer.Option(None, "--label", help="Column of the label, in a table."),
    text: str = typer.Option(None, "--text", help="Column of the text, in a table."),
    rows: bool = typer.Option(False, "--rows", help="Send feature rows where they are smaller; shows every sample."),
    output: Path = typer.Option(None, "-o", "--output", help="File for the server; by default USER.npz."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Write what a user sends: the statistics of its own samples, once for all its models.

    Example: codeward federate one-round send own.npz --plan one-round.json --user alice
    """
    from codeward._errors import InputError
    from codeward.federated import OneRoundPlan, make_statistics, save_statistics

    plan = OneRoundPlan.load(agreed)
    names = [plan.name(column) for column in range(plan.code.n_users)]
    if user not in names:
        raise InputError(f"--user {user}: the plan has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}")
    own = plan.read_samples(data, label, text)
    message = make_statistics(plan, own.inputs, own.labels, rows)
    file = output or Path(f"{user}.npz")
    save_statistics(file, message)
    told = {"file": str(file), "samples": len(own), "bytes": file.stat().st_size}
    text = f"{file}: statistics of {told['samples']:,} samples, {told['bytes']:,} bytes; give it to the server"
    print(json.dumps(told) if as_json else text)


@one_round_app.command("combine")
def combine(
    inbox: Path = typer.Argument(..., help="Folder with USER.npz of each user."),
    agreed: Path = typer.Option(Path("one-round.json"), "--plan", help="What was agreed on."),
    output: Path = typer.Option(..., "-o", "--output", help="Folder for the heads; it must not exist."),
    test: str = typer.Option(
        None, "--test", metavar="TEST", help="Labelled samples of the server: makes a run folder to serve."
    ),
    label: str = typer.Option(None, "--label", help="Column of the label, in a table."),
    text: str = typer.Option(None, "--text", help="Column of the text, in a table."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Check what users sent, leave out what no samples could give, and fit one head a row of the code.

    The heads have the bytes of those fitted on all users' data in one place. With --test the folder is a run folder:
    decode, certify, report, serve, ledger and revoke work on it; half of the samples fit the decoder, half measure.
    Revoking subtracts a user's statistics, which the folder keeps. `federate collect` makes it later.

    Example: codeward federate one-round combine inbox --plan one-round.json -o runs/heads --test test.npz
    """
    from codeward._errors import InputError
    from codeward.federated import OneRound, OneRoundPlan

    if output.exists():
        raise InputError(f"{output} exists; choose another folder with -o")
    if not inbox.is_dir():
        raise InputError(f"{inbox}: not a folder with USER.npz of each user")
    plan = OneRoundPlan.load(agreed)
    if test is not None:
        plan.read_samples(test, label, text)  # a mistake is told before anything is written
    server = OneRound(plan)
    server.read(inbox)
    if not server.counted:
        raise InputError(f"{inbox}: no user's statistics count; {next(iter(server.refusals.values()), 'no files')}")
    heads = server.save(output)
    told = {"folder": str(output), "models": heads.n_models, **server.describe()}
    told["counted"] = list(told["counted"])
    if test is not None:
        from codeward.experiments import collect_one_round
        from codeward.runs import RunFolder

        try:
            told["record"] = collect_one_round(output, test, output, label=label, text=text)
        except InputError:
            shutil.rmtree(output)  # made a moment ago, of files that are still there
            raise
        told["votes"] = str(RunFolder(output).votes(0, 0, "clean"))
    if as_json:
        print(json.dumps(told))
        return
    for reason in server.refusals.values():
        typer.echo(f"left out: {reason}", err=True)
    counts = f"{len(server.counted)} users counted, {len(server.silent)} silent, {len(server.refusals)} refused"
    typer.echo(f"{output}: {heads.n_models} heads; {counts}")
