"""Writing a consortium: every folder, key, certificate and text, or nothing at all."""

import datetime
import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from codeward._errors import InputError
from codeward._files import write_atomic, write_text_atomic
from codeward.federated._federation import FederationPlan
from codeward.federated._federation_folder import FederationFolder
from codeward.federated.consortium import _consortium_texts as texts
from codeward.federated.consortium._consortium_texts import (
    Address,
    register_user,
    server_environment,
    start_gate,
    start_run,
    start_superlink,
    start_supernode,
    user_environment,
)
from codeward.federated.consortium._roster import (
    PRIVATE_FOLDER,
    Member,
    Roster,
    check_name,
    make_key,
    parse_public_key,
    private_text,
    public_line,
    write_private,
)

# Clocks of users may run behind the server's: a certificate made a minute ago must already be valid for them.
_CLOCK_SLACK = datetime.timedelta(hours=1)
_MAX_DAYS = 3650
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


@dataclass(frozen=True)
class TlsCertificates:
    """A certificate authority and the server certificate it signed, all PEM.

    The server needs ``server_certificate`` and ``server_key``, users need ``authority`` alone. ``authority_key`` is
    needed only to sign the next server certificate and belongs on no machine of the federation.

    Examples
    --------
    >>> TlsCertificates(b"authority", b"its key", b"certificate", b"key").authority  # what users get
    b'authority'
    """

    authority: bytes
    authority_key: bytes
    server_certificate: bytes
    server_key: bytes


def check_host(host: str) -> str:
    """Return ``host`` if it is a DNS name or an IP address (no port, no scheme), else raise `InputError`."""
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        labels = host.split(".")
        # A last label of digits alone is a mistyped IPv4 address, not a name.
        if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
            raise InputError(f"host {host!r}: give a DNS name or an IP address, without scheme and port") from error
    return host


def make_certificates(hosts: Sequence[str], days: int) -> TlsCertificates:
    """Make an authority and a server certificate for ``hosts``, the second valid ``days`` days from now.

    The authority lasts ten years, so that it can sign the next server certificate without users noticing. It carries
    ``pathLen 0``: it can sign servers, never another authority. The loopback names are always added: the SuperLink
    listens on loopback, behind the gate.

    Parameters
    ----------
    hosts : sequence of str
        DNS names and IP addresses by which users reach the server.
    days : int
        1 to 3650.

    Examples
    --------
    >>> made = make_certificates(["fl.example.org"], days=365)
    >>> made.server_certificate.startswith(b"-----BEGIN CERTIFICATE-----")
    True
    """
    if not 1 <= days <= _MAX_DAYS:
        raise InputError(f"{days} days: a certificate may last 1 to {_MAX_DAYS} days")
    names = list(dict.fromkeys([*(check_host(host) for host in hosts), "localhost", "127.0.0.1", "::1"]))
    start = datetime.datetime.now(datetime.UTC) - _CLOCK_SLACK
    end, last = (start + _CLOCK_SLACK + datetime.timedelta(days=count) for count in (days, _MAX_DAYS))
    authority_key, server_key = make_key(), make_key()

    root = _begin("codeward consortium authority", "codeward consortium authority", authority_key, start, last)
    authority = (
        root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    leaf = _begin(names[0][:64], "codeward consortium authority", server_key, start, end)
    server = (
        leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(server_key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    return TlsCertificates(
        authority.public_bytes(pem), _secret(authority_key), server.public_bytes(pem), _secret(server_key)
    )


def _begin(
    subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, start: datetime.datetime, end: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(subject))
        .issuer_name(_common_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@dataclass(frozen=True)
class Consortium:
    """What `write_consortium` wrote.

    Attributes
    ----------
    path : Path
    roster : Roster
    address : Address

    Examples
    --------
    >>> made = Consortium(Path("bank"), Roster((), 0, ""), Address("fl.example.org", 9092, 9095))
    >>> made.to_json()["address"]
    'fl.example.org:9092'
    """

    path: Path
    roster: Roster
    address: Address

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON: folders, commands and the binding; no secret is part of it."""
        members = self.roster.members
        return {
            "folder": str(self.path),
            "server": str(self.path / "server"),
            "authority": str(self.path / "authority"),
            "address": self.address.public,
            "users": [
                {
                    "user": member.user,
                    "name": member.name,
                    "fingerprint": member.fingerprint,
                    "folder": str(self.path / "users" / member.name),
                }
                for member in members
            ],
            "commands": {
                "superlink": start_superlink(self.address),
                "gate": start_gate(self.address),
                "register": [register_user(member.name) for member in members],
                "run": start_run(),
                "supernode": start_supernode(self.address),
            },
        }


def write_consortium(
    path: str | os.PathLike[str],
    plan: FederationPlan,
    hosts: Sequence[str],
    port: int = 9092,
    superlink_port: int = 9093,
    days: int = 365,
    public_keys: Mapping[str, str] | None = None,
    join_timeout: int = 600,
) -> Consortium:
    """Write all that a consortium needs to train together, one folder for each party.

    Private keys have mode 0600 and every folder with one 0700, from the moment they exist. A user's folder holds that
    user's key and no other; the server's folder holds no user's private key. The whole appears at once under ``path``,
    or not at all.

    Parameters
    ----------
    path : path-like
        A folder that does not exist.
    plan : FederationPlan
        Its code must name the users; the names become folders.
    hosts : sequence of str
        Names and addresses of the server for its certificate; users dial the first.
    port, superlink_port : int
        Of the gate, and of the SuperLink behind it.
    days : int
        How long the certificates last.
    public_keys : mapping of str to str, optional
        Users who made their own key: name to public key (an OpenSSH line or PEM). Their private key never is here.
    join_timeout : int
        Seconds a run waits for users before its first round.

    Raises
    ------
    InputError
        When the folder exists, or a name, host, port or key cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.codes import Code
    >>> from codeward.federated import FederatedSettings
    >>> from codeward.training import TrainingSettings
    >>> code = Code([[1, 1, 0], [0, 1, 1]], users=["ann", "bob", "cleo"])
    >>> plan = FederationPlan(code, TrainingSettings(), FederatedSettings(), (1, 28, 28), seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = write_consortium(f"{folder}/consortium", plan, ["fl.example.org"])
    ...     sorted(file.name for file in (made.path / "users" / "ann").iterdir())
    ['README.md', 'ca.crt', 'environment.sh', 'node.key', 'node.pub']
    """
    target = Path(path)
    if target.exists() or target.is_symlink():
        raise InputError(f"{target} exists: a consortium is never written over another; choose a new folder")
    names, given = _check_users(plan, public_keys or {})
    if not hosts:
        raise InputError("give at least one host name or address of the server")
    for number in (port, superlink_port):
        if not 1 <= number <= 65535:
            raise InputError(f"port {number}: expected 1 to 65535")
    if port == superlink_port:
        raise InputError(f"port {port}: the gate and the SuperLink need different ports")
    certificates = make_certificates(hosts, days)
    address = Address(hosts[0], port, superlink_port)

    target.parent.mkdir(parents=True, exist_ok=True)
    # mkdtemp makes the folder with mode 0700: nobody else can enter it while secrets are written into it.
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        _make_private(draft / "users")
        members = []
        for user, name in enumerate(names):
            folder, line = draft / "users" / name, given.get(name)
            _make_private(folder)
            if line is None:
                key = make_key()
                write_private(folder / texts.NODE_KEY, private_text(key))
                line = public_line(key.public_key())
            members.append(Member(user, name, line))
            write_text_atomic(folder / texts.NODE_PUBLIC_KEY, f"{line} {name}\n")
            _write(folder / texts.AUTHORITY_FILE, certificates.authority)
            write_text_atomic(folder / texts.ENVIRONMENT_FILE, user_environment())
            write_text_atomic(folder / "README.md", texts.user_readme(members[-1], address, name not in given))
        roster = Roster(tuple(members), plan.code.n_users, plan.code.digest)
        server = draft / "server"
        _make_private(server)
        write_private(server / texts.SERVER_KEY, certificates.server_key)
        _write(server / texts.SERVER_CERTIFICATE, certificates.server_certificate)
        _write(server / texts.AUTHORITY_FILE, certificates.authority)
        roster.save(server / texts.ROSTER_FILE)
        FederationFolder(server / texts.PLAN_FOLDER).save_plan(plan)
        roster.save_keys(server / texts.PUBLIC_KEYS)
        write_text_atomic(server / texts.APP_FOLDER / "pyproject.toml", texts.app_project(join_timeout))
        write_text_atomic(server / texts.ENVIRONMENT_FILE, server_environment(address))
        write_text_atomic(server / "README.md", texts.server_readme(roster.members, address))
        _make_private(draft / "authority")
        write_private(draft / "authority" / texts.AUTHORITY_KEY, certificates.authority_key)
        _write(draft / "authority" / texts.AUTHORITY_FILE, certificates.authority)
        write_text_atomic(draft / "README.md", texts.overview(roster.members, address))
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Consortium(target, roster, address)


def _check_users(plan: FederationPlan, public_keys: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    names = plan.code.users
    if names is None:
        raise InputError("the code names no users; a consortium binds a key to each by name")
    folded: dict[str, str] = {}
    for name in names:
        # Two names that differ in case alone are one folder on some systems.
        other = folded.setdefault(check_name(name).casefold(), name)
        if other is not name:
            raise InputError(f"user names {other!r} and {name!r} differ in case alone; choose another")
    for name in public_keys:
        if name not in names:
            raise InputError(f"a public key for {name!r}, who is no user; the users are {', '.join(names)}")
    given = {name: public_line(parse_public_key(key, f"public key of {name!r}")) for name, key in public_keys.items()}
    return names, given


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=PRIVATE_FOLDER)
    folder.chmod(PRIVATE_FOLDER)


def _write(path: Path, content: bytes) -> None:
    write_atomic(path, lambda out: out.write(content))
