"""Where a cluster is: addresses are checked, and somebody answers there, before Ray is asked to connect."""

import ipaddress
import os
import socket
import tempfile
from pathlib import Path

from codeward._errors import InputError
from codeward._ray_address import check_address

#: Seconds a cluster has to answer. Ray itself would try for more than 100 s.
_PATIENCE = 5.0

#: How every HTTP/2 (thus gRPC) connection begins: the client's preface and an empty SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_FRAME = 4


def find_head(address: str) -> str:
    """Return the ``HOST:PORT`` of a cluster that answers, for ``auto`` or ``HOST:PORT``.

    ``auto`` is what `ray start` left on this machine, or the environment variable ``RAY_ADDRESS``.
    """
    head = _find_current() if address == "auto" else check_address(address)
    _expect_answer(head)
    return head


def is_loopback(head: str) -> bool:
    """Tell whether ``HOST:PORT`` names this machine's loopback interface."""
    host = _split(head)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_current() -> str:
    named = os.environ.get("RAY_ADDRESS", "")
    if named and named != "auto":
        return check_address(named)
    root = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or tempfile.gettempdir()
    try:
        return check_address((Path(root) / "ray" / "ray_current_cluster").read_text().strip())
    except OSError as error:
        message = "cluster auto: no Ray cluster runs on this machine; join one (ray start) or name its head"
        raise InputError(message) from error


def _split(head: str) -> tuple[str, int]:
    host, _, port = head.rpartition(":")
    return host.strip("[]"), int(port)


def _expect_answer(head: str) -> None:
    try:
        with socket.create_connection(_split(head), timeout=_PATIENCE) as connection:
            if os.environ.get("RAY_USE_TLS") == "1":  # an encrypted port cannot be told from others by this
                return
            connection.sendall(_PREFACE)
            answer = connection.recv(9)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise InputError(f"cluster {head}: {reason}; is a Ray head running there (ray start --head)?") from error
    if len(answer) < 4 or answer[3] != _SETTINGS_FRAME:
        raise InputError(f"cluster {head}: what answers there is no Ray head; its port is 6379 by default")
