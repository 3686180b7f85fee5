"""``codeward serve``: the guarded endpoint of a run."""

import json
import sys
from pathlib import Path
from typing import Any

import typer


def serve(
    run_dir: Path = typer.Argument(..., metavar="RUN_DIR", help="A folder made by codeward train or run."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on; other than loopback needs a token."),
    port: int = typer.Option(8000, help="Port to listen on; 0 takes a free one."),
    ledger: str = typer.Option(None, metavar="URL", help="Incident ledger: a file or URL; default RUN_DIR's own."),
    token_file: Path = typer.Option(None, help="File with the bearer token; else the variable CODEWARD_TOKEN."),
    insecure: bool = typer.Option(False, "--insecure", help="Allow other machines in without a token."),
    trusted_proxy: list[str] = typer.Option(
        [], metavar="ADDRESS", help="Proxy (address or network) whose X-Forwarded-For tells clients apart; repeatable."
    ),
    threshold: float = typer.Option(
        None, metavar="P", help="Attack probability above which an input is an incident; default the decoder's own."
    ),
    attackers: int = typer.Option(None, help="Which cell: number of simulated attackers; default the most."),
    repeat: int = typer.Option(0, help="Which cell: repeat."),
    expect: int = typer.Option(None, metavar="K", help="Attackers the decoder expects; default what the run says."),
    as_json: bool = typer.Option(False, "--json", help="Announce the address as one JSON object."),
) -> None:
    """Serve a folder's models behind the decoder: verdicts, alarms, suspects, a ledger of incidents, and a page.

    POST records (JSON or CSV), texts or images (PNG, JPEG, .npy, JSON) to /predict; open the printed address in a
    browser for the page. An alarm is on disk before it is answered. Ctrl-C stops it after the requests in hand.

    Example: codeward train patients.csv -o clinics && codeward serve clinics
    """
    from codeward.reproduction import is_packed
    from codeward.runs import is_run, list_inner_runs
    from codeward.serve import DEFAULT_LEDGER, Ledger, ServeSettings, read_token

    # The cheap checks first: a wrong option is refused before models are loaded.
    settings = ServeSettings(host, port, read_token(token_file), insecure, tuple(trusted_proxy))
    if not is_run(run_dir):
        runs = list_inner_runs(run_dir)
        hint = f"; it holds runs, such as {runs[0]}" if runs else ""
        if not runs and is_packed(run_dir):
            hint = "; packed results have votes but no models: `codeward reproduce` with -o trains them"
        raise typer.BadParameter(
            f"{run_dir} is no run folder (no code.json and config.yaml){hint}", param_hint="RUN_DIR"
        )

    from codeward.serve import open_run, serve_run

    opened = open_run(run_dir, repeat, attackers, threshold, expect)
    card = opened.card

    def announce(address: str) -> None:
        about = {
            "url": address,
            "run": opened.cell.id,
            "models": card["models"],
            "users": card["users"],
            "repeat": opened.cell.repeat,
            "simulated_attackers": opened.cell.n_attackers,
            "guarantee": opened.guard.guarantee["text"],
            "token": settings.token is not None,
        }
        if as_json:
            print(json.dumps(about), flush=True)
        else:
            print(f"codeward serves {run_dir} at {address} (Ctrl-C stops it)")
            simulated = about["simulated_attackers"]
            print(
                f"  {card['models']} sub-models of {card['users']} users, {card['dataset']}; "
                f"takes {_takes(card['input'])}{f'; {simulated} simulated attackers' if simulated else ''}"
            )
            print(f"  guarantee: {about['guarantee']}")
            print(
                f"  decoder {card['decoder']}, incident above {card['threshold']:.3g}, expects up to "
                f"{card['expected_attackers']} attackers; token: {'needed' if settings.token else 'none'}",
                flush=True,
            )
        if not settings.is_loopback and settings.token is None:
            print("codeward: warning: anyone who reaches this address may use it (--insecure)", file=sys.stderr)

    serve_run(opened, Ledger(ledger or str(run_dir / DEFAULT_LEDGER)), settings, announce=announce)


def _takes(told: dict[str, Any]) -> str:
    """Say in a few words what the models take."""
    if told["kind"] == "image":
        return f"images of {told['width']} x {told['height']}, {'grey' if told['channels'] == 1 else 'colour'}"
    if told["kind"] == "table":
        return f"records of {len(told['columns'])} columns"
    return "texts" if told["kind"] == "text" else f"vectors of {told['columns'][0]['shape'][0]} features"
