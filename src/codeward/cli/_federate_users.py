"""``codeward federate users``: who speaks for which column; replace a key, remove a user."""

import json
from pathlib import Path

import typer

from codeward._errors import InputError


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
    from codeward.federated.consortium import Roster
    from codeward.federated.consortium import _layout as layout
    from codeward.federated.consortium._commands import list_nodes, register_user, unregister_node

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
        steps = [list_nodes(), unregister_node(), register_user(name)]
    elif remove:
        roster = roster.remove(remove)
        steps = [list_nodes(), unregister_node()]
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
