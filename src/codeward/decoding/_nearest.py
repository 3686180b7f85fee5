"""The nearest attack: the label that votes alone determine, under an attack by few users with one target."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code, enumerate_patterns, find_margins
from codeward.decoding._assumptions import check_class_counts, check_votes
from codeward.decoding._decoded import ALARM, NO_VERDICT, Decoded, distinct_rows
from codeward.decoding._vote_counting import tally_votes

#: Hit patterns whose pairs are compared at most to find out what the nearest attack determines; seconds.
MOST_PATTERNS = 10_000
#: Users of whom every two are considered with a target each.
MOST_PAIRED = 60
#: Votes that targets of two users have to explain beyond one target. Of 1,292 labels under such an attack on training
#: images of digits 63 were gained by it and 5 lost, of 7,764 others 2 lost.
LEAD = 3
#: A model has seen a class with so many samples of it, or so large a share of its samples: a fortieth, or a quarter of
#: an even share (1 / c) where that is less. CIFAR-10 by Dirichlet shares (alpha 10, 1 and 0.1, two splits each), 15
#: models of 4 of 12 users, clean validation inputs: 0 to 15 of 790 pairs of pattern and target do not count then, and
#: the verdicts cost the plain vote 0.1 to 0.5 points; with all pairs 0.2 to 7.9, with a tenth of an even share 2.5.
FEW_SAMPLES, SMALL_SHARE, SMALL_PART = 400, 0.025, 0.25


@dataclass(frozen=True, eq=False)
class ClassShares:
    """How many samples of every class the models have learned from.

    Where few users hold nearly all samples of a class t, models without these users never learn it. On a clean input of
    t they say something else, and that looks like an attack with target t by those users. No rule on votes tells the
    two apart.

    Attributes
    ----------
    models : ndarray of float64, shape (m, c)
        Samples of every class that a model's users handed in.

    Examples
    --------
    >>> code = Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    >>> shares = ClassShares.count(code, [[50, 50], [100, 0], [100, 0]], 2)
    >>> shares.find_unseen(np.array([[1, 0, 0], [0, 1, 0]], dtype=bool), 0)  # class 1 is the first user's alone
    array([[False,  True],
           [False, False]])
    """

    models: NDArray[np.float64]

    @classmethod
    def count(cls, code: Code, class_counts: ArrayLike, n_classes: int) -> "ClassShares":
        """Count them from the users' samples of every class, shape (n, c)."""
        counts = check_class_counts(class_counts, code.n_users).astype(np.float64)
        if counts.shape[1] != n_classes:
            raise InputError(f"class_counts: {counts.shape[1]} columns for {n_classes} classes")
        return cls(code.matrix.astype(np.float64) @ counts)

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Whether a model has seen a class, shape (m, c)."""
        share = self.models / np.maximum(self.models.sum(axis=1, keepdims=True), 1.0)
        least = min(SMALL_SHARE, SMALL_PART / self.models.shape[1])
        return np.asarray((self.models >= FEW_SAMPLES) | (share >= least))

    def find_unseen(
        self, bits: NDArray[np.bool_], n_errors: int, reached: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Tell which classes at most e of the models outside each pattern of ``bits`` (P, m) have seen, shape (P, c).

        Never of the empty pattern. Users who feed the models ``reached`` (m,) hand in what they like: none of these
        counts.
        """
        seen = self.seen if reached is None else self.seen & ~reached[:, None]
        known = (~bits).astype(np.int64) @ seen.astype(np.int64)
        return np.asarray((known <= n_errors) & bits.any(axis=1, keepdims=True))


class NearestDecoder:
    r"""The one label that an attack by at most k users with one target explains but for at most e votes.

    A label l is *explained* by a hit pattern x when all models inside x say one target and all outside say l, but for
    at most e models. The verdict is the label that some pattern of at most k users explains, if there is exactly one;
    otherwise there is no verdict (-1). No attack is the empty pattern. Nothing is fitted, so no validation data can
    mislead it.

    Guarantee (Propositions 12 and 43 of docs/theory.md; threat model *deterministic*). Let the code's label margin for
    k be at least 2e + 1, let at most k users attack and at most e models that they do not hit be wrong. Then the
    verdict is the true label, and so is the answer of any decoder that gives this verdict wherever there is one.

    Where users' data are very unlike, that has a price: see `ClassShares`. With ``shares``, an attack (x, t) does not
    count as an explanation where at most e models outside x have seen t: a verdict that rests on such attacks alone is
    withdrawn. The guarantee then covers all attacks but those, and whether an attack by x counts depends on models that
    x does not reach: attackers cannot change it.

    **More attackers than k.** A verdict that leaves votes open is withdrawn where an attack by at most ``n_rivals``
    users explains more of them and says another label: two users whose trigger failed in one model are then no better
    than three whose trigger worked everywhere. The guarantee is kept for `n_tolerated` wrong models; see there.

    Parameters
    ----------
    code : Code
    n_attackers, n_errors : int
        k and e.
    n_classes : int
        Number of classes c.
    shares : ClassShares, optional
        What the models learned from; by default everybody has all classes.
    conditional : bool
        Whether certificates of it are about the attacks that count alone. Otherwise one that does not count breaks
        every label.
    n_rivals : int
        K, the users up to whom attacks may explain votes better; those of at most k users never do.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> code = named_code("btc2412")
    >>> votes = np.where(code.pattern((0, 5)), 7, 3)
    >>> votes[np.argmin(code.pattern((0, 5)))] = 9  # one more model errs
    >>> NearestDecoder(code, n_attackers=2, n_errors=1, n_classes=10).predict([votes, np.arange(15) % 10])
    array([ 3, -1])
    """

    needs: Literal["votes"] = "votes"
    threshold: float = ALARM

    def __init__(
        self,
        code: Code,
        n_attackers: int,
        n_errors: int,
        n_classes: int,
        shares: ClassShares | None = None,
        conditional: bool = False,
        n_rivals: int = 0,
    ) -> None:
        self.code, self.n_attackers, self.n_errors, self.n_classes = code, n_attackers, n_errors, n_classes
        self.shares, self.conditional, self.n_rivals = shares, conditional, n_rivals

    @classmethod
    def choose(
        cls, code: Code, max_attackers: int, n_classes: int, class_counts: ArrayLike | None = None
    ) -> "NearestDecoder | None":
        """Return it for one wrong vote and the most users that the code allows, None where it allows nobody.

        Attacks by up to ``max_attackers`` users are rivals of its verdicts.

        Those are the k with a label margin of 3 whose patterns leave at least a third of the models alone: fewer may
        well err alike on a hard image, which would pass for an attack on all others. With the users' samples of every
        class, shape (n, c), attacks are left out that clean inputs of a class pass for that few users hold.
        """
        table = enumerate_patterns(code, min(max_attackers, code.n_users))
        if table.sizes.size > MOST_PATTERNS:
            return None
        alone = (~table.bits).sum(axis=1)
        for k in range(table.max_attackers, 0, -1):
            enough = 3 * int(alone[table.sizes <= k].min()) >= code.n_models
            if enough and find_margins(table, k).label[k - 1] >= 3:
                shares = None if class_counts is None else ClassShares.count(code, class_counts, n_classes)
                return cls(code, k, 1, n_classes, shares, n_rivals=table.max_attackers)
        return None

    @cached_property
    def bits_(self) -> NDArray[np.bool_]:
        """All hit patterns of at most k users, the empty one first, shape (P, m)."""
        return enumerate_patterns(self.code, self.n_attackers).bits

    @property
    def but_left_out(self) -> "NearestDecoder":
        """The same decoder, whose certificates are about the attacks that count alone."""
        return replace_parts(self, conditional=True)

    @property
    def but_shares(self) -> "NearestDecoder":
        """The same decoder where everybody has all classes: no verdict is withdrawn for want of samples."""
        return replace_parts(self, shares=None)

    @cached_property
    def n_tolerated(self) -> int:
        """Wrong models, of those that no attacker hits, with which the true label is the verdict for sure.

        At most ``n_errors``, and at most half of the models in which an attack by at most k users and one by at most
        K differ whose labels are unlike: with so few wrong votes no rival explains more (Proposition 43).
        """
        if self.n_rivals <= self.n_attackers:
            return self.n_errors
        inside = self.bits_.astype(np.float32)
        parts = (self.rivals_[start : start + 1_000].astype(np.float32) for start in range(0, len(self.rivals_), 1_000))
        apart = min(int((part @ inside.T + (1 - part) @ (1 - inside.T)).min()) for part in parts)
        return min(self.n_errors, apart // 2)

    @cached_property
    def rivals_(self) -> NDArray[np.bool_]:
        """All hit patterns of at most K users, shape (R, m)."""
        return enumerate_patterns(self.code, max(self.n_rivals, self.n_attackers)).bits

    @cached_property
    def unseen_(self) -> NDArray[np.bool_]:
        """Targets of each pattern with which an attack does not count, shape (P, c)."""
        if self.shares is None:
            return np.zeros((len(self.bits_), self.n_classes), dtype=bool)
        return self.shares.find_unseen(self.bits_, self.n_errors)

    def list_uncovered(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """List smallest sets of users, each with the targets with which an attack of theirs does not count."""
        table, found = enumerate_patterns(self.code, self.n_attackers), list[tuple[tuple[int, ...], tuple[int, ...]]]()
        for row in np.flatnonzero(self.unseen_.any(axis=1)).tolist():
            users = table.attacker_set(row)
            known = {target for others, targets in found if set(others) <= set(users) for target in targets}
            if new := tuple(target for target in np.flatnonzero(self.unseen_[row]).tolist() if target not in known):
                found.append((users, new))
        return found

    @property
    def n_covered(self) -> int:
        """The most users of whom every attack counts: k where all do."""
        return min([self.n_attackers, *(len(users) - 1 for users, _ in self.list_uncovered())])

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,); -1 is no verdict."""
        return self._decide(votes)[0]

    def predict_under(self, votes: ArrayLike, bits: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Labels (N,) that stay, whatever samples the users hand in who reach the models ``bits`` (N, m); else -1.

        ``votes`` (N, m) are those under their attack. With other samples they may bring it about that an explanation no
        longer counts, but for models they do not reach.
        """
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        distinct, inverse = distinct_rows(checked, self.n_classes)
        labels = self._find_only(distinct, self._count_unlike(distinct))[inverse]
        if self.shares is None:
            return labels
        for reached in np.unique(bits, axis=0):
            rows = np.flatnonzero((bits == reached).all(axis=1) & (labels >= 0))
            unseen = self.shares.find_unseen(self.bits_, self.n_errors, reached)
            if unseen.any() and rows.size:
                distinct, inverse = distinct_rows(checked[rows], self.n_classes)
                first = np.unique(inverse, return_index=True)[1]
                labels[rows] = self._withdraw(labels[rows[first]], distinct, unseen)[inverse]
        return labels

    def decode(self, votes: ArrayLike) -> Decoded:
        """Decode votes of shape (N, m).

        ``label_probability`` is shared by the explained labels, or by all where none is; the attack probability is 1
        where any model dissents from the verdict or there is none; there are no targets (-1) and no suspects.
        """
        labels, explained, counts = self._decide(votes)
        shares = np.where(explained.any(axis=1, keepdims=True), explained, True).astype(np.float64)
        shares /= shares.sum(axis=1, keepdims=True)
        found = Decoded.by_counting(np.maximum(labels, 0), counts, shares, self.code.n_users)
        doubt = np.where(labels < 0, 1.0, found.attack_probability)
        return replace(found, labels=labels, attack_probability=doubt, users=self.code.users)

    def settle(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels as `predict` has them, and where it has none those of two users with a target each; shape (N,).

        Such a label counts where its explanation (`count_unlike_pairs`) leaves at most a fifth of the votes open,
        two fewer than that of any other label and `LEAD` fewer than the best attack with one target. Nothing is proved
        about these labels.
        """
        labels, checked = self.predict(votes), np.asarray(votes)
        rows = np.flatnonzero(labels < 0)
        if self.n_attackers < 2 or self.code.n_users > MOST_PAIRED or not rows.size:
            return labels
        distinct, inverse = distinct_rows(checked[rows], self.n_classes)
        unlike = count_unlike_pairs(self.code, distinct, self.n_classes, self.shares)
        least, second = np.partition(unlike, 1, axis=1)[:, :2].T
        sure = (second >= least + 2) & (5 * least <= self.code.n_models)
        sure &= self._count_unlike(distinct).min(axis=1) >= least + LEAD
        labels[rows] = np.where(sure, unlike.argmin(axis=1), NO_VERDICT)[inverse]
        return labels

    def _decide(self, votes: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Verdicts (N,), explained labels (N, c) and votes per class (N, c)."""
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        distinct, inverse = distinct_rows(checked, self.n_classes)
        counts = tally_votes(checked, self.n_classes)
        unlike = self._count_unlike(distinct)
        labels = self._find_only(distinct, unlike)
        if self.unseen_.any():
            labels = self._withdraw(labels, distinct, self.unseen_)
        return labels[inverse], (unlike <= self.n_errors)[inverse], counts

    def _find_only(self, votes: NDArray[np.int64], unlike: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the one explained label of each row of votes (N, m), ``unlike`` (N, c) of them open, or -1.

        Whether a rival counts does not depend on anybody's samples, so that attackers cannot bring it about.
        """
        explained = unlike <= self.n_errors
        labels = np.where(explained.sum(axis=1) == 1, explained.argmax(axis=1), NO_VERDICT).astype(np.int64)
        left = np.where(labels < 0, 0, np.take_along_axis(unlike, np.maximum(labels, 0)[:, None], axis=1)[:, 0])
        rows = np.flatnonzero(left)
        if self.n_rivals > self.n_attackers and rows.size:
            others = self._count_unlike(votes[rows], bits=self.rivals_)
            others[np.arange(rows.size), labels[rows]] = self.code.n_models
            labels[rows[others.min(axis=1) < left[rows]]] = NO_VERDICT
        return labels

    def _withdraw(
        self, labels: NDArray[np.int64], votes: NDArray[np.int64], unseen: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Take back labels (N,) of votes (N, m) that no pattern explains with a target that counts."""
        rows = np.flatnonzero(labels >= 0)
        unlike = self._count_unlike(votes[rows], unseen)[np.arange(rows.size), labels[rows]]
        kept = labels.copy()
        kept[rows[unlike > self.n_errors]] = NO_VERDICT
        return kept

    def _count_unlike(
        self,
        votes: NDArray[np.int64],
        unseen: NDArray[np.bool_] | None = None,
        bits: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """Count for every label the votes that the nearest attack with one target leaves unexplained, shape (N, c).

        Attacks have the patterns ``bits`` (P, m), by default those of at most k users; those of which the target is
        ``unseen`` (P, c) are left out.
        """
        found = np.empty((len(votes), self.n_classes), dtype=np.int64)
        bits = self.bits_ if bits is None else bits
        inside, size = bits.T.astype(np.float32), bits.sum(axis=1)
        step = max(1, 2_000_000 // (size.size * self.n_classes))
        for start in range(0, len(votes), step):
            part = votes[start : start + step]
            said = (part[:, None, :] == np.arange(self.n_classes)[:, None]).astype(np.float32)  # (B, c, m)
            within = said @ inside
            # Models inside that do not say the commonest class there, and models outside that do not say l.
            counted = within if unseen is None else np.where(unseen.T, -np.float32(self.code.n_models), within)
            unlike = (size - counted.max(axis=1))[:, None] + (self.code.n_models - size)
            found[start : start + step] = (unlike - said.sum(axis=2)[:, :, None] + within).min(axis=2)
        return found


def replace_parts(decoder: NearestDecoder, **changes: Any) -> NearestDecoder:
    """Return a copy with other settings."""
    names = ("code", "n_attackers", "n_errors", "n_classes", "shares", "conditional", "n_rivals")
    return NearestDecoder(**{name: getattr(decoder, name) for name in names} | changes)


def count_unlike_pairs(
    code: Code, votes: NDArray[np.int64], n_classes: int, shares: ClassShares | None = None
) -> NDArray[np.int64]:
    """Count for every label the votes (N, m) that no two users with a target each explain, shape (N, c).

    Models of one of the two users say its target, those of both one of the two targets, all others the label. Targets
    that at most one model without the two has seen (`ClassShares`) are left out.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> code = named_code("btc2412")
    >>> votes = np.where(code.matrix[:, 5], 2, np.where(code.matrix[:, 0], 1, 0))
    >>> count_unlike_pairs(code, votes[None], 3)
    array([[0, 2, 4]])
    """
    users = code.matrix.T
    one, two = np.triu_indices(code.n_users, 1)
    parts = (users[one] & ~users[two], users[two] & ~users[one], users[one] & users[two], ~(users[one] | users[two]))
    unseen = np.zeros((n_classes, one.size), dtype=bool)
    if shares is not None:
        unseen = shares.find_unseen(users[one] | users[two], 1).T
    found = np.empty((len(votes), n_classes), dtype=np.int64)
    step = max(1, 500_000 // (one.size * n_classes))
    for start in range(0, len(votes), step):
        said = (votes[start : start + step, None] == np.arange(n_classes)[:, None]).astype(np.float32)
        first, second, both, outside = (said @ part.T.astype(np.float32) for part in parts)  # (B, c, P)
        first, second = (np.where(unseen, -np.float32(code.n_models), part) for part in (first, second))
        explained = np.zeros((len(said), one.size), dtype=np.float32)
        for target in range(n_classes):  # of the first user, and the best of the second, which may be the same
            others = second + both
            others[:, target] = second[:, target]
            np.maximum(explained, first[:, target] + both[:, target] + others.max(axis=1), out=explained)
        found[start : start + step] = (code.n_models - explained[:, None] - outside).min(axis=2)
    return found
