"""Addresses of Ray clusters, as a configuration may name them; checked without Ray."""

import re

from codeward._errors import InputError


def check_address(address: str) -> str:
    """Return ``local``, ``auto`` or ``HOST:PORT`` as it came; refuse everything else."""
    if address in ("local", "auto"):
        return address
    if address.startswith("ray://"):
        raise InputError(
            f"cluster {address}: Ray Client is not supported; run codeward on a machine of the cluster, with HOST:PORT"
        )
    match = re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", address, re.ASCII)
    if match is None or not 0 < int(match[2]) < 65536:
        raise InputError(f"cluster {address!r}: expected local, auto or HOST:PORT (the head's port is 6379 by default)")
    return address
