"""``codeward federate gate``: the only door of a consortium's server that faces the network."""

import json
import logging
from pathlib import Path

import typer

from codeward._errors import InputError


def gate(
    server: Path = typer.Argument(..., help="The server's folder, as `codeward federate init` writes it."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on: that of the interface users reach."),
    port: int = typer.Option(9092, "--port", min=1, max=65535, help="Port to listen on."),
    superlink: str = typer.Option("127.0.0.1:9093", "--superlink", help="HOST:PORT of the SuperLink behind the gate."),
    max_megabytes: int = typer.Option(32, "--max-megabytes", min=1, help="Largest request."),
    budget_megabytes: int = typer.Option(
        2048, "--budget-megabytes", min=1, help="What one user may send in ten minutes, all requests together."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object when the gate listens."),
) -> None:
    """Pass node traffic on to the SuperLink: only what a key of users.json signed, and only the interface for nodes.

    A SuperLink's Control interface asks for no password; it must stay on loopback, behind this gate. users.json is read
    again when it changes, so that a removed user is out at once. Runs until it is told to end.

    Example: codeward federate gate consortium/server --host 0.0.0.0
    """
    from codeward.federated.consortium import Gate, GateSettings, Roster, run_gate
    from codeward.federated.consortium import _layout as layout

    name, separator, number = superlink.rpartition(":")
    if not separator or not name or not number.isdigit():
        raise InputError(f"--superlink {superlink}: expected HOST:PORT")
    files = [server / file for file in (layout.SERVER_CERTIFICATE, layout.SERVER_KEY, layout.AUTHORITY_FILE)]
    for file in files:
        if not file.is_file():
            raise InputError(f"{file} is missing: give the server's folder, as `codeward federate init` writes it")
    certificate, key, authority = files
    roster = Roster.load(server / layout.ROSTER_FILE)
    settings = GateSettings(max_megabytes * 2**20, budget_megabytes * 2**20)
    logging.basicConfig(format="%(asctime)s %(message)s")

    def announce() -> None:
        if as_json:
            print(
                json.dumps({"host": host, "port": port, "superlink": superlink, "users": len(roster.members)}),
                flush=True,
            )
        else:
            print(f"gate at {host}:{port} for {len(roster.members)} users, to the SuperLink at {superlink}", flush=True)

    run_gate(Gate(server / layout.ROSTER_FILE, superlink, authority, settings), host, port, certificate, key, announce)
