"""``codeward federate init``, ``gate`` and ``users``: a consortium, its door, and who speaks for which column."""

import dataclasses
import json
import logging
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from codeward._errors import InputError

if TYPE_CHECKING:
    from codeward.codes import Code


def init(
    folder: Path = typer.Argument(..., help="Folder to write; it must not exist."),
    users: str = typer.Option(
        None, "--users", "-n", help="Their number, or their names: alice,bob,carol. By default those of --code."
    ),
    host: list[str] = typer.Option(
        ...,
        "--host",
        help="DNS name or IP address of the server, for its certificate; again for more. Users dial the first.",
    ),
    code: Path = typer.Option(None, "--code", help="Code file (.json, .csv, .npy); one column a user."),
    attackers: int = typer.Option(None, "--attackers", "-k", help="Without --code: design one against so many users."),
    row_weight: int = typer.Option(None, "--row-weight", "-r", help="Design: users every model learns from, at least."),
    utilization: float = typer.Option(None, "--utilization", "-u", help="Design: the same as a share of the users."),
    guarantee: str = typer.Option(
        "correct-arbitrary",
        "--guarantee",
        "-g",
        help="Design: users who send updates can plant anything in each model.",
    ),
    margin: int = typer.Option(3, "--margin", help="Design: D absorbs (D-1)/2 wrong votes of honest models."),
    recipe: str = typer.Option("mnist", "--recipe", help="Local training: digits, mnist, fashion-mnist or cifar10."),
    shape: str = typer.Option(None, "--shape", help="Images as CHANNELS,HEIGHT,WIDTH; by default those of the recipe."),
    classes: int = typer.Option(None, "--classes", help="Number of classes; by default that of the recipe."),
    rounds: int = typer.Option(10, "--rounds", help="Rounds of training."),
    local_epochs: int = typer.Option(1, "--local-epochs", help="Epochs of each user on its own data in a round."),
    timeout: float = typer.Option(600.0, "--timeout", help="Seconds a round waits for replies."),
    seed: int = typer.Option(0, "--seed", help="Seed of the plan."),
    public_key: list[str] = typer.Option(
        [], "--public-key", help="NAME=FILE.pub: a user who made its own key; its private key is then never here."
    ),
    port: int = typer.Option(9092, "--port", help="Port of the gate, which users reach."),
    superlink_port: int = typer.Option(
        9093, "--superlink-port", help="Port of the SuperLink, on the server's loopback."
    ),
    days: int = typer.Option(365, "--days", help="How long the certificates last."),
    as_json: bool = typer.Option(
        False, "--json", help="Print one JSON object: folders, commands, who is bound to which key."
    ),
) -> None:
    """Write a consortium: Flower app, code, certificates, one key per user, and a README of commands for each party.

    Private keys are readable by their owner alone, and a user's folder holds no other user's key. Nothing is written
    over. How training goes can still be changed in server/federation/federation.json.

    Example: codeward federate init consortium --users alice,bob,carol,dave,erin -k 1 -r 2 --host fl.example.org

    Example: codeward federate init consortium --code code.json --host fl.example.org --public-key alice=alice.pub
    """
    from codeward.codes import inspect
    from codeward.data import CATALOG
    from codeward.federated import FederatedSettings, FederationPlan
    from codeward.federated.consortium import write_consortium
    from codeward.runs import state_guarantees
    from codeward.training import PRESETS, build_network

    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder} exists: a consortium is never written over another; choose a new folder")
    names: int | list[str] | None = None
    if users is not None:
        names = int(users) if users.isdigit() else [name.strip() for name in users.split(",")]
    matrix = _read_code(code, names, attackers, row_weight, utilization, guarantee, margin, seed, as_json)
    if recipe not in PRESETS:
        raise InputError(f"--recipe {recipe}: expected one of {', '.join(PRESETS)}")
    images = CATALOG[recipe].shape if shape is None else _read_shape(shape)
    training = dataclasses.replace(PRESETS[recipe], n_classes=CATALOG[recipe].n_classes if classes is None else classes)
    # Found out here, not by the first round: whether the recipe's network fits the images.
    build_network(training.architecture, images, training.n_classes, seed)
    settings = FederatedSettings(rounds=rounds, local_epochs=local_epochs, timeout=timeout)
    plan = FederationPlan(matrix, training, settings, images, seed)
    keys = _read_public_keys(public_key)
    written = write_consortium(folder, plan, host, port, superlink_port, days, keys)
    said = next(one for one in state_guarantees(inspect(plan.code)) if one.threat == "arbitrary")
    if as_json:
        print(
            json.dumps(
                written.to_json()
                | {"guarantee": said.sentence, "models": plan.code.n_models, "code_digest": plan.code.digest}
            )
        )
        return
    print(f"{folder}: {plan.code.n_users} users, {plan.code.n_models} sub-models, server {written.address.public}")
    for member in written.roster.members:
        print(f"  column {member.user}  {member.name}  {member.fingerprint}")
    print(textwrap.fill(said.sentence, 80))
    print(f"next: {folder / 'README.md'} says which folder goes to whom")


def _read_code(
    file: Path | None,
    users: int | list[str] | None,
    attackers: int | None,
    row_weight: int | None,
    utilization: float | None,
    guarantee: str,
    margin: int,
    seed: int,
    quiet: bool,
) -> "Code":
    """Return the code with a name for every column."""
    from codeward.codes import Code

    if file is not None and attackers is None:
        found = Code.load(file)
    elif file is None and attackers is not None:
        from codeward._progress import show_progress
        from codeward.codes import design

        if users is None:
            raise InputError("--users is needed to design a code: their number, or their names")
        count = users if isinstance(users, int) else len(users)
        asked: dict[str, Any] = {
            "margin": margin,
            "time_limit": 10.0,
            "seed": seed,
            "groups": True,
            "reproducible": True,
        }
        with show_progress("designing", asked["time_limit"], not quiet) as bar:
            found = design(count, attackers, row_weight, utilization, guarantee, progress=bar, **asked).code
    else:
        raise InputError("give --code FILE, or --attackers K to design a code, and not both")
    if isinstance(users, list):
        names = users
    else:
        names = list(found.users or (f"user{column}" for column in range(found.n_users)))
    count = users if isinstance(users, int) else len(names)
    if count != found.n_users:
        raise InputError(f"{count} users for a code of {found.n_users} columns")
    return Code(found.matrix, names, found.models, found.construction)


def _read_shape(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--shape {text}: expected CHANNELS,HEIGHT,WIDTH, such as 1,28,28")
    channels, height, width = (int(part) for part in parts)
    return channels, height, width


def _read_public_keys(given: list[str]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for entry in given:
        name, separator, file = entry.partition("=")
        if not separator or name in keys:
            raise InputError(f"--public-key {entry}: expected NAME=FILE, each name once")
        try:
            keys[name] = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--public-key {entry}: the file cannot be read") from error
    return keys


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
    from codeward.federated.consortium import GateSettings, NodeGate, Roster, layout, run_gate

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

    run_gate(
        NodeGate(server / layout.ROSTER_FILE, superlink, authority, settings), host, port, certificate, key, announce
    )


def users(
    server: Path = typer.Argument(..., help="The server's folder, as `codeward federate init` writes it."),
    replace: str = typer.Option(None, "--replace", metavar="NAME=FILE.pub", help="Give a user a new key."),
    remove: str = typer.Option(None, "--remove", metavar="NAME", help="Let nobody speak for a user's column any more."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """List the users of a consortium with the keys that speak for them, replace a key or remove a user.

    The gate refuses an old or removed key from the next request on, and a run that starts later does not know it. What
    a removed user taught the models before stays in them; only training again without it takes that away.

    Example: codeward federate users consortium/server --replace bob=bob-new.pub
    """
    from codeward.federated.consortium import Roster, layout

    if replace and remove:
        raise InputError("--replace and --remove: one at a time")
    file = server / layout.ROSTER_FILE
    roster, steps = Roster.load(file), []
    if replace:
        name, _, key_file = replace.partition("=")
        try:
            roster = roster.replace_key(name, Path(key_file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--replace {replace}: expected NAME=FILE, the file a public key") from error
        steps = [layout.list_nodes(), layout.unregister_node(), layout.register_user(name)]
    elif remove:
        roster = roster.remove(remove)
        steps = [layout.list_nodes(), layout.unregister_node()]
    if steps:
        roster.save(file)
        roster.save_keys(server / layout.PUBLIC_KEYS)
    if as_json:
        entries = [
            {"user": member.user, "name": member.name, "fingerprint": member.fingerprint} for member in roster.members
        ]
        print(json.dumps({"users": entries, "n_users": roster.n_users, "next": steps}))
        return
    for member in roster.members:
        print(f"column {member.user}  {member.name}  {member.fingerprint}")
    if steps:
        print("next, in the server's folder after `. ./environment.sh` (the SuperLink keeps its own list):")
        for step in steps:
            print(f"  {step}")
