"""``codeward serve`` and ``codeward ledger``: the guarded endpoint of a run, its incidents, what they say together."""

import json
import sys
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import typer

from codeward._errors import InputError
from codeward._figures import show_percent

if TYPE_CHECKING:
    from codeward.runs import Cell
    from codeward.serve import Incident, Ledger


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


ledger_app = typer.Typer(
    help="List, show, export and verify the incidents of a guarded endpoint.\n\n"
    "Example: codeward ledger show --run runs/clinics",
    no_args_is_help=True,
)

_LEDGER = typer.Option(
    None, "--ledger", envvar="CODEWARD_LEDGER", metavar="FILE|URL", help="Ledger; by default RUN_DIR/ledger.sqlite."
)
_RUN = typer.Option(None, "--run", metavar="RUN_DIR", help="Run folder whose models voted.")
_TARGET = typer.Option(None, "--target", "-t", metavar="CLASS", help="Only this target: a class by name or number.")
_SINCE = typer.Option(None, "--since", metavar="TIME", help="Only from this time on: 2026-05-01 or 2026-05-01T12:00Z.")
_JSON = typer.Option(False, "--json", help="Print one JSON object.")


@ledger_app.command("list")
def list_incidents(
    ledger: str = _LEDGER,
    run: Path = _RUN,
    target: str = _TARGET,
    since: str = _SINCE,
    limit: int = typer.Option(50, "--limit", "-n", min=1, help="At most this many, the latest."),
    as_json: bool = _JSON,
) -> None:
    """List the latest incidents, newest first.

    Example: codeward ledger list --ledger postgresql://guard@localhost/incidents --since 2026-05-01
    """
    with _open(ledger, run) as opened:
        found = opened.entries(limit, target=target, since=_read_time(since), newest_first=True)
        counts = _count_targets(opened)
    if as_json:
        print(json.dumps({"incidents": [incident.to_json() for incident in found], "by_target": counts}))
        return
    from rich.console import Console
    from rich.table import Table

    from codeward.serve import DamagedIncident

    table = Table(title=f"{len(found)} of {sum(counts.values())} incidents", title_justify="left")
    for name in ("id", "time (UTC)", "target", "label", "attack", "suspects", "votes"):
        table.add_column(name, justify="left" if name in ("time (UTC)", "suspects", "votes") else "right")
    for incident in found:
        if isinstance(incident, DamagedIncident):
            table.add_row(str(incident.id), _plain(f"damaged: {incident.damage}"))
            continue
        told = incident.to_json()
        table.add_row(
            str(incident.id),
            f"{incident.time.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
            _plain(told["target"]),
            _plain(told["label"]),
            show_percent(incident.attack_probability),
            _plain(_name_suspects(told)),
            _plain(_count_votes(told["votes"]) if incident.classes else " ".join(map(str, told["votes"]))),
        )
    Console().print(table)


@ledger_app.command("show")
def show(
    number: int | None = typer.Argument(None, metavar="[ID]", help="Incident; without it, the evidence of a run."),
    ledger: str = _LEDGER,
    run: Path | None = _RUN,
    target: str = _TARGET,
    expect: int = typer.Option(None, "--expect", min=1, help="As given to codeward serve."),
    alpha: float = typer.Option(0.01, "--alpha", help="Bound on convicting anyone when nobody attacks."),
    certainty: float = typer.Option(0.99, "--certainty", help="Least probability of a convicted user."),
    spare: int = typer.Option(
        None, "--spare", min=0, help="Models in which a trigger may fail; by default as many as cost nothing."
    ),
    as_json: bool = _JSON,
) -> None:
    """Show one incident, or with --run what all incidents of a target say together: who attacks, and how sure it is.

    Example: codeward ledger show --run runs/digits --target 7
    """
    if number is None and run is None:
        raise InputError("say which incident (codeward ledger show ID) or whose evidence (--run RUN_DIR)")
    with _open(ledger, run) as opened:
        if number is not None:
            incident = opened.incident(number)
            content = incident.to_json()
            if as_json:
                print(json.dumps(content))
                return
            users = _name_columns(incident, run)
            told = zip(users, incident.user_probability, strict=True)
            content["user_probability"] = [f"{name} {show_percent(chance)}" for name, chance in told if chance >= 0.01]
            content["suspect_sets"] = [" + ".join(map(str, one)) for one in content["suspect_sets"]]
            for name, value in content.items():
                apart = " or " if name == "suspect_sets" else ", " if name in ("suspects", "user_probability") else " "
                print(f"{name:19} {_show(_join(value, apart))}")
            return
        limits = {"alpha": alpha, "certainty": certainty, "spare": spare}
        cells = _find_cells(opened, run) if run else []
        evidence = [item for cell in cells for item in _weigh(opened, cell, target, expect, limits)]
    if as_json:
        print(json.dumps({"evidence": evidence}))
        return
    _print_evidence(evidence)


@ledger_app.command("export")
def export(
    output: Path = typer.Argument(..., metavar="FILE", help=".jsonl (everything) or .csv."),
    ledger: str = _LEDGER,
    run: Path = _RUN,
    target: str = _TARGET,
    since: str = _SINCE,
    as_json: bool = _JSON,
) -> None:
    """Write incidents to a file, oldest first.

    Example: codeward ledger export incidents.jsonl --ledger ledger.sqlite
    """
    with _open(ledger, run) as opened:
        written = opened.export(output, target=target, since=_read_time(since))
    print(json.dumps({"file": str(output), "incidents": written}) if as_json else f"{written} incidents in {output}")


@ledger_app.command("verify")
def verify(
    ledger: str = _LEDGER,
    run: Path = _RUN,
    chain: str = typer.Option(None, "--chain", metavar="VALUE", help="A chain value noted at an earlier verify."),
    as_json: bool = _JSON,
) -> None:
    """Check that no incident was changed, removed or slipped in since it was written; exit status 1 where one was.

    Note the chain value that is printed somewhere else: with --chain it shows later whether even someone who can write
    the whole ledger anew has done so.

    Example: codeward ledger verify --ledger ledger.sqlite
    """
    with _open(ledger, run) as opened:
        found = opened.verify(chain)
    if as_json:
        print(json.dumps({"intact": not found.problems} | asdict(found)))
    else:
        for problem in found.problems:
            print(problem)
        verdict = "broken" if found.problems else "intact"
        print(f"{verdict}: {found.incidents} incidents; the newest is {found.number}, its chain value")
        print(found.chain)
        if found.adopted:
            print(f"incidents up to {found.adopted} come from an older format, chained when it was opened by this one")
    if found.problems:
        raise typer.Exit(1)


def _open(ledger: str | None, run: Path | None) -> "Ledger":
    """Open a ledger that exists; looking must not make an empty one where a name was mistyped."""
    from codeward.serve import DEFAULT_LEDGER, Ledger

    if ledger is None:
        if run is None:
            raise InputError("say which ledger: --ledger FILE|URL, or --run RUN_DIR for the one in a run folder")
        place = str(run / DEFAULT_LEDGER)
    else:
        place = ledger
    file = place.removeprefix("sqlite:///")
    if "://" not in file and not Path(file).is_file():
        hint = "" if run is None else f"; `codeward serve {run}` begins one, with the first input that raises an alarm"
        raise InputError(f"{file}: no such ledger{hint}")
    return Ledger(place)


def _count_targets(ledger: "Ledger") -> dict[str, int]:
    """Return the number of incidents by target, by name where there are names."""
    names, counts = ledger.targets(), Counter[str]()
    for run, digest in ledger.runs():
        for target, count in ledger.count(run, digest).items():
            counts[names.get((run, digest, target), str(target))] += count
    return dict(counts)


def _read_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"--since {text}: expected a date or time such as 2026-05-01 or 2026-05-01T12:00Z") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _name_columns(incident: "Incident", run: Path | None) -> list[int | str]:
    """Return what the columns of an incident's code are called: a ledger names suspects alone, the run all users."""
    from codeward.runs import list_cells

    for cell in list_cells(run) if run else []:
        if (cell.id, cell.code.digest) == (incident.run, incident.code_digest):
            return [cell.code.user_name(column) for column in range(cell.code.n_users)]
    names = incident.name_users(range(len(incident.user_probability)))
    return [name if isinstance(name, str) or not incident.users else f"column {name}" for name in names]


def _find_cells(ledger: "Ledger", run: Path) -> "list[Cell]":
    """Return the cells of a run folder that have incidents."""
    from codeward.runs import list_cells

    known = set(ledger.runs())
    cells = [cell for cell in list_cells(run) if (cell.id, cell.code.digest) in known]
    if known and not cells:
        raise InputError(f"{run}: no incident of the ledger comes from these models (it knows {sorted(known)[0][0]})")
    return cells


def _weigh(
    ledger: "Ledger", cell: "Cell", target: str | None, expect: int | None, limits: dict[str, Any]
) -> list[dict[str, Any]]:
    from codeward.serve import gather_evidence, make_examiner, name_classes

    # Thresholds were the endpoint's: the lowest one here leaves the choice to what the ledger says.
    found = gather_evidence(ledger, make_examiner(cell, expect, None, threshold=0.0, **limits), cell.id)
    if not found:
        raise InputError(f"{cell.id}: a decoder with other assumptions recorded these; give serve's --expect here too")
    names = name_classes(cell)
    told = [{"run": cell.id, **item.to_json(cell.code), "target": names[key] if names else key}
            for key, item in found.items()]  # fmt: skip
    kept = [item for item in told if target in (None, str(item["target"]))]
    if not (kept or target is None or target.isdecimal()):
        there = ", ".join(str(item["target"]) for item in told)
        raise InputError(f"--target {target}: no incident of {cell.id} has this target; there are {there}")
    return kept


def _name_suspects(told: dict[str, Any]) -> str:
    """Return the users named for sure, or else how many explanations there are."""
    sets = len(told["suspect_sets"]) + told["more_sets"]
    return ", ".join(map(str, told["suspects"])) or (f"one of {sets} sets" if sets else "-")


def _count_votes(votes: list[Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(votes).most_common())


def _join(value: Any, apart: str = " ") -> str:
    parts = value if isinstance(value, list) else [value]
    return apart.join(f"{part:.3g}" if isinstance(part, float) else str(part) for part in parts)


def _show(value: Any) -> str:
    """Return a name as text that does nothing to a terminal: users chose it."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value))


def _plain(value: Any) -> Any:
    """Return a name as text that is no markup."""
    from rich.text import Text

    return Text(_show(value))


def _explain_power(item: dict[str, Any]) -> str:
    """Say what would have to be there for a conviction, where there is none."""
    if item["incidents_needed"] is not None:
        many = item["incidents_needed"]
        return f"it takes {many} incidents of one target or more, all of them true, to convict anyone here"
    few = "too few raised one" if item["reference_false_alarms"] else "none raised one"
    return (
        f"nobody can be convicted here: alarms are compared with those on clean test inputs, and {few}; train "
        "with more of them (--test FILE, or a larger --test-fraction), and serve that folder"
    )


def _explain_apart(apart: int, spare: int) -> str:
    """Say how the incidents are explained without a user."""
    more = f"if the trigger fails in {apart} more models" if apart > 1 else "if the trigger fails in one more model"
    how = more if apart else "as well with others"
    return f"the incidents are explained {how} (--spare {spare})"


def _print_evidence(evidence: list[dict[str, Any]]) -> None:
    if not evidence:
        print("no incidents: no evidence against anyone")
    for item in evidence:
        print(f"target {_show(item['target'])}, models {item['run']}: {item['incidents']} incidents")
        bound, alpha, false = item["error_bound"], item["alpha"], item["reference_false_alarms"]
        verdict = "an attack is shown" if item["attack_shown"] else "they may all be false alarms"
        chance = f"if nobody attacks, evidence like this has a chance of at most {bound:.2g}"
        said = f"{verdict}: {chance} (limit {alpha:g}, against {false} false alarms on clean test inputs)"
        print(fill(said, 78, initial_indent="  ", subsequent_indent="  "))
        if not item["attack_shown"]:
            print(fill(_explain_power(item), 78, initial_indent="  ", subsequent_indent="  "))
        named = ", ".join(f"{name} {show_percent(value)}" for name, value in item["user_probability"].items())
        print(f"  given an attack: {_show(named) or 'nobody above 1%'}")
        print(f"  convicted: {_show(', '.join(item['convicted'])) or 'nobody'}")
        for name, apart in item["models_apart"].items():
            if name not in item["convicted"]:
                said = f"not {_show(name)}: without, {_explain_apart(apart, item['spare_models'])}"
                print(fill(said, 78, initial_indent="  ", subsequent_indent="  "))
