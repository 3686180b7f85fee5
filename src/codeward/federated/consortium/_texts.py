"""The texts that `write_consortium` puts into the folders: README files and the Flower app's ``pyproject.toml``."""

from collections.abc import Sequence

from codeward.federated.consortium._commands import (
    SWITCHES,
    Address,
    collect_run,
    list_nodes,
    load_environment,
    register_user,
    start_gate,
    start_run,
    start_superlink,
    start_supernode,
)
from codeward.federated.consortium._layout import (
    AUTHORITY_KEY,
    DATA_FILE,
    NODE_KEY,
    PLAN_FOLDER,
    ROSTER_FILE,
    SERVER_KEY,
)
from codeward.federated.consortium._roster import Member

_SWITCHES = ", ".join(f"`{name}={value}`" for name, value in SWITCHES.items())


def app_project(join_timeout: int) -> str:
    """Return the ``pyproject.toml`` of the Flower app: it names the parts that codeward installs, and holds no code."""
    return f"""\
[project]
name = "codeward-consortium"
version = "1.0.0"
description = "Coded federated training: codeward's server and client, as installed on each machine."
license = "Apache-2.0"
dependencies = ["codeward[flower]"]

[tool.flwr.app]
publisher = "codeward"

[tool.flwr.app.components]
serverapp = "codeward.federated.consortium.server_app:app"
clientapp = "codeward.federated.consortium.client_app:app"

[tool.flwr.app.config]
# Seconds to wait for users before the first round, and how many to wait for (0: all in {ROSTER_FILE}).
join-timeout = {join_timeout}
quorum = 0
"""


def overview(members: Sequence[Member], address: Address) -> str:
    """Return the README of the whole folder: who gets what."""
    folders = "\n".join(
        f"| `users/{member.name}/` | {member.name}, over a private channel, and nobody else |" for member in members
    )
    return f"""\
# Consortium of {len(members)} users at {address.public}

| folder | goes to |
|---|---|
| `server/` | the machine that users reach as `{address.host}` |
| `authority/` | offline storage; `{AUTHORITY_KEY}` signs the next server certificate and is needed for nothing else |
{folders}

Each folder has its own README.md with the exact commands. Hand a user's folder over, then delete it here: from then on
only that user holds its private key. All machines need the same version of `codeward[flower]`.
"""


def server_readme(members: Sequence[Member], address: Address) -> str:
    """Return the README of the server's folder."""
    register = "\n".join(register_user(member.name) for member in members)
    table = "\n".join(f"| {member.user} | {member.name} | `{member.fingerprint}` |" for member in members)
    return f"""\
# Server of the consortium

Every shell starts in this folder with

    {load_environment()}

which also switches off Flower's telemetry, update check and run-time installs ({_SWITCHES}).

1. The SuperLink, on loopback. Its Control interface asks for no password: it must not face the network.

       {start_superlink(address)}

2. The gate, which users reach at `{address.public}`. It passes on node traffic signed by a key of `{ROSTER_FILE}`, and
   nothing else. Give `--host` the address of the interface that faces the users.

       {start_gate(address)}

3. Register the users' keys, once (they are kept in the SuperLink's database):

{_indent(register, 7)}

4. When the users are there, train. `{PLAN_FOLDER}/federation.json` says how; rounds are logged to
   `{PLAN_FOLDER}/rounds.jsonl`, and the models come to `{PLAN_FOLDER}/models/`.

       {list_nodes()}
       {start_run()}

5. Ask the models about labelled test data of your own, which makes a run folder for decode, certify, report and serve:

       {collect_run()}

## Who is who

Bound by key, never by what a client says of itself:

| column of the code | user | fingerprint of its key |
|---|---|---|
{table}

Compare the fingerprints with the users by another channel: `ssh-keygen -lf node.pub` prints theirs.

## Secret

`{SERVER_KEY}`: with it, anyone can pose as this server. `{ROSTER_FILE}` and `{PLAN_FOLDER}/code.json` are not secret,
but whoever writes to them decides who speaks for which column. Keep this folder at mode 0700.
"""


def user_readme(member: Member, address: Address, has_key: bool) -> str:
    """Return the README of a user's folder."""
    if has_key:
        key = f"""\
`{NODE_KEY}` is your private key (mode 0600). Whoever has it speaks for you. If it ever left your hands, make a new one
(below) and tell the server's operator."""
    else:
        key = (
            f"Put the private key that you made here as `{NODE_KEY}`, mode 0600. It never left your hands; keep it so."
        )
    return f"""\
# User {member.name}

1. Install `codeward[flower]`, the same version as the server's.
2. Put your data here as `{DATA_FILE}`: arrays `images` (uint8, N x C x H x W) and `labels` (N). They never leave this
   machine; what leaves it is the weights of the models of your column, after training on them.
3. Join, and stay until the operator says that training is over:

       {load_environment()}
       {start_supernode(address)}

   A second SuperNode on one machine needs its own `--port`.

{key} Its fingerprint is

    {member.fingerprint}

`ca.crt` is the consortium's authority: your client talks to no server that it did not sign.

New key: `ssh-keygen -t ecdsa -b 384 -N "" -f {NODE_KEY}`, then send `{NODE_KEY}.pub` to the operator.

The server decides which code your SuperNode runs (any Flower server does). Run it under an account of its own that can
read this folder and nothing else of value.
"""


def _indent(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.splitlines())
