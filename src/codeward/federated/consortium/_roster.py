"""Node keys, as Flower's SuperNodes read them, and the roster ``users.json``: whose key speaks for which column."""

import base64
import hashlib
import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from codeward._errors import InputError
from codeward._files import write_text_atomic

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
# Names become folder names on every system: no separators, no dots, no leading dash that a command reads as a flag.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_CURVES = ("secp256r1", "secp384r1", "secp521r1")


def check_name(name: str) -> str:
    """Return ``name`` if it can be a user's name and folder, else raise `InputError`."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"user name {name!r}: use 1 to 63 letters, digits, '-' and '_', the first a letter or a digit "
            "(the name becomes a folder)"
        )
    return name


def make_key() -> ec.EllipticCurvePrivateKey:
    """Make a private key on NIST P-384, the curve Flower documents for SuperNode authentication."""
    return ec.generate_private_key(ec.SECP384R1())


def write_private(path: Path, content: bytes) -> None:
    """Write a secret that only its owner can read (mode 0600), from the first moment of its existence.

    The file is created with that mode and must not exist: a secret is never written over another, and never passes
    through a state in which others could open it.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    with os.fdopen(handle, "wb") as out:
        # The umask can only take rights away; say the mode once more so that it does not depend on it.
        os.fchmod(out.fileno(), PRIVATE_FILE)
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def private_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key in OpenSSH form, without pass phrase: ``--auth-supernode-private-key`` reads only that."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def public_line(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key as one OpenSSH line without comment: ``flwr supernode register`` reads that."""
    raw = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return raw.decode("ascii")


def read_private_key(path: str | os.PathLike[str]) -> ec.EllipticCurvePrivateKey:
    """Read a node's private key; refuse one that others on the machine may read, as ssh does."""
    file = Path(path)
    try:
        mode = file.stat().st_mode & 0o777
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: the private key cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise InputError(f"{file}: mode {mode:04o} lets others read the private key; run: chmod 600 {file}")
    try:
        key = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{file}: not an OpenSSH private key without pass phrase") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{file}: not an elliptic-curve key; make one with: ssh-keygen -t ecdsa -b 384")
    return key


def parse_public_key(text: str | bytes, source: str) -> ec.EllipticCurvePublicKey:
    """Read a public key: one OpenSSH line (as users hand it in) or PEM (as the SuperLink keeps it)."""
    raw = text.encode() if isinstance(text, str) else text
    try:
        if raw.startswith(b"-----BEGIN"):
            key = serialization.load_pem_public_key(raw)
        else:
            key = serialization.load_ssh_public_key(raw.strip())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{source}: not a public key (an OpenSSH line or PEM)") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise InputError(f"{source}: not a NIST elliptic-curve key; make one with: ssh-keygen -t ecdsa -b 384")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return OpenSSH's fingerprint, ``SHA256:`` and 43 base64 characters: what ``ssh-keygen -lf node.pub`` prints.

    It hashes the key itself, so that two encodings of one key cannot pass for two keys.
    """
    blob = base64.b64decode(public_line(key).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")


def sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """Return an ECDSA signature over SHA-256, as Flower's own node authentication makes it."""
    return key.sign(message, ec.ECDSA(hashes.SHA256()))


def verify(key: ec.EllipticCurvePublicKey, message: bytes, signature: bytes) -> bool:
    """Return whether ``signature`` is one of ``message`` by the owner of ``key``."""
    try:
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


_FORMAT = "codeward-users-1"


@dataclass(frozen=True)
class Member:
    """One user: its column of the code, its name, and the public key (an OpenSSH line) that alone speaks for it.

    Examples
    --------
    >>> member = Member(0, "ann", public_line(make_key().public_key()))
    >>> member.key.curve.name
    'secp384r1'
    """

    user: int
    name: str
    public_key: str

    @cached_property
    def key(self) -> ec.EllipticCurvePublicKey:
        """The parsed public key."""
        return parse_public_key(self.public_key, f"public key of {self.name!r}")

    @cached_property
    def fingerprint(self) -> str:
        """OpenSSH fingerprint of the key."""
        return fingerprint(self.key)


@dataclass(frozen=True)
class Roster:
    """The members of a consortium, each bound to one column of one code.

    The guarantee of a code counts *columns*: at most k of them hold attackers. It says something about people only if a
    column has one owner. The roster is where that is decided, by the server's operator and before any message arrives:
    a key that is not in it speaks for nobody, and no key speaks for two users.

    Parameters
    ----------
    members : tuple of Member
        In the order of the columns. A removed user leaves a gap: its column keeps its number.
    n_users : int
        Columns of the code.
    code_digest : str
        `Code.digest` of the code the columns belong to: a roster never meets another code.

    Examples
    --------
    >>> lines = [public_line(make_key().public_key()) for _ in range(3)]
    >>> roster = Roster((Member(0, "ann", lines[0]), Member(1, "bob", lines[1])), n_users=2, code_digest="")
    >>> roster.find(lines[1]).name, roster.find(lines[2])
    ('bob', None)
    >>> [member.name for member in roster.remove("ann").members]
    ['bob']
    """

    members: tuple[Member, ...]
    n_users: int
    code_digest: str

    def __post_init__(self) -> None:
        for what, values in (
            ("column", [str(member.user) for member in self.members]),
            ("name", [member.name.casefold() for member in self.members]),
            ("key", [member.fingerprint for member in self.members]),
        ):
            twice = next((value for value, times in Counter(values).items() if times > 1), None)
            if twice is not None:
                raise InputError(f"users: {what} {twice} is given to two users; each needs its own")
        for member in self.members:
            check_name(member.name)
            if not 0 <= member.user < self.n_users:
                raise InputError(f"users: {member.name!r} has column {member.user}, not one of 0..{self.n_users - 1}")

    @cached_property
    def by_fingerprint(self) -> dict[str, Member]:
        """Members by the fingerprint of their key."""
        return {member.fingerprint: member for member in self.members}

    @cached_property
    def by_user(self) -> dict[int, Member]:
        """Members by their column."""
        return {member.user: member for member in self.members}

    def find(self, public_key: str | bytes) -> Member | None:
        """Return the member whose key this is (PEM or OpenSSH line); None for a key of nobody, or no key at all."""
        try:
            return self.by_fingerprint.get(fingerprint(parse_public_key(public_key, "node")))
        except InputError:
            return None

    def member(self, name: str) -> Member:
        """Return the member called ``name``."""
        found = next((member for member in self.members if member.name == name), None)
        if found is None:
            raise InputError(f"no user {name!r}; the users are {', '.join(member.name for member in self.members)}")
        return found

    def replace_key(self, name: str, public_key: str) -> "Roster":
        """Return the roster in which ``name`` speaks with a new key only; its column stays."""
        old = self.member(name)
        line = public_line(parse_public_key(public_key, f"new key of {name!r}"))
        new = Member(old.user, old.name, line)
        return Roster(
            tuple(new if member is old else member for member in self.members), self.n_users, self.code_digest
        )

    def remove(self, name: str) -> "Roster":
        """Return the roster without ``name``: nobody speaks for its column any more."""
        old = self.member(name)
        return Roster(tuple(member for member in self.members if member is not old), self.n_users, self.code_digest)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``users.json``, atomically. It holds public keys: nothing in it is secret, all of it is trusted."""
        users = [
            {
                "user": member.user,
                "name": member.name,
                "fingerprint": member.fingerprint,
                "public_key": member.public_key,
            }
            for member in self.members
        ]
        content = {"format": _FORMAT, "n_users": self.n_users, "code_digest": self.code_digest, "users": users}
        write_text_atomic(path, json.dumps(content, indent=2) + "\n")

    def save_keys(self, folder: Path) -> None:
        """Write each member's public key as ``NAME.pub``, as Flower registers it; take away those of nobody."""
        for member in self.members:
            write_text_atomic(folder / f"{member.name}.pub", f"{member.public_key} {member.name}\n")
        for file in folder.glob("*.pub"):
            if file.stem not in {member.name for member in self.members}:
                file.unlink()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Roster":
        """Read ``users.json``; every fingerprint must be that of the key beside it."""
        file = Path(path)
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{file}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"{file}: not JSON: {error}") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise InputError(f"{file}: not a {_FORMAT} file, as `codeward federate init` writes it")
        n_users, digest, users = (content.get(key) for key in ("n_users", "code_digest", "users"))
        if type(n_users) is not int or not isinstance(digest, str) or not isinstance(users, list):
            raise InputError(f"{file}: needs n_users, code_digest and users")
        return cls(tuple(_read_member(entry, file) for entry in users), n_users, digest)


def _read_member(entry: Any, file: Path) -> Member:
    if not isinstance(entry, dict) or type(entry.get("user")) is not int:
        raise InputError(f"{file}: a user needs 'user' (its column), 'name', 'fingerprint' and 'public_key'")
    if not all(isinstance(entry.get(key), str) for key in ("name", "fingerprint", "public_key")):
        raise InputError(f"{file}: user {entry['user']} needs 'name', 'fingerprint' and 'public_key' as text")
    member = Member(entry["user"], entry["name"], entry["public_key"])
    if member.fingerprint != entry["fingerprint"]:
        # An edit by hand that changed one and forgot the other: which of the two was meant is not ours to guess.
        raise InputError(
            f"{file}: the key of {member.name!r} has fingerprint {member.fingerprint}, not {entry['fingerprint']}"
        )
    return member
