"""The roster ``users.json``: which key speaks for which user, that is for which column of the code."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward.federated.consortium._keys import check_name, fingerprint, parse_public_key, public_line

_FORMAT = "codeward-users-1"


@dataclass(frozen=True)
class Member:
    """One user: its column of the code, its name, and the public key (an OpenSSH line) that alone speaks for it."""

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
