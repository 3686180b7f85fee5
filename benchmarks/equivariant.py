"""What no equivariant decoder of votes certifies against arbitrary attackers (Proposition 45 of docs/theory.md).

    python -m benchmarks.equivariant [cifar10 mnist]

A decoder is equivariant when it treats classes alike, and so models that an exchange of users makes of one another.
Votes of the paper's codes, modern recipe, IID data, clean inputs of all repeats in ``results``: share of inputs that
such a decoder may certify at the most, beside what plurality certifies on the partition into single users. "With ties":
it may also prefer the smaller class where two are alike, as plurality does.
"""

import sys
from itertools import permutations
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from codeward.certificates import certify
from codeward.codes import Code, enumerate_patterns
from codeward.reproduction import list_runs
from codeward.runs import Cell

#: Exchanges of users that are tried, one by one.
MOST = 50_000
#: By code, numbers of attackers for which something can be certified at all.
CODES = {"a": (1, 2, 3, 4, 5), "b": (1, 2), "c": (1, 2), "d": (1,)}


def list_symmetries(code: Code) -> NDArray[np.int64]:
    """Return how models change places when users do, for all exchanges that leave the code as it is, a row each."""
    columns, first, counts = np.unique(code.matrix.T, axis=0, return_index=True, return_counts=True)
    if np.prod(np.arange(1.0, len(columns) + 1)) > MOST:
        raise ValueError(f"{len(columns)} kinds of users: too many exchanges to try")
    rows = {tuple(row): model for model, row in enumerate(code.matrix[:, first].tolist())}
    if len(rows) < code.n_models:
        raise ValueError("rows that are alike")
    found = set()
    for order in permutations(range(len(columns))):
        if (counts[list(order)] == counts).all():
            moved = [rows.get(tuple(row)) for row in code.matrix[:, first][:, list(order)].tolist()]
            if None not in moved:
                found.add(tuple(moved))
    return np.array(sorted(found))


def find_conflicts(
    votes: NDArray[np.int64], labels: NDArray[np.int64], code: Code, k: int, n_classes: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which inputs no equivariant decoder certifies against k users; and which not even one that prefers classes.

    Parameters
    ----------
    votes : ndarray, shape (N, m)
    labels : ndarray, shape (N,)
        What is to be certified.
    """
    symmetries = list_symmetries(code)
    table = enumerate_patterns(code, min(2 * k, code.n_users))
    # Larger patterns hide more: the others need not be tried.
    patterns = [
        bits for bits in table.bits if not any((bits < other).any() and (bits <= other).all() for other in table.bits)
    ]
    distinct, places = np.unique(np.column_stack([labels, votes]), axis=0, return_inverse=True)
    found = np.zeros((2, len(distinct)), dtype=bool)
    for number, (label, *said) in enumerate(distinct.tolist()):
        found[:, number] = _conflict(np.array(said), label, symmetries, patterns, n_classes)
    return found[0][places], found[1][places]


def _conflict(
    said: NDArray[np.int64],
    label: int,
    symmetries: NDArray[np.int64],
    patterns: list[NDArray[np.bool_]],
    n_classes: int,
) -> tuple[bool, bool]:
    """Look for votes of another label that the attackers can make alike; and of a smaller one."""
    moved, rows = said[symmetries], np.arange(len(symmetries))
    any_label = smaller = False
    for pattern in patterns:
        # pairs[s, a, b]: exchange s and renaming a to b must go together for the votes to agree on what is not hit.
        pairs = np.zeros((len(symmetries), n_classes, n_classes), dtype=bool)
        for model in np.flatnonzero(~pattern):
            pairs[rows, moved[:, model], said[model]] = True
        renames = (pairs.sum(axis=2) <= 1).all(axis=1) & (pairs.sum(axis=1) <= 1).all(axis=1) & ~pairs[:, label, label]
        fixed, used = pairs[:, label].any(axis=1), pairs.any(axis=1)
        new = pairs[:, label].argmax(axis=1)
        spare = ~used  # classes that nothing is renamed to yet: what the label may become where it is not said
        spare[:, label] = False
        any_label |= bool((renames & (fixed | spare.any(axis=1))).any())
        smaller |= bool((renames & np.where(fixed, new < label, spare[:, :label].any(axis=1))).any())
    return any_label, smaller


def find_close(votes: NDArray[np.int64], labels: NDArray[np.int64], k: int, n_classes: int) -> NDArray[np.bool_]:
    """Tell which inputs no equivariant decoder certifies where each user feeds one model: a class within 2k votes."""
    counts = (votes[:, :, None] == np.arange(n_classes)).sum(axis=1)
    own = np.take_along_axis(counts, labels[:, None], axis=1)
    others = np.arange(n_classes) != labels[:, None]
    return np.asarray(((np.abs(own - counts) <= 2 * k) & others).any(axis=1))


def show(name: str, values: list[float]) -> None:
    spread = f" ±{100 * stdev(values):.2f}" if len(values) > 1 else ""
    print(f"  {name:44s} {100 * fmean(values):6.2f}{spread} ({len(values)})")


def main() -> None:
    runs = list_runs("results")
    for dataset in sys.argv[1:] or ("cifar10", "mnist"):
        print(f"{dataset}, % of the clean inputs, mean ± standard deviation (repeats)")
        for name, sizes in CODES.items():
            run = runs[f"{dataset}-iid-modern/{name}"]
            cells = [Cell(run, *known) for known in sorted(run.list_votes()) if known[1] == 0]
            for k in sizes:
                rows: dict[str, list[float]] = {}
                for cell in cells:
                    votes, labels = cell.clean.votes, cell.clean.labels
                    assert labels is not None
                    if name in "ab":
                        proved = certify(votes, run.code, threat="arbitrary", n_classes=10, max_attackers=k)
                        right = (proved.labels == labels) & (proved.radius >= k)
                        rows.setdefault(f"{name}, k = {k}: plurality", []).append(right.mean())
                        lost = find_close(votes, labels, k, 10)
                        rows.setdefault(f"{name}, k = {k}: at most", []).append(1 - lost.mean())
                    else:
                        lost, lost_too = find_conflicts(votes, labels, run.code, k, 10)
                        rows.setdefault(f"{name}, k = {k}: at most", []).append(1 - lost.mean())
                        rows.setdefault(f"{name}, k = {k}: at most, with ties", []).append(1 - lost_too.mean())
                for row, values in rows.items():
                    show(row, values)


if __name__ == "__main__":
    main()
