"""The words of a consortium: names of files, the commands of its README files, and these files themselves.

Commands are shell lines for the folder they belong to, after ``. ./environment.sh``; tests run them word for word.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from codeward.federated.consortium._roster import Member
from codeward.federated.consortium._signed_grid import KEY_FILE

#: Names the server's folder in the environment of the SuperLink.
CONSORTIUM = "CODEWARD_CONSORTIUM"

ROSTER_FILE = "users.json"
PLAN_FOLDER = "federation"
APP_FOLDER = "app"
PUBLIC_KEYS = "keys"
FLOWER_HOME = "flower"
ENVIRONMENT_FILE = "environment.sh"
AUTHORITY_FILE = "ca.crt"
AUTHORITY_KEY = "ca.key"
SERVER_CERTIFICATE = "server.crt"
SERVER_KEY = "server.key"
NODE_KEY = "node.key"
NODE_PUBLIC_KEY = "node.pub"
DATA_FILE = "data.npz"
SUPERLINK_STATE = "superlink.db"

#: Name of the SuperLink in the Flower configuration that init writes.
CONNECTION = "consortium"


#: No telemetry, no look for updates, no packages installed at run time: nothing leaves the machine but the messages.
SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


@dataclass(frozen=True)
class Address:
    """Where the server is reached.

    Attributes
    ----------
    host : str
        Name or address that users dial.
    port : int
        Of the gate, on that host.
    superlink_port : int
        Of the SuperLink, on the server's loopback interface only.
    """

    host: str
    port: int
    superlink_port: int

    @property
    def public(self) -> str:
        """``host:port`` for users; an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def load_environment() -> str:
    """Return the line that every shell starts with."""
    return f". ./{ENVIRONMENT_FILE}"


def start_superlink(address: Address) -> str:
    """Return the command that starts the SuperLink, on loopback."""
    return (
        f"flower-superlink --host 127.0.0.1 --port {address.superlink_port} --enable-supernode-auth "
        f"--ssl-ca-certfile {AUTHORITY_FILE} --ssl-certfile {SERVER_CERTIFICATE} --ssl-keyfile {SERVER_KEY} "
        f"--database {SUPERLINK_STATE} --disable-runtime-dependency-installation"
    )


def start_gate(address: Address, listen: str = "0.0.0.0") -> str:
    """Return the command that starts the gate, the only listener that faces the network."""
    return (
        f"codeward federate gate . --host {listen} --port {address.port} --superlink 127.0.0.1:{address.superlink_port}"
    )


def register_user(name: str) -> str:
    """Return the command that registers a user's public key with the SuperLink."""
    return f"flwr supernode register {PUBLIC_KEYS}/{name}.pub {CONNECTION} --name {name}"


def start_run() -> str:
    """Return the command that starts training."""
    return f"flwr run {APP_FOLDER} {CONNECTION} --stream"


def collect_run() -> str:
    """Return the command that makes a run folder of the trained models and test data of the server's own."""
    return f"codeward federate collect {PLAN_FOLDER} --data test.npz -o ../run"


def list_nodes() -> str:
    """Return the command that lists the registered keys and who is online."""
    return f"flwr supernode list {CONNECTION}"


def unregister_node() -> str:
    """Return the command that takes a key out of the SuperLink, with the number that `list_nodes` shows for it."""
    return f"flwr supernode unregister NODE_ID {CONNECTION}"


def start_supernode(address: Address, port: int | None = None) -> str:
    """Return the command with which a user joins.

    Parameters
    ----------
    address : Address
    port : int, optional
        Of the SuperNode's own loopback interface; needed when two run on one machine.
    """
    config = f'"{KEY_FILE}=\\"$PWD/{NODE_KEY}\\" data=\\"$PWD/{DATA_FILE}\\""'
    local = "" if port is None else f" --host 127.0.0.1 --port {port}"
    return (
        f"flower-supernode --superlink {shlex.quote(address.public)} --root-certificates {AUTHORITY_FILE} "
        f"--auth-supernode-private-key {NODE_KEY} --node-config {config}{local}"
    )


def server_environment(address: Address) -> str:
    """Return the server's ``environment.sh``: switches, the folder, and Flower's configuration for this place.

    Flower wants absolute paths in its configuration; it is written anew each time, so that the folder can be moved.
    """
    return f"""\
# Source this in the server's folder:  . ./{ENVIRONMENT_FILE}
{_check_place(ROSTER_FILE)}
export {CONSORTIUM}="$PWD"
{_common_environment()}
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "{CONNECTION}"

[superlink.{CONNECTION}]
address = "127.0.0.1:{address.superlink_port}"
root-certificates = '$PWD/{AUTHORITY_FILE}'
END
"""


def user_environment() -> str:
    """Return a user's ``environment.sh``."""
    return f"""\
# Source this in your folder:  . ./{ENVIRONMENT_FILE}
{_check_place(AUTHORITY_FILE)}
{_common_environment()}
"""


def _check_place(file: str) -> str:
    return f'[ -f {file} ] || {{ echo "first: cd to the folder of {ENVIRONMENT_FILE}" >&2; return 1; }}'


def _common_environment() -> str:
    switches = "\n".join(f"export {name}={value}" for name, value in SWITCHES.items())
    return f"""\
{switches}
export FLWR_HOME="$PWD/{FLOWER_HOME}"
# What runs on this machine talks to itself directly, whatever proxy leads outside.
export NO_PROXY="127.0.0.1,localhost${{NO_PROXY:+,$NO_PROXY}}"
export no_proxy="$NO_PROXY"
umask 077
mkdir -p "$FLWR_HOME\""""


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
