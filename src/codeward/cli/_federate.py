"""``codeward federate``: train where the data are."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from codeward.cli._federate_collect import collect
from codeward.cli._federate_gate import gate
from codeward.cli._federate_init import init
from codeward.cli._federate_users import users

federate_app = typer.Typer(
    help="Federated training: users keep their data, the server enforces the code.", no_args_is_help=True
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
    from codeward.cli._run import _line, _table
    from codeward.experiments._federation import run_federated
    from codeward.runs import load_federated_config

    resolved = load_federated_config(config, settings)
    folder = output or Path("runs") / f"federated-{resolved.digest[:8]}"
    records: list[dict[str, Any]] = []
    try:
        for record in run_federated(resolved, folder, engine.value, progress=not quiet and not as_json):
            records.append(record)
            if not as_json:
                print(f"{_line(record)}; {_summary(record)}", flush=True)
    except KeyboardInterrupt:
        print(f"codeward: interrupted; the same command with -o {folder} goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps({"folder": str(folder), "records": records}))
        return
    from rich.console import Console

    console = Console()
    console.print(_table(records))
    console.print(f"run folder: {folder} (config.yaml, code.json, records/, votes/)", highlight=False)


federate_app.command("init")(init)
federate_app.command("gate")(gate)
federate_app.command("users")(users)
federate_app.command("collect")(collect)


def _summary(record: dict[str, Any]) -> str:
    rounds = record["federated"]["rounds"]
    refused = sum(len(report["refusals"]) for report in rounds)
    silent = sum(len(report["silent"]) for report in rounds)
    return f"{len(rounds)} rounds in {record['federated']['seconds']:.1f} s, {refused} refusals, {silent} silences"
