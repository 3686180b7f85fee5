r"""Which attacker sets change which outputs: one test per decoder, on distinct vote vectors and hit patterns.

Against plurality and consensus one common target is as bad as anything (Proposition 18 of docs/theory.md), and few
targets are enough, however many classes there are (Proposition 19): `list_rivals` lists them. Against other decoders
every class is tried.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from codeward.decoding import AppealDecoder, NearestDecoder

#: A decoder's verdicts on votes of shape (N, m).
Predict = Callable[[NDArray[np.int64]], NDArray[np.int64]]

#: Vote vectors decoded in one call, and cells of one block of products: both keep a block under about 100 MB.
BATCH_VECTORS = 2**18
BLOCK_CELLS = 2**23


class Breaker(Protocol):
    """Tells whether an attack with a given hit pattern changes a given output."""

    def broken(self, bits: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Test every pattern of ``bits`` (P, m) against every input of ``rows`` (R,); shape (R, P)."""

    def targets(self, bits: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Test pattern i of ``bits`` (R, m) against input ``rows[i]``: smallest target that changes it, or -1."""

    def forced(self, bits: NDArray[np.bool_], rows: NDArray[np.int64], n_classes: int) -> NDArray[np.bool_]:
        """Tell which labels every pattern of ``bits`` (P, m) can make of every input's output; shape (R, P, c)."""


class PluralityBreaker:
    r"""Attacks on a plurality vote, ties to the smaller label; exact under both threat models (Proposition 20).

    With pattern s all saying t, label t overtakes l iff

    .. math:: \sum_{i \in s} w_i \ge N_l - N_t + [t > l], \qquad w_i = 1 + [y_i = l] - [y_i = t],

    a weighted coverage: one matrix product of patterns and weights for all inputs and rivals.

    Parameters
    ----------
    votes : ndarray of int64, shape (D, m)
    labels : ndarray of int64, shape (D,)
        The plurality labels of ``votes``.
    """

    def __init__(self, votes: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        self.votes = votes
        self.labels = labels
        self.rivals = list_rivals(votes, labels)

    def demands(self, rank: int, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return weights (R, m) and the sum they must reach (R,) against each input's rival number ``rank``.

        An input without such a rival gets an unreachable sum. Small integers are exact in float32.
        """
        votes, label, rival = self.votes[rows], self.labels[rows, None], self.rivals[rows, rank, None]
        on_label, on_rival = votes == label, votes == rival
        weights = np.float32(1) + on_label - on_rival
        need = on_label.sum(axis=1) - on_rival.sum(axis=1) + (rival > label)[:, 0]
        return weights.astype(np.float32), np.where(rival[:, 0] < 0, np.inf, need).astype(np.float32)

    def broken(self, bits: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """See `Breaker`."""
        patterns = bits.T.astype(np.float32)
        hit = np.zeros((rows.size, bits.shape[0]), dtype=bool)
        for rank in range(self.rivals.shape[1]):
            has = np.flatnonzero(self.rivals[rows, rank] >= 0)
            weights, need = self.demands(rank, rows[has])
            hit[has] |= weights @ patterns >= need[:, None]
        return hit

    def targets(self, bits: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Breaker`."""
        found = np.full(rows.size, -1, dtype=np.int64)
        for rank in reversed(range(self.rivals.shape[1])):  # rivals ascend, so the smallest is written last
            weights, need = self.demands(rank, rows)
            reached = (weights * bits).sum(axis=1) >= need
            found = np.where(reached, self.rivals[rows, rank], found)
        return found

    def forced(self, bits: NDArray[np.bool_], rows: NDArray[np.int64], n_classes: int) -> NDArray[np.bool_]:
        """See `Breaker`: t wins iff it does when all hit models say it (Proposition 38)."""
        return _count_wins(self.votes[rows], bits, n_classes)[1]


class AppealBreaker:
    """Attacks on a vote with an appeal; exact under *arbitrary* (Proposition 41).

    Parameters
    ----------
    votes : ndarray of int64, shape (D, m)
    decoder : AppealDecoder
    """

    def __init__(self, votes: NDArray[np.int64], decoder: AppealDecoder) -> None:
        self.votes, self.decoder = votes, decoder
        self.labels = decoder.predict(votes)

    def forced(self, bits: NDArray[np.bool_], rows: NDArray[np.int64], n_classes: int) -> NDArray[np.bool_]:
        """See `Breaker`."""
        cut, most = self.decoder.n_first, self.decoder.most
        first, won_first = _count_wins(self.votes[rows, :cut], bits[:, :cut], n_classes)
        _, won_second = _count_wins(self.votes[rows, cut:], bits[:, cut:], n_classes)
        # 1. All hit models say t, which wins the first vote with more than ``most``: more than t has it cannot have.
        size = bits[:, :cut].sum(axis=1)[:, None]
        decided = won_first & (first + size > most)
        # 2. The hit models of the first vote spread over the classes, so that no class has more than it must.
        even = -(-cut // n_classes)
        appealed = np.maximum(first.max(axis=2), even) <= most
        return np.asarray(decided | (appealed[:, :, None] & won_second))

    def broken(self, bits: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """See `Breaker`."""
        return force_another(self, bits, rows, self.labels, self.decoder.n_classes)

    def targets(self, bits: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Breaker`."""
        found = np.full(rows.size, -1, dtype=np.int64)
        for i, row in enumerate(rows):
            able = self.forced(bits[i : i + 1], np.array([row]), self.decoder.n_classes)[0, 0]
            able[self.labels[row]] = False
            found[i] = able.argmax() if able.any() else -1
        return found


def force_another(
    breaker: Breaker, bits: NDArray[np.bool_], rows: NDArray[np.int64], labels: NDArray[np.int64], n_classes: int
) -> NDArray[np.bool_]:
    """Answer `Breaker.broken` by `Breaker.forced`: patterns that force a label other than that of ``labels`` (D,)."""
    hit = np.zeros((rows.size, bits.shape[0]), dtype=bool)
    step = max(1, BLOCK_CELLS // max(1, bits.shape[0] * n_classes))
    for start in range(0, rows.size, step):
        here = slice(start, start + step)
        found = breaker.forced(bits, rows[here], n_classes)
        np.put_along_axis(found, labels[rows[here]][:, None, None], False, axis=2)
        hit[here] = found.any(axis=2)
    return hit


def _count_wins(
    votes: NDArray[np.int64], bits: NDArray[np.bool_], n_classes: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Count the votes that patterns leave (R, P, c), and say which classes win when all hit models vote for them."""
    patterns = bits.T.astype(np.float32)
    size = patterns.sum(axis=0)
    says = [(votes == e).astype(np.float32) for e in range(n_classes)]
    kept = np.stack([own.sum(axis=1)[:, None] - own @ patterns for own in says], axis=2)
    wins = np.zeros(kept.shape, dtype=bool)
    for t in range(n_classes):
        rivals = [kept[:, :, e] + (e < t) for e in range(n_classes) if e != t]
        wins[:, :, t] = kept[:, :, t] + size >= np.max(rivals, axis=0)
    return kept, wins


class OverwriteBreaker:
    """Attacks on any decoder, by decoding the overwritten votes of every pattern and target.

    Exact for every decoder under *deterministic* when ``candidates`` lists all classes (Proposition 22), and for the
    consensus decoder under both threat models when it lists those of `list_rivals` (Proposition 21).

    Parameters
    ----------
    votes : ndarray of int64, shape (D, m)
    labels : ndarray of int64, shape (D,)
        ``predict(votes)``.
    candidates : ndarray of int64, shape (D, T)
        Targets to try for each input, ascending, padded with -1.
    predict : callable
        The decoder's verdicts.
    """

    def __init__(
        self, votes: NDArray[np.int64], labels: NDArray[np.int64], candidates: NDArray[np.int64], predict: Predict
    ) -> None:
        self.votes = votes
        self.labels = labels
        self.candidates = candidates
        self.predict = predict

    def broken(self, bits: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """See `Breaker`."""
        hit = np.zeros((rows.size, bits.shape[0]), dtype=bool)
        step = max(1, BATCH_VECTORS // bits.shape[0])
        for rank in range(self.candidates.shape[1]):
            for start in range(0, rows.size, step):
                here = np.arange(start, min(start + step, rows.size))
                here = here[self.candidates[rows[here], rank] >= 0]
                # 1. y^{s -> t} for every pattern s; cells that are already broken are not decoded again.
                chosen, pattern = np.nonzero(~hit[here])
                inputs = rows[here[chosen]]
                changed = self._changed(inputs, bits[pattern], self.candidates[inputs, rank])
                hit[here[chosen[changed]], pattern[changed]] = True
        return hit

    def targets(self, bits: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Breaker`."""
        found = np.full(rows.size, -1, dtype=np.int64)
        for rank in range(self.candidates.shape[1]):
            target = self.candidates[rows, rank]
            open_rows = np.flatnonzero((found < 0) & (target >= 0))
            changed = self._changed(rows[open_rows], bits[open_rows], target[open_rows])
            found[open_rows[changed]] = target[open_rows[changed]]
        return found

    def forced(self, bits: NDArray[np.bool_], rows: NDArray[np.int64], n_classes: int) -> NDArray[np.bool_]:
        """See `Breaker`: every target is decoded (Proposition 38)."""
        found = np.zeros((rows.size, bits.shape[0], n_classes + 1), dtype=bool)
        inputs, pattern = np.repeat(np.arange(rows.size), bits.shape[0]), np.tile(np.arange(bits.shape[0]), rows.size)
        for start in range(0, inputs.size, BATCH_VECTORS):
            row, here = inputs[start : start + BATCH_VECTORS], pattern[start : start + BATCH_VECTORS]
            for target in range(n_classes):
                # No verdict, -1, falls into the last, extra column.
                found[row, here, self.predict(np.where(bits[here], target, self.votes[rows[row]]))] = True
        return found[:, :, :-1]

    def _changed(
        self, inputs: NDArray[np.int64], bits: NDArray[np.bool_], target: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        if inputs.size == 0:
            return np.zeros(0, dtype=bool)
        overwritten = np.where(bits, target[:, None], self.votes[inputs])
        return np.asarray(self.predict(overwritten) != self.labels[inputs], dtype=bool)


class NearestBreaker(OverwriteBreaker):
    """Attacks on what the votes alone determine; sound under *deterministic*, whatever samples attackers hand in.

    With other samples they may have a verdict withdrawn (`NearestDecoder.predict_under`), or kept that was withdrawn.

    Parameters
    ----------
    votes : ndarray of int64, shape (D, m)
    labels : ndarray of int64, shape (D,)
        ``decoder.predict(votes)``.
    decoder : NearestDecoder
    """

    def __init__(self, votes: NDArray[np.int64], labels: NDArray[np.int64], decoder: NearestDecoder) -> None:
        every = np.tile(np.arange(decoder.n_classes), (votes.shape[0], 1))
        # What is forced is what is said where no verdict is withdrawn for want of samples.
        super().__init__(votes, labels, every, decoder.but_shares.predict)
        self.decoder = decoder

    def works_as_is(
        self, bits: NDArray[np.bool_], rows: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Tell which attacks change the verdict with the samples that were handed in; others are only not ruled out."""
        overwritten = np.where(bits, targets[:, None], self.votes[rows])
        return np.asarray(self.decoder.predict(overwritten) != self.labels[rows], dtype=bool)

    def _changed(
        self, inputs: NDArray[np.int64], bits: NDArray[np.bool_], target: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        overwritten = np.where(bits, target[:, None], self.votes[inputs])
        changed = self.decoder.predict_under(overwritten, bits) != self.labels[inputs]
        if self.decoder.conditional and self.decoder.shares is not None:
            unseen = self.decoder.shares.find_unseen(bits, self.decoder.n_errors)
            changed &= ~unseen[np.arange(target.size), target]
        return np.asarray(changed, dtype=bool)


def list_rivals(votes: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """List the targets that suffice against each plurality or consensus output, shape (D, T), padded with -1.

    They are the labels other than the output that have votes, and the smallest label without votes where it is smaller
    than the output (it wins ties) or where no other label has votes (Proposition 19). Ascending.
    """
    n_labels = max(int(votes.max(initial=0)), int(labels.max(initial=0))) + 2
    seen = np.zeros((votes.shape[0], n_labels), dtype=bool)
    seen[np.arange(votes.shape[0])[:, None], votes] = True
    unseen = np.argmin(seen, axis=1)  # the last column is never seen; first False: the smallest unseen label
    decided = np.flatnonzero(labels >= 0)
    seen[decided, labels[decided]] = False
    add = (unseen < labels) | ~seen.any(axis=1)
    # With no other label seen, the smallest unseen one is not the output: the output has votes.
    seen[np.flatnonzero(add), unseen[add]] = True
    width = int(seen.sum(axis=1).max(initial=0))
    order = np.argsort(~seen, axis=1, kind="stable")[:, :width]
    return np.where(np.take_along_axis(seen, order, axis=1), order, -1).astype(np.int64)
