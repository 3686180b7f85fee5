"""The commands of a consortium, word for word as the README files show them and as the tests run them.

All are shell lines for the folder they belong to, after ``. ./environment.sh``.
"""

import shlex
from dataclasses import dataclass

from codeward.federated.consortium._layout import (
    APP_FOLDER,
    AUTHORITY_FILE,
    CONNECTION,
    CONSORTIUM,
    DATA_FILE,
    ENVIRONMENT_FILE,
    FLOWER_HOME,
    NODE_KEY,
    PLAN_FOLDER,
    PUBLIC_KEYS,
    ROSTER_FILE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    SUPERLINK_STATE,
)
from codeward.federated.consortium._signatures import KEY_FILE

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
