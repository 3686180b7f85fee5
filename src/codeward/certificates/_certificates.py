"""What a certificate says: radii with the attack that breaks each, and certified accuracy against k."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, UnmetError
from codeward._notebook import Displayed, Drawing, Sheet

#: The two threat models: hit models all say one target, or each says anything (NOTATION.md).
Threat = Literal["deterministic", "arbitrary"]


@dataclass(frozen=True)
class Witness:
    """An attack that changes the output: the models that learn from ``attackers`` say ``target``.

    Attributes
    ----------
    attackers : tuple of int
        User indices, ascending.
    target : int
        The label all hit models say. Such an attack exists under both threat models whenever any does (Proposition 18
        of docs/theory.md).
        Of an appeal: the label that the output becomes; hit models of the first vote say it, or spread their votes so
        that the appeal decides, where it then wins.
    opponent : int or None
        Of a run-off: the class that the target then meets in the second round. ``n_opponent`` of the hit models, it
        does not matter which, vote for it; the others vote for the target (Proposition 34).
    n_opponent : int

    Examples
    --------
    >>> Witness(attackers=(0, 2), target=1)
    Witness(attackers=(0, 2), target=1, opponent=None, n_opponent=0)
    """

    attackers: tuple[int, ...]
    target: int
    opponent: int | None = None
    n_opponent: int = 0


@dataclass(frozen=True, eq=False)
class Certificates(Displayed):
    r"""Certified radii of N inputs, in input order (Propositions 18 to 22 and 34 to 38 of docs/theory.md).

    The votes are taken as those of clean models. ``radius[i] = k`` promises that no attack by k or fewer users, under
    ``threat``, changes ``labels[i]``, where an attack by the users x replaces the votes of the models that learn from
    a user in x: by one common target (*deterministic*) or by anything (*arbitrary*). "No verdict" counts as a change.

    Attributes
    ----------
    labels : ndarray of int64, shape (N,)
        The decoder's output on the given votes; -1 where it gives no verdict.
    radius : ndarray of int64, shape (N,)
        Largest certified k. 0: nothing is certified, one user may be enough; an input without verdict has 0.
    exact : ndarray of bool, shape (N,)
        True where k + 1 users do change the output (a witness is given) or where there is nothing past k to search;
        False where the radius is a sound lower bound: the search stopped at ``searched`` or at its time limit.
    attackers : ndarray of int32, shape (N, w)
        The witness's users, padded with -1; all -1 where there is none.
    targets : ndarray of int64, shape (N,)
        The witness's target, -1 where there is none.
    threat : {"deterministic", "arbitrary"}
    decoder : str
        Name of the decoder the certificate is for.
    searched : int
        Largest attacker set looked at.
    opponents : ndarray of int64, shape (N, 2), or None
        Of a run-off: `Witness.opponent` (-1 where there is no witness) and `Witness.n_opponent`.
    radius_to : ndarray of int64, shape (N, c), or None
        Where asked for: ``radius_to[i, t]`` promises that no attack by so many users makes the output t. It is at least
        ``radius[i]`` for every other label, and -1 for the label that the output has without any attacker. Exact where
        patterns were searched and for partitions, else a sound lower bound.

    users : tuple of str or None
        Names of the users, where the code has any.

    Examples
    --------
    >>> from codeward import Code, certify
    >>> found = certify([[1, 1, 1]], Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), targets=True)
    >>> found.radius, found.exact, found.witness(0).attackers
    (array([1]), array([ True]), (0, 1))
    >>> found.radius_to
    array([[ 1, -1]])
    >>> found.reason(0)
    'users 0, 1 together change the output when every model they reach says 0'
    >>> found.plot()
    <Drawing: Certified share by number of attackers>
    """

    labels: NDArray[np.int64]
    radius: NDArray[np.int64]
    exact: NDArray[np.bool_]
    attackers: NDArray[np.int32]
    targets: NDArray[np.int64]
    threat: Threat
    decoder: str
    searched: int
    opponents: NDArray[np.int64] | None = None
    radius_to: NDArray[np.int64] | None = None
    users: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return int(self.labels.size)

    def witness(self, index: int) -> Witness | None:
        """Return the attack by ``radius + 1`` users that changes output ``index``; None where none was found."""
        users = tuple(int(user) for user in self.attackers[index] if user >= 0)
        if not users:
            return None
        if self.opponents is None:
            return Witness(users, int(self.targets[index]))
        return Witness(users, int(self.targets[index]), *(int(value) for value in self.opponents[index]))

    def reason(self, index: int, classes: Sequence[str] | None = None) -> str:
        """Say in words why the radius of input ``index`` is no larger; classes by names, where given."""

        def call(label: int | None) -> Any:
            return classes[label] if classes and label is not None else label

        if self.labels[index] < 0:
            return "no verdict on the given votes, so there is no label to certify"
        witness, k = self.witness(index), int(self.radius[index])
        if witness is not None:
            names = ", ".join(self.users[user] if self.users else str(user) for user in witness.attackers)
            who = f"user {names} alone changes" if k == 0 else f"users {names} together change"
            if witness.opponent is not None and witness.n_opponent:
                split = f"{witness.n_opponent} of the models they reach vote {call(witness.opponent)} and the others"
                return f"{who} the output when {split} {call(witness.target)}"
            if self.decoder == "appeal" and self.threat == "arbitrary":
                return f"{who} the output to {call(witness.target)}"
            return f"{who} the output when every model they reach says {call(witness.target)}"
        if self.exact[index] and k < self.searched:
            return f"some {k + 1} users change the output; the counts do not say which"
        if self.exact[index]:
            return "no set of users changes the output"
        if k >= self.searched:
            return f"not broken by any set of at most {k} users, the largest searched"
        return f"lower bound: neither an attack by {k + 1} users nor a proof that there is none was found in time"

    def _sheet(self) -> Sheet:
        columns = {
            "label": self.labels.tolist(),
            "radius": self.radius.tolist(),
            "exact": self.exact.tolist(),
            "why not more": [self.reason(index) for index in range(len(self))],
        }
        what = "share of inputs whose label no k users can change"
        title = f"{self.decoder}, threat model {self.threat}: {what}, of {len(self):,}"
        return Sheet(title, columns, lambda: certified_accuracy(self).plot())


def join_certificates(parts: list[Certificates]) -> Certificates:
    """Put the certificates of consecutive blocks of inputs together, in order; all from the same request.

    Examples
    --------
    >>> from codeward import Code, certify
    >>> code = Code([[1, 0], [0, 1]])
    >>> len(join_certificates([certify([[0, 0]], code), certify([[0, 1], [1, 1]], code)]))
    3
    """
    width = max(part.attackers.shape[1] for part in parts)
    padded = [
        np.pad(part.attackers, ((0, 0), (0, width - part.attackers.shape[1])), constant_values=-1) for part in parts
    ]
    return Certificates(
        labels=np.concatenate([part.labels for part in parts]),
        radius=np.concatenate([part.radius for part in parts]),
        exact=np.concatenate([part.exact for part in parts]),
        attackers=np.concatenate(padded),
        targets=np.concatenate([part.targets for part in parts]),
        threat=parts[0].threat,
        decoder=parts[0].decoder,
        searched=min(part.searched for part in parts),
        opponents=_join([part.opponents for part in parts]),
        radius_to=_join([part.radius_to for part in parts]),
        users=parts[0].users,
    )


def _join(parts: list[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


@dataclass(frozen=True, eq=False)
class CertifiedCurve(Displayed):
    """Share of all inputs that are right and certified against k users, for k = 0, 1, ...

    Attributes
    ----------
    attackers : ndarray of int64, shape (K + 1,)
        k, from 0.
    accuracy : ndarray of float64, shape (K + 1,)
        Inputs with the right label and radius >= k, as a fraction of all ``n_inputs``; at k = 0 the clean accuracy.
    n_inputs : int
        The denominator.
    threat : {"deterministic", "arbitrary"}
    decoder : str

    Examples
    --------
    >>> curve = CertifiedCurve(np.arange(3), np.array([0.9, 0.8, 0.2]), 1000, "arbitrary", "plurality")
    >>> curve.at(1), curve.at(7)
    (0.8, 0.0)
    """

    attackers: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    n_inputs: int
    threat: Threat
    decoder: str

    def at(self, n_attackers: int) -> float:
        """Return the share certified against ``n_attackers`` users; 0 past the end, where nothing is certified."""
        here = np.flatnonzero(self.attackers == n_attackers)
        return float(self.accuracy[here[0]]) if here.size else 0.0

    def _sheet(self) -> Sheet:
        columns = {"attackers": self.attackers.tolist(), "certified": self.accuracy.tolist()}
        what = f"certified share of {self.n_inputs:,} inputs by number of attackers"
        return Sheet(f"{self.decoder}, threat model {self.threat}: {what}", columns, self._draw)

    def _draw(self) -> Drawing:
        from codeward._charts import ATTACKER_STYLES, Line, draw_lines, make_point

        counts = np.rint(self.accuracy * self.n_inputs).astype(int).tolist()
        points = tuple(
            make_point(k, [{"count": count, "of": max(self.n_inputs, 1)}], f"k = {k}")
            for k, count in zip(self.attackers.tolist(), counts, strict=True)
        )
        line = Line(self.decoder, ATTACKER_STYLES[1].kind, False, ATTACKER_STYLES[1].marker, points)
        step = -(-len(points) // 12)  # there is room for so many numbers
        ticks = range(0, max(2, len(points)) - 1 + step, step)
        return draw_lines([line], "Certified share by number of attackers", "attackers k", ticks)


@dataclass(frozen=True)
class Floor:
    """The least certified accuracy that is accepted, as ``--fail-under`` says it.

    Attributes
    ----------
    n_attackers : int
        k.
    accuracy : float
        Share of all inputs that must be right and certified against k users.

    Examples
    --------
    >>> Floor(1, 0.8).check(0.8, 1000)
    >>> Floor(1, 0.8).check(0.7, 10)
    Traceback (most recent call last):
    ...
    codeward._errors.UnmetError: certified accuracy at k = 1 is 70.0% (7 of 10 inputs), below the 80.0% of --fail-under
    """

    n_attackers: int
    accuracy: float

    def check(self, reached: float, n_inputs: int) -> None:
        """Raise `UnmetError` with one line where the share certified against k users is below the floor."""
        if reached < self.accuracy:
            # As many decimals as tell the two apart: rounded to the same figure they would contradict the verdict.
            shown = ([f"{share:.{digits}%}" for share in (reached, self.accuracy)] for digits in range(1, 16))
            found, asked = next((pair for pair in shown if pair[0] != pair[1]), (str(reached), str(self.accuracy)))
            raise UnmetError(
                f"certified accuracy at k = {self.n_attackers} is {found} ({round(reached * n_inputs):,} of "
                f"{n_inputs:,} inputs), below the {asked} of --fail-under"
            )


def parse_floor(text: str) -> Floor:
    """Read ``"k=1:0.80"``: at least 80% of all inputs right and certified against one user.

    Examples
    --------
    >>> parse_floor("k=1:0.80")
    Floor(n_attackers=1, accuracy=0.8)
    """
    found = re.fullmatch(r"\s*k\s*=\s*([0-9]{1,9})\s*:\s*([0-9]*\.?[0-9]+)\s*", text)
    if found is None or not float(found[2]) <= 1:
        raise InputError(f"{text!r} is no floor: write k=1:0.80 for 80% certified against 1 user (shares up to 1)")
    return Floor(int(found[1]), float(found[2]))


def certified_accuracy(
    certificates: Certificates, labels: ArrayLike | None = None, max_attackers: int | None = None
) -> CertifiedCurve:
    """Return the certified accuracy for k = 0..K; without ``labels`` the fraction with a certified verdict.

    Parameters
    ----------
    certificates : Certificates
    labels : array_like of int, shape (N,), optional
        True labels.
    max_attackers : int, optional
        K; by default the largest radius plus one, but no more than was searched. Past what was searched the curve is
        0, which is a true statement: nothing is certified there.

    Examples
    --------
    >>> from codeward import Code, certify
    >>> votes = [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    >>> curve = certified_accuracy(certify(votes, Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]])), labels=[1, 1, 2])
    >>> dict(zip(curve.attackers.tolist(), curve.accuracy.round(2).tolist()))
    {0: 0.67, 1: 0.33, 2: 0.0}
    """
    right = certificates.labels >= 0
    if labels is not None:
        true = np.asarray(labels)
        if true.shape != certificates.labels.shape:
            raise InputError(f"labels: expected shape {certificates.labels.shape}, got {true.shape}")
        right &= certificates.labels == true
    top = max_attackers
    if top is None:
        top = min(int(certificates.radius.max(initial=0)) + 1, certificates.searched)
    attackers = np.arange(top + 1, dtype=np.int64)
    held = right[:, None] & (certificates.radius[:, None] >= attackers)
    return CertifiedCurve(attackers, held.mean(axis=0), len(certificates), certificates.threat, certificates.decoder)
