"""Where the endpoint listens and who may speak to it."""

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

from codeward._errors import InputError

#: Environment variable with the bearer token.
TOKEN_VARIABLE = "CODEWARD_TOKEN"
_LEAST_TOKEN = 16


@dataclass(frozen=True)
class ServeSettings:
    """An address and, unless it is a loopback one, a token.

    Attributes
    ----------
    host : str
    port : int
        0 lets the system choose.
    token : str, optional
        Bearer token that clients must show.
    insecure : bool
        Listen beyond this machine without a token, knowingly.
    trusted_proxies : tuple of str
        Addresses or networks (10.0.0.0/8) of proxies whose X-Forwarded-For says who a client is.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    insecure: bool = False
    trusted_proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InputError(f"port: expected 0..65535, got {self.port}")
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise InputError(f"trusted proxy: {proxy} is no address or network ({error})") from error
        if not self.is_loopback and self.token is None and not self.insecure:
            raise InputError(
                f"host: {self.host} is open to other machines; set a token ({TOKEN_VARIABLE} or --token-file), "
                "or say --insecure"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def trusts(self, host: str) -> bool:
        """Whether an address is a trusted proxy's."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in ipaddress.ip_network(proxy) for proxy in self.trusted_proxies)

    @property
    def allowed_hosts(self) -> frozenset[str] | None:
        """Host names a request may carry; None for any.

        Without a token, any web page the user visits could reach a loopback service under a name of its own (DNS
        rebinding); the Host header tells.
        """
        if self.token is not None or not self.is_loopback:
            return None
        return frozenset({"localhost", "127.0.0.1", "::1", self.host})


def read_token(file: str | os.PathLike[str] | None) -> str | None:
    """Return the token in a file, else the one in the environment, else None."""
    if file is not None:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"token file: {file} is not readable ({error})") from error
    else:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            return None
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"token: expected at least {_LEAST_TOKEN} printable ASCII characters without spaces")
    return token
