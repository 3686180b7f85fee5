"""``codeward federate one-round``: statistics sent once, as files; a plan, what a user sends, what the server makes."""

import json
import shutil
from pathlib import Path

import typer

one_round_app = typer.Typer(
    help="Train heads in one round: every user sends its statistics once.\n\n"
    "Example: codeward federate one-round plan --code code.json --backbone strokes --classes 10",
    no_args_is_help=True,
)


@one_round_app.command("plan")
def plan(
    code: Path = typer.Option(..., "--code", help="Code file (.json, .csv, .npy); its columns are the users."),
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

    Example: codeward federate one-round plan --code code.json --backbone strokes --classes 10
    """
    from codeward._errors import InputError
    from codeward.codes import Code
    from codeward.federated import OneRoundPlan

    names = None if classes.isdecimal() else [name.strip() for name in classes.split(",")]
    count = len(names) if names else int(classes)
    if count < 2:
        raise InputError(f"--classes {classes}: expected a number from 2 on, or names with commas between them")
    made = OneRoundPlan.make(Code.load(code), backbone, count, ridge, width, names)
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
