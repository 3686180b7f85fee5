"""The study of MNIST's writers: votes of a code's models, certified against colluding writers, and attacked by some."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_npz, write_atomic, write_json
from codeward._progress import Progress
from codeward.attacks import AttackGroup, draw_groups, trigger_inputs
from codeward.certificates import certify, certify_dpa
from codeward.codes import Code, inspect
from codeward.data import Samples
from codeward.decoding import (
    Assumptions,
    ConsensusDecoder,
    Decoded,
    NearestDecoder,
    PluralityDecoder,
    VoteSet,
    estimate_confusion,
    make_decoder,
    tracking_score,
)
from codeward.reproduction._sample_tables import COMPARED, count_certified
from codeward.reproduction._writers import N_CLASSES, WriterData
from codeward.runs import read_record_folder

#: Numbers of writers who plant a trigger.
ATTACKS = (1, 2, 3, 10)
#: Inputs that the tracking decoder looks at.
_LOOKED_AT = 1000

Votes = NDArray[np.int64]


def vote_writers(
    data: WriterData, name: str, code: Code, folder: Path, sizes: Sequence[int] = (), progress: Progress | None = None
) -> list[Votes]:
    """Fit a code and return its votes: on all test images, then for each number of attackers on images with a trigger.

    Votes are kept in the folder as ``NAME.votes.npz`` and ``attack-NAME-K.votes.npz``; what is there is read.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.codes import partition_code
    >>> data = WriterData.assign_digits(6)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     clean, attacked = vote_writers(data, "partition-6", partition_code(6, 6), Path(folder), [1])
    >>> clean.shape, attacked.shape  # images and models; with the trigger only those that do not calibrate
    ((108, 6), (54, 6))
    """
    title, models = data.title(name), None
    wanted: dict[str, tuple[Samples, AttackGroup | None]] = {f"{title}.votes.npz": (data.test, None)}
    looked = data.test.take(_split_writers(data)[1])
    for size in sizes:
        group = _draw_group(data, size)
        wanted[f"attack-{title}-{size}.votes.npz"] = trigger_inputs(looked, group), group
    found = []
    for file, (inputs, attackers) in wanted.items():
        if not (folder / file).is_file():
            models = models or data.keep(name).fit(code, progress, keep_sums=4 << 30 if sizes else 0)
            votes = (models.attack(attackers) if attackers else models).votes(inputs).astype(np.uint8)
            write_atomic(folder / file, lambda out, kept=votes: np.savez_compressed(out, votes=kept))  # type: ignore[misc]
        kept = read_npz(folder / file, ("votes",), kinds="u")["votes"].astype(np.int64)
        if kept.shape != (len(inputs), code.n_models) or kept.max() >= N_CLASSES:
            raise InputError(f"{folder / file}: not the votes of {code.n_models} models on {len(inputs)} images")
        found.append(kept)
    return found


def study_writers(
    data: WriterData, name: str, code: Code, folder: Path, progress: Progress | None = None
) -> dict[str, Any]:
    """Fit a code, count and certify the votes on unseen writers' images; writes and returns the record.

    Certified is plurality, against writers whose models may say anything (*arbitrary*); the other threat model has the
    same radius (Proposition 18 of docs/theory.md).

    Examples
    --------
    >>> import tempfile
    >>> from codeward.codes import partition_code
    >>> data = WriterData.assign_digits(6)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = study_writers(data, "partition-6", partition_code(6, 6), Path(folder))
    >>> record["models"], record["certified"]  # right, and right whatever one, two or three writers do
    (6, [101, 99, 95, 11])
    """
    title = data.title(name)
    known = read_record_folder(folder).get(f"{title}.json")
    if known is not None and "consensus" in known:
        return dict(known)
    (votes,) = vote_writers(data, name, code, folder, (), progress)
    labels = data.test.labels
    if (code.matrix.sum(axis=0) == 1).all():
        radius, exact = certify_dpa(votes, N_CLASSES), True
    else:
        found = certify(votes, code, decoder="plurality", n_classes=N_CLASSES, method="bound")
        radius, exact = found.radius, bool(found.exact.all())
    more = {}
    if (code.matrix.sum(axis=0) == 1).all() and data.settings is None and data.keep(name) is data:
        (everybody,) = vote_writers(data, "everybody", Code(np.ones((1, code.n_users), bool)), folder, (), progress)
        more = {"with_everybody": count_with_everybody(votes, everybody[:, 0], labels, COMPARED)}
    right = PluralityDecoder(code, N_CLASSES).predict(votes) == labels
    kinds = np.array([name.split("-")[0] for name in data.test_names])
    record = {
        "format": "codeward-writers/1",
        "name": title,
        "users": code.n_users,
        "models": code.n_models,
        "utilization": round(code.utilization, 4),
        "inputs": len(labels),
        "unseen_writers": len(np.unique(data.test_names)),
        "single_model": {"count": int((votes == labels[:, None]).sum()), "of": int(votes.size)},
        "certified": count_certified(right, radius),
        "threat": "arbitrary",
        "decoder": "plurality",
        "exact": exact,
        "consensus": count_consensus(code, votes, labels, COMPARED),
        **more,
        "staff_and_students": {
            str(kind): {"count": int(right[kinds == kind].sum()), "of": int((kinds == kind).sum())}
            for kind in np.unique(kinds)
        },
        **data.describe(),
    }
    write_json(folder / f"{title}.json", record)
    return record


def count_consensus(code: Code, votes: Votes, labels: Votes, sizes: Sequence[int]) -> dict[str, dict[str, int]]:
    """Count inputs that the consensus decoder keeps right against k users, whatever their models say (*arbitrary*).

    For each k it is the decoder of (k, e) with 2e + 1 models that no 2k users reach: the columns with most models bound
    how many they can. An input on which at most e models err is certified (Propositions 14 and 21 of docs/theory.md);
    there may be more of them. A k that the bound says nothing about is left out.

    Examples
    --------
    >>> from codeward.codes import partition_code
    >>> count_consensus(partition_code(9, 9), np.array([[1] * 9, [1] * 6 + [0] * 3]), np.array([1, 1]), (1, 2, 5))
    {'1': {'errors': 3, 'count': 2}, '2': {'errors': 2, 'count': 1}}
    """
    wrong = (votes != labels[:, None]).sum(axis=1)
    reach = np.sort(code.matrix.sum(axis=0, dtype=np.int64))[::-1].cumsum()
    alone = {k: code.n_models - int(reach[min(2 * k, code.n_users) - 1]) for k in sizes}
    errors = {k: (margin - 1) // 2 for k, margin in alone.items() if margin > 0}
    return {str(k): {"errors": most, "count": int((wrong <= most).sum())} for k, most in errors.items()}


def count_with_everybody(
    votes: Votes, everybody: Votes, labels: Votes, sizes: Sequence[int]
) -> dict[str, dict[str, int]]:
    """Count inputs that a partition and models of everybody keep right against k users (*deterministic*).

    Beside g groups, s = min(k, g - k) models learn from all users, heads alike. The label margin for k is then g - k
    (Proposition 44 of docs/theory.md), so that the nearest attack decides right wherever at most e = (g - k - 1) / 2 of
    the g + s models err (Proposition 43). A k that reaches all groups is left out.

    Parameters
    ----------
    votes : ndarray of int64, shape (N, g)
        Of the groups' models.
    everybody : ndarray of int64, shape (N,)
        Of a model of everybody.
    labels : ndarray of int64, shape (N,)
    sizes : sequence of int
        Numbers of users k.

    Examples
    --------
    >>> votes = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 0, 0, 0, 0]])
    >>> count_with_everybody(votes, np.array([1, 1, 1]), np.array([1, 1, 1]), (2, 4, 5))
    {'2': {'errors': 1, 'count': 2}, '4': {'errors': 0, 'count': 1}}
    """
    groups, found = votes.shape[1], {}
    wrong, misled = (votes != labels[:, None]).sum(axis=1), everybody != labels
    for k in sizes:
        if k < groups:
            errors, copies = (groups - k - 1) // 2, min(k, groups - k)
            found[str(k)] = {"errors": errors, "count": int((wrong + copies * misled <= errors).sum())}
    return found


def _split_writers(data: WriterData) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which test images calibrate decoders (every other writer's), and which of the others are looked at."""
    quiet = np.isin(data.test_names, np.unique(data.test_names)[::2])
    return quiet, np.flatnonzero(~quiet)[:_LOOKED_AT]


def _draw_group(data: WriterData, size: int) -> AttackGroup:
    rng, shape = np.random.default_rng(1 + data.seed), data.images.images.shape[1:]
    return draw_groups(len(data.names), size, 1, shape, N_CLASSES, rng, fraction=1.0)[0]


def attack_writers(
    data: WriterData, name: str, code: Code, folder: Path, progress: Progress | None = None,
    sizes: Sequence[int] = ATTACKS,
) -> dict[str, Any]:  # fmt: skip
    """Let some writers plant a trigger in all their images, and count who is detected, recovered and named.

    Half of the unseen writers calibrate the decoder, the other half are decoded: clean, then with the trigger. Where
    the votes alone determine the label against two writers, that is the decoder's (Proposition 43 of docs/theory.md).

    Examples
    --------
    >>> import tempfile
    >>> from codeward.codes import partition_code
    >>> data = WriterData.assign_digits(6)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = attack_writers(data, "partition-6", partition_code(6, 6), Path(folder), sizes=[1])
    >>> found["cells"]["1"]["models_hit"], found["cells"]["1"]["success_hit"]
    (1, {'count': 49, 'of': 49})
    """
    title = data.title(name)
    file = folder / f"attack-{title}.json"
    record: dict[str, Any] = {"name": title, "users": code.n_users, "cells": {}}
    record |= read_record_folder(folder).get(file.name, {})
    missing = [size for size in sizes if str(size) not in record["cells"]]
    if not missing and "certified" in record:
        return record
    votes, *attacked = vote_writers(data, name, code, folder, missing, progress)
    quiet, looked = _split_writers(data)
    labels = data.test.labels
    designed = int(name[len("track")]) if name.startswith("track") else 2
    decoder = _TrackingDecoder(code, VoteSet(votes[quiet], labels=labels[quiet]))
    record["false_alarms"] = decoder.count_verdicts(votes[looked], labels[looked], ())
    record["certified"] = certify_decoders(code, votes, labels, quiet, designed)
    own = {
        "decoder": "calibrated, up to 2 attackers, nearest first",
        "threat": "deterministic",
        "inputs": len(looked),
    }
    record["certified"].append(own | {"certified": decoder.count_certified(votes[looked], labels[looked])})
    write_json(file, record)
    for size, found in zip(missing, attacked, strict=True):
        group = _draw_group(data, size)
        hit, other = code.pattern(group.attackers), labels[looked] != group.target
        says = found[other] == group.target
        record["cells"][str(size)] = {
            "attackers": [data.names[user] for user in group.attackers],
            "target": group.target,
            "models_hit": int(hit.sum()),
            "success_hit": {"count": int(says[:, hit].sum()), "of": int(says[:, hit].size)},
            "success_other": {"count": int(says[:, ~hit].sum()), "of": int(says[:, ~hit].size)},
            **decoder.count_verdicts(found[other], labels[looked][other], group.attackers),
        }
    write_json(file, record)
    return record


class _TrackingDecoder:
    """The calibrated decoder for two attackers; where the votes alone determine the label, that is its answer."""

    def __init__(self, code: Code, known: VoteSet) -> None:
        self.code = code
        self.calibrated: Any = make_decoder("calibrated", code, known, Assumptions.uniform(2), n_classes=N_CLASSES)
        margins = inspect(code, 2).margin
        self.k = max((k for k, margin in enumerate(margins, start=1) if margin), default=0)
        self.nearest = NearestDecoder(code, self.k, ((margins[self.k - 1] or 1) - 1) // 2, N_CLASSES)

    def decode(self, votes: Votes) -> Decoded:
        """Decode votes (N, m)."""
        found: Decoded = self.calibrated.decode(votes)
        return found.overruled(self.nearest.predict(votes)) if self.k else found

    def count_certified(self, votes: Votes, labels: Votes) -> list[int]:
        """Count inputs that are right, and right against 1, ..., k attackers, few models erring."""
        held = int(((votes != labels[:, None]).sum(axis=1) <= self.nearest.n_errors).sum())
        return [int((self.decode(votes).labels == labels).sum()), *[held] * self.k]

    def count_verdicts(self, votes: Votes, labels: Votes, attackers: Sequence[int]) -> dict[str, Any]:
        """Count right labels, alarms and names on some inputs, one by one and pooled over the alarms."""
        decoded = self.decode(votes)
        alarms = decoded.alarms(self.calibrated.threshold)
        plain = PluralityDecoder(self.code, N_CLASSES).predict(votes)
        rows = np.flatnonzero(alarms).tolist()
        rightly, wrongly = tracking_score([decoded.suspects[row] for row in rows], attackers)
        best_right, best_wrong = tracking_score([decoded.best_set[row] for row in rows], attackers)
        shares = decoded.user_probability[alarms].mean(axis=0) if alarms.any() else np.zeros(self.code.n_users)
        pooled = np.flatnonzero(shares > 0.5).tolist()
        count = int(alarms.sum())
        return {
            "inputs": len(votes),
            "plurality_right": int((plain == labels).sum()),
            "right": int((decoded.labels == labels).sum()),
            "alarms": count,
            "named": {"rightly": int(rightly.sum()), "wrongly": int(wrongly.sum()), "alarms": count},
            "best_set": {"rightly": int(best_right.sum()), "wrongly": int(best_wrong.sum()), "alarms": count},
            "pooled": {
                "rightly": len(set(pooled) & set(attackers)),
                "wrongly": len(set(pooled) - set(attackers)),
                "attackers": len(attackers),
            },
        }


def certify_decoders(
    code: Code, votes: Votes, labels: Votes, quiet: NDArray[np.bool_], designed: int = 2
) -> list[dict[str, Any]]:
    """Certify what a tracking code's own decoders say against one writer, two, and as many as it was designed for.

    - Consensus, with as many wrong votes as the code's margin allows, under *arbitrary* against one (Proposition 21 of
      docs/theory.md).
    - The nearest attack, under *deterministic*: inputs with at most as many wrong models as the margin for so many
      writers allows are counted (Proposition 43), a lower bound that needs no search. Past two there are too many sets
      of writers to decode; the margin there, 3, is the designer's own (Proposition 33).
    - The paper's decoder, expecting at most one attacker, under *deterministic* (Proposition 22), with confusions
      of the quiet writers' images, on the images of the others.

    ``certified`` of each is how many inputs are right with 0, 1, ... attackers; what is not there is not certified.
    """
    found: list[tuple[str, str, int, Sequence[int | None]]] = []
    margin = inspect(code, 1).margin_arbitrary[0]
    if margin:
        errors = (margin - 1) // 2
        held = certify(
            votes, code, threat="arbitrary", decoder=ConsensusDecoder(code, 1, errors, N_CLASSES), max_attackers=1
        )
        kept = [int(((held.labels == labels) & (held.radius >= k)).sum()) for k in (0, 1)]
        found.append((f"consensus, 1 attacker, wrong votes: {errors}", "arbitrary", len(labels), kept))
    wrong = (votes != labels[:, None]).sum(axis=1)
    for k, margin in enumerate(inspect(code, 2).margin, start=1):
        if margin:
            errors = (margin - 1) // 2
            right = NearestDecoder(code, k, errors, N_CLASSES).predict(votes) == labels
            kept = [int(right.sum()), *[int((wrong <= errors).sum())] * k]
            name = f"nearest, up to {k} attacker{'s'[: k - 1]}, wrong votes: {errors}"
            found.append((name, "deterministic", len(labels), kept))
    if designed > 2:
        counted = [None, *[int((wrong <= 1).sum())] * designed]
        found.append((f"nearest, up to {designed} attackers, wrong votes: 1", "deterministic", len(labels), counted))
    confusion = estimate_confusion(votes[quiet], labels[quiet], N_CLASSES)
    paper = make_decoder("bayes", code, confusion, Assumptions.uniform(1), n_classes=N_CLASSES)
    held = certify(votes[~quiet], code, threat="deterministic", decoder=paper, max_attackers=1)
    kept = [int(((held.labels == labels[~quiet]) & (held.radius >= k)).sum()) for k in (0, 1)]
    found.append(("Bayes, up to 1 attacker", "deterministic", len(held), kept))
    return [
        {"decoder": decoder, "threat": threat, "inputs": of, "certified": counts}
        for decoder, threat, of, counts in found
    ]
