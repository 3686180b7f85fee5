"""Revoked users: what is left of a code without them, which models that touches, and how a run folder remembers it."""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward._files import read_json, write_json, write_text_atomic
from codeward.codes import Code, Inspection, code_to_json, inspect
from codeward.runs._run_folder import RunFolder

#: Changes when a reader of older files would misread newer ones.
FORMAT = "codeward-revocation/1"


@dataclass(frozen=True)
class Revocation:
    """A code from which users were removed, one step after another.

    Sub-models keep the user numbers of the original code: a model's seed and key come from them, so that removing one
    user leaves the models of the others as they are, byte for byte (isolation, see docs/theory.md).

    Attributes
    ----------
    original : Code
        Before anybody was revoked.
    steps : tuple of tuple of int
        Users revoked together, as columns of ``original``, in order of revocation.

    Examples
    --------
    >>> left = Revocation(Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]])).add(["1"])
    >>> left.columns, left.code.matrix.astype(int).tolist()
    ((0, 2), [[1, 0], [0, 1], [1, 1]])
    """

    original: Code
    steps: tuple[tuple[int, ...], ...] = ()

    @property
    def revoked(self) -> tuple[int, ...]:
        """All revoked users, as columns of ``original``, ascending."""
        return tuple(sorted(user for step in self.steps for user in step))

    @property
    def columns(self) -> tuple[int, ...]:
        """Which column of ``original`` each column of `code` is."""
        gone = {user for step in self.steps for user in step}
        return tuple(user for user in range(self.original.n_users) if user not in gone)

    @property
    def rows(self) -> tuple[int, ...]:
        """Which row of ``original`` each row of `code` is: a model whose users are all revoked is dropped."""
        return tuple(np.flatnonzero(self.original.matrix[:, self.columns].any(axis=1)).tolist())

    @cached_property
    def code(self) -> Code:
        """What is left; users keep their names (their original numbers where they have none)."""
        original = self.original
        if not self.steps:
            return original
        gone = ", ".join(original.user_name(user) for user in self.revoked)
        return Code(
            original.matrix[np.ix_(self.rows, self.columns)],
            users=[original.user_name(user) for user in self.columns],
            models=[original.models[row] for row in self.rows] if original.models else None,
            construction=f"{original.construction or 'code'}, without {gone}",
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the original matrix and the steps: two states may share a matrix and differ in users."""
        text = f"codeward-revocation {self.original.digest} {json.dumps(self.steps)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def names(self, users: Sequence[int]) -> list[str]:
        """Return the names of users given as columns of ``original``."""
        return [self.original.user_name(user) for user in users]

    def add(self, names: Sequence[str]) -> "Revocation":
        """Return the state after revoking these users too, given by name or original number."""
        known = {self.original.user_name(user): user for user in range(self.original.n_users)}
        for name in names:
            if name not in known:
                raise InputError(f"no user is named {name!r}; the users are {', '.join(self.names(self.columns))}")
            if known[name] in self.revoked:
                raise InputError(f"user {name} is already revoked")
        step = tuple(sorted({known[name] for name in names}))
        if not step:
            raise InputError("name at least one user to revoke")
        if len(step) == len(self.columns):
            raise InputError("these are all the users; nothing would be left to train on")
        return Revocation(self.original, (*self.steps, step))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``revocation.json`` into a run folder."""
        content = {"format": FORMAT, "original": code_to_json(self.original), "steps": self.steps}
        write_json(RunFolder(folder).revocation_file, content)

    def leave_note(self, old: RunFolder, new: RunFolder) -> None:
        """Say in the old folder where the new state is, so that a server of the old one knows; see `is_superseded`."""
        if new.path.resolve().parent == old.revoked.resolve():
            return
        told = {"folder": str(new.path), "users": self.names(self.revoked), "state": self.digest}
        with suppress(OSError):  # the old folder may be read-only
            write_text_atomic(old.revoked / f"{self.digest[:16]}.json", json.dumps(told) + "\n")


@dataclass(frozen=True)
class Outlook:
    """What a revocation would do, known before anything is done.

    Attributes
    ----------
    before, after : Revocation
    guarantees_before, guarantees_after : Inspection
        What both codes guarantee, verified.

    Examples
    --------
    >>> before = Revocation(Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]]))
    >>> after = before.add(["1"])
    >>> outlook = Outlook(before, after, inspect(before.code), inspect(after.code))
    >>> outlook.retrained, outlook.untouched
    ([0, 1], [2])
    """

    before: Revocation
    after: Revocation
    guarantees_before: Inspection
    guarantees_after: Inspection

    @property
    def retrained(self) -> list[int]:
        """Rows of the present code that lose a user and keep one: these models are trained again."""
        return [row for row, left in self._left() if left and left != self._size(row)]

    @property
    def dropped(self) -> list[int]:
        """Rows of the present code all of whose users are revoked: these models go."""
        return [row for row, left in self._left() if not left]

    @property
    def untouched(self) -> list[int]:
        """Rows of the present code that keep all their users: these models stay, byte for byte."""
        return [row for row, left in self._left() if left == self._size(row)]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; guarantees as of ``codeward inspect``."""
        return {
            "revoked": self.after.names(self.after.steps[-1]),
            "retrained": self.retrained,
            "untouched": self.untouched,
            "dropped": self.dropped,
            "guarantees_before": self.guarantees_before.to_json(),
            "guarantees_after": self.guarantees_after.to_json(),
        }

    def _size(self, row: int) -> int:
        return int(self.before.code.matrix[row].sum())

    def _left(self) -> list[tuple[int, int]]:
        kept = np.isin(self.before.columns, self.after.columns)
        return list(enumerate(self.before.code.matrix[:, kept].sum(axis=1).tolist()))


def load_revocation(folder: str | os.PathLike[str]) -> Revocation:
    """Return who is revoked in a run folder; nobody where it has no ``revocation.json``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Code([[1, 0], [0, 1]]).save(RunFolder(folder).code_file)
    ...     load_revocation(folder).revoked
    ()
    """
    place = RunFolder(folder)
    file = place.revocation_file
    if not file.exists():
        return Revocation(place.code)
    content = read_json(file)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{file}: not a {FORMAT} file")
    try:
        original = content["original"]
        steps = tuple(tuple(int(user) for user in step) for step in content["steps"])
        whole = Code(original["matrix"], original["users"], original["models"], original["construction"])
        found = Revocation(whole, steps)
        matches = found.code == place.code
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{file}: not readable ({error})") from error
    if not matches:
        raise InputError(f"{folder}: code.json is not what {file.name} says is left; was the folder edited?")
    return found


def is_superseded(folder: str | os.PathLike[str]) -> bool:
    """Say whether users were revoked from a run: a state without them is inside it, or a note where one is.

    Examples
    --------
    >>> is_superseded("no/such/folder")
    False
    """
    place = RunFolder(folder)
    inside = place.revoked.glob(f"*/{place.revocation_file.name}")
    return any(inside) or any(place.revoked.glob("[!.]*.json"))


def foresee_revocation(folder: str | os.PathLike[str], users: Sequence[str]) -> Outlook:
    """Verify what revoking these users (by name, or number where there are no names) would leave; change nothing.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Code([[1, 1, 0], [0, 1, 1], [1, 0, 1]]).save(RunFolder(folder).code_file)
    ...     foresee_revocation(folder, ["1"]).retrained
    [0, 1]
    """
    if not RunFolder(folder).code_file.is_file():
        raise InputError(f"{folder}: not a run folder (no code.json)")
    before = load_revocation(folder)
    after = before.add(users)
    return Outlook(before, after, inspect(before.code), inspect(after.code))
