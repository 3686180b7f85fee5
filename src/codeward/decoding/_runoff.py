"""Two votes: a run-off (Rezaei et al., ICML 2023) between the two classes with most votes, or an appeal to others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._compiled import compiled
from codeward._cores import share_rows
from codeward._errors import InputError, TooLargeError
from codeward.codes import Code
from codeward.decoding._assumptions import check_votes
from codeward.decoding._decoded import ALARM, Decoded
from codeward.decoding._vote_counting import tally_votes

#: Most numbers that `RunOffCounts.count` keeps.
_MOST_COUNTS = 1 << 28


@dataclass(frozen=True, eq=False)
class RunOffCounts:
    """What a run-off needs of N inputs: far smaller than the scores of many models.

    Attributes
    ----------
    first : ndarray of int64, shape (N, c)
        Models whose largest score is that of a class (ties to the smaller class).
    pairs : ndarray of int64, shape (N, c, c)
        ``pairs[i, a, b]``: models that score class a above b, or equal where a < b; 0 where a = b.
    joint : ndarray of int64, shape (N, c, c, c), or None
        ``joint[i, v, a, b]``: the models of ``pairs[i, a, b]`` that vote v. With it the certificate of a partition is
        exact, without it a sound bound.

    Examples
    --------
    >>> counts = RunOffCounts.count([[[0.5, 0.3, 0.2], [0.1, 0.5, 0.4], [0.1, 0.4, 0.5]]])
    >>> counts.first, counts.pairs[0, 1, 0], counts.n_models
    (array([[1, 1, 1]]), np.int64(2), 3)
    """

    first: NDArray[np.int64]
    pairs: NDArray[np.int64]
    joint: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for name in ("first", "pairs", "joint"):
            given = getattr(self, name)
            if given is not None:
                raw = np.asarray(given)
                if raw.dtype.kind not in "iu":
                    raise InputError(f"{name}: expected counts (whole numbers), got dtype {raw.dtype}")
                object.__setattr__(self, name, raw.astype(np.int64, copy=False))
        shape = self.first.shape
        if len(shape) != 2 or shape[1] < 2 or self.pairs.shape != (*shape, shape[1]):
            raise InputError(
                f"counts: expected first (N, c) and pairs (N, c, c) of 2 classes or more, got {shape} and "
                f"{self.pairs.shape}"
            )
        total = self.first.sum(axis=1)
        both = self.pairs + self.pairs.transpose(0, 2, 1)
        apart = ~np.eye(shape[1], dtype=bool)
        sound = self.first.min(initial=0) >= 0 and not (total != total[:1]).any()
        sound = sound and bool((both == total[:, None, None] * apart).all())
        if not sound or bool(((self.pairs < self.first[:, :, None]) & apart).any()):
            raise InputError("counts: the pairwise counts are not of models that cast the votes of the first round")
        if self.joint is not None:
            self._check_joint(apart)

    def _check_joint(self, apart: NDArray[np.bool_]) -> None:
        assert self.joint is not None
        if self.joint.shape != (*self.pairs.shape, self.pairs.shape[2]) or self.joint.min(initial=0) < 0:
            raise InputError(f"joint: expected counts of shape (N, c, c, c), got {self.joint.shape}")
        both = self.joint + self.joint.transpose(0, 1, 3, 2)
        own = np.einsum("nvvb->nvb", self.joint)
        if (
            (self.joint.sum(axis=1) != self.pairs).any()
            or (both != self.first[:, :, None, None] * apart).any()
            or (own != self.first[:, :, None] * apart).any()
        ):
            raise InputError("joint: counts that do not add up to those of the rounds")

    def __len__(self) -> int:
        return int(self.first.shape[0])

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return int(self.first.shape[1])

    @property
    def n_models(self) -> int:
        """Number of models m; 0 without inputs."""
        return int(self.first[0].sum()) if len(self) else 0

    @classmethod
    def count(cls, scores: ArrayLike, *, joint: bool = False) -> "RunOffCounts":
        """Count scores of shape (N, m, c), of any numbers that can be compared; with ``joint`` also who votes what."""
        checked = check_scores(scores)
        n, _, c = checked.shape
        if n * c**3 > _MOST_COUNTS and joint:
            raise TooLargeError(f"joint counts of {n:,} inputs and {c} classes are too many; count without joint")
        table = np.zeros((n, c, c, c) if joint else (n, 1, c, c), dtype=np.int64)
        first = np.zeros((n, c), dtype=np.int64)
        share_rows(n, lambda part: _count_choices(checked[part], first[part], table[part]))
        return cls(first, table.sum(axis=1), table if joint else None)

    @classmethod
    def concatenate(cls, parts: Sequence["RunOffCounts"]) -> "RunOffCounts":
        """Join the counts of consecutive inputs; at least one part."""
        if not parts:
            raise InputError("there are no counts to join")
        joint = [part.joint for part in parts if part.joint is not None]
        return cls(
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.pairs for part in parts]),
            np.concatenate(joint) if len(joint) == len(parts) else None,
        )


def check_scores(scores: ArrayLike, n_models: int | None = None, n_classes: int | None = None) -> NDArray[Any]:
    """Return class scores (N, m, c) as float32 or float64, whichever keeps their order; refuse what has none.

    Examples
    --------
    >>> check_scores([[[3, 1], [0, 2]]]).dtype
    dtype('float64')
    """
    raw = np.asarray(scores)
    if raw.ndim != 3 or raw.shape[1] == 0 or raw.shape[2] < 2 or raw.dtype.kind not in "iuf":
        raise InputError(f"scores: expected numbers of shape (inputs, models, classes), got {raw.dtype} {raw.shape}")
    if n_models not in (None, raw.shape[1]):
        raise InputError(f"scores: of {raw.shape[1]} models, but the code has {n_models} (rows)")
    if n_classes not in (None, raw.shape[2]):
        raise InputError(f"scores: of {raw.shape[2]} classes, not {n_classes}")
    kept = raw.astype(np.float32 if raw.itemsize <= 2 or raw.dtype == np.float32 else np.float64, copy=False)
    if raw.itemsize == 8 and raw.dtype.kind in "iu" and (np.abs(kept) > 2.0**53).any():
        raise InputError("scores: whole numbers above 2^53 in size")
    if raw.dtype.kind == "f" and np.isnan(raw).any():
        raise InputError("scores hold NaN")
    return np.ascontiguousarray(kept)


@compiled
def _count_choices(scores, first, table):  # type: ignore[no-untyped-def]
    """Add up votes (N, c) and, per voter's class (or all in one), who scores a above b; ties to the smaller class."""
    n_inputs, n_models, n_classes = scores.shape
    joint = table.shape[1] > 1
    for i in range(n_inputs):
        for j in range(n_models):
            own = scores[i, j]
            vote = 0
            for v in range(1, n_classes):
                if own[v] > own[vote]:
                    vote = v
            first[i, vote] += 1
            row = vote if joint else 0
            for a in range(n_classes):
                for b in range(a + 1, n_classes):
                    if own[a] >= own[b]:
                        table[i, row, a, b] += 1
                    else:
                        table[i, row, b, a] += 1


class RunOffDecoder:
    r"""The winner of a run-off between the two classes with most votes; ties go to the smaller class in both rounds.

    A model's vote is the class of its largest score (ties to the smaller class). The two classes with most votes go
    into the second round, where every model chooses the one that it scores higher. Rezaei et al., "Run-Off Election:
    Improved Provable Defense against Data Poisoning Attacks", ICML 2023. Works for any code.

    Threat model: none of its own; `codeward.certify` gives its radius under *arbitrary* attacks.

    Parameters
    ----------
    code : Code, optional
        Checked against the number of models when given.
    n_classes : int, optional
        Number of classes c, checked when given.

    Examples
    --------
    Class 0 leads the first round, but whoever votes for 2 would rather have 1:

    >>> scores = [[[9, 1, 0], [9, 1, 0], [9, 0, 1], [0, 9, 1], [0, 9, 1], [0, 5, 9]]]
    >>> RunOffDecoder().predict(scores)
    array([0])
    >>> RunOffDecoder().predict([[*scores[0], [0, 5, 9]]])
    array([1])
    """

    needs: Literal["scores"] = "scores"
    threshold: float = ALARM

    def __init__(self, code: Code | None = None, n_classes: int | None = None) -> None:
        self.code = code
        self.n_classes = n_classes

    def predict(self, scores: "ArrayLike | RunOffCounts") -> NDArray[np.int64]:
        """Labels of scores of shape (N, m, c), or of what was counted of them, shape (N,)."""
        finalists, second, _ = self._elect(scores)
        return np.where(second[:, 0] >= second[:, 1], finalists[:, 0], finalists[:, 1])

    def decode(self, scores: "ArrayLike | RunOffCounts") -> Decoded:
        """Decode scores of shape (N, m, c), or what was counted of them.

        ``label_probability`` holds the finalists' shares of the second round; the attack probability is 1 where a model
        votes for another class than the winner; there are no targets (-1) and no suspects.
        """
        finalists, second, first = self._elect(scores)
        labels = np.where(second[:, 0] >= second[:, 1], finalists[:, 0], finalists[:, 1])
        shares = np.zeros(first.shape)
        np.put_along_axis(shares, finalists, second / np.maximum(second.sum(axis=1, keepdims=True), 1), axis=1)
        return Decoded.by_counting(labels, first, shares, self.code.n_users if self.code is not None else 0)

    def _elect(self, scores: Any) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Finalists (N, 2), ascending, their votes in the second round (N, 2), and the votes of the first (N, c)."""
        n_models = self.code.n_models if self.code is not None else None
        if isinstance(scores, RunOffCounts):
            if len(scores) and n_models not in (None, scores.n_models):
                raise InputError(f"counts: of {scores.n_models} models, but the code has {n_models} (rows)")
            if self.n_classes not in (None, scores.n_classes):
                raise InputError(f"counts: of {scores.n_classes} classes, not {self.n_classes}")
            finalists, first = _find_finalists(scores.first), scores.first
            rows, a, b = np.arange(len(scores)), finalists[:, 0], finalists[:, 1]
            return finalists, np.stack([scores.pairs[rows, a, b], scores.pairs[rows, b, a]], axis=1), first
        checked = check_scores(scores, n_models, self.n_classes)
        first = tally_votes(checked.argmax(axis=2), checked.shape[2])
        finalists = _find_finalists(first)
        a, b = np.split(np.take_along_axis(checked, finalists[:, None, :], axis=2), 2, axis=2)
        ahead = np.count_nonzero(a >= b, axis=(1, 2))
        return finalists, np.stack([ahead, checked.shape[1] - ahead], axis=1), first


def _find_finalists(first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the two classes with most votes (N, c), ties to the smaller, ascending, shape (N, 2)."""
    return np.sort(np.argsort(-first, axis=1, kind="stable")[:, :2], axis=1)


class AppealDecoder:
    """The first models vote; where their winner has at most ``most`` votes, the other models vote instead.

    Ties go to the smaller class in both votes. Meant for a partition stacked on a code with more users a model
    (`codeward.codes.stack_codes`): few attackers cannot sway many small models, and large models know more where the
    small ones are at odds.

    Guarantee (Proposition 41 of docs/theory.md; threat model *arbitrary*): if every user is in one of the first models,
    whatever plurality of these certifies against k > ``most`` users stays certified. `codeward.certify` gives the exact
    radius of every input.

    Parameters
    ----------
    code : Code
        All models, the first ones first.
    n_first : int
        How many models vote first, at least 1; at least one must be left for the appeal.
    most : int
        The first vote counts when its winner has more votes than this.
    n_classes : int
        Number of classes c.

    Examples
    --------
    >>> from codeward.codes import Code, partition_code, stack_codes
    >>> code = stack_codes(partition_code(4, 4), partition_code(4, 2))
    >>> decoder = AppealDecoder(code, n_first=4, most=2, n_classes=3)
    >>> decoder.predict([[0, 0, 0, 1, 2, 2], [0, 0, 1, 1, 2, 2]])
    array([0, 2])
    """

    needs: Literal["votes"] = "votes"
    threshold: float = ALARM

    def __init__(self, code: Code, n_first: int, most: int, n_classes: int) -> None:
        if not 1 <= n_first < code.n_models or most < 0 or n_classes < 2:
            raise InputError(
                f"appeal: expected 1 to {code.n_models - 1} first models, most >= 0 and 2 classes or more, got "
                f"{n_first}, {most} and {n_classes}"
            )
        self.code, self.n_first, self.most, self.n_classes = code, n_first, most, n_classes

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,)."""
        return self._decide(votes)[0]

    def decode(self, votes: ArrayLike) -> Decoded:
        """Decode votes of shape (N, m).

        ``label_probability`` holds the shares of the vote that decides; the attack probability is 1 where any model
        dissents from the verdict; there are no targets (-1) and no suspects.
        """
        labels, shares, counts = self._decide(votes)
        return Decoded.by_counting(labels, counts, shares, self.code.n_users)

    def _decide(self, votes: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """Verdicts (N,), shares in the vote that decided (N, c), and all votes (N, c)."""
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        first, second = (tally_votes(part, self.n_classes) for part in np.split(checked, [self.n_first], axis=1))
        chosen = np.where(first.max(axis=1, keepdims=True, initial=0) > self.most, first, second)
        shares = chosen / np.maximum(chosen.sum(axis=1, keepdims=True), 1)
        return np.argmax(chosen, axis=1).astype(np.int64), shares, first + second
