"""Real users: MNIST's 539 writers, heads on features that nobody trained, certified and attacked writer by writer."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._figures import show_percent
from codeward._files import write_text_atomic
from codeward._notebook import Drawing
from codeward._progress import Progress, silent
from codeward.attacks import AttackGroup, draw_groups, poison, trigger_inputs
from codeward.certificates import certify, certify_dpa
from codeward.codes import Code, partition_code, shifted_hash_code
from codeward.data import Samples, load_dataset, render
from codeward.decoding import (
    Assumptions,
    PluralityDecoder,
    VoteSet,
    make_decoder,
    tracking_score,
)
from codeward.reproduction._sample_tables import draw_curves
from codeward.reproduction._writer_certificates import certify_decoders, count_consensus
from codeward.runs import read_record_folder

if TYPE_CHECKING:
    from codeward.training.backbones import StrokeFeatures
    from codeward.training.heads import GridFeatures, HeadSet, UserStatistics

AnyPath = str | os.PathLike[str]

#: Stated before anybody hands in anything; chosen on 100 held-out training writers.
RIDGE, TURNS = 0.03, (0.0, 10.0, -10.0)
#: Numbers of groups of a partition, and Finite Aggregation's.
PARTITIONS = (12, 50, 100, 269, 539)
SHIFTED = (50, 2)
#: Two consortia: who wrote MNIST, how many of each wrote training images, and groups of each one's own partition.
CONSORTIA, CONSORTIUM_GROUPS = {"staff": 289, "student": 250}, 50
#: Colluding writers that tables show, and writers who plant a trigger in the experiment.
SHOWN, ATTACKS = (1, 5, 10, 20, 50, 100, 130, 200), (1, 2, 3, 10)
#: Colluding writers against whom consensus is compared with plurality.
COMPARED = (1, 5, 10, 50, 100)
#: Inputs that the tracking decoder looks at.
_LOOKED_AT = 1000


@dataclass(frozen=True)
class WriterData:
    """The writers' images as features, writers in an order drawn once so that codes mix staff and students.

    Attributes
    ----------
    images, test : Samples
    names : tuple of str
        Writers, in the order of the codes' columns.
    users : ndarray of int64, shape (N,)
        The writer of each chosen image.
    test_names : ndarray of str
    cache : Path or None
        Where features are kept.
    chosen : ndarray of int64
        The training images that take part.
    """

    images: Samples
    test: Samples
    names: tuple[str, ...]
    users: NDArray[np.int64]
    test_names: NDArray[Any]
    cache: Path | None
    chosen: NDArray[np.int64]

    @classmethod
    def load(cls, data_dir: AnyPath | None, cache: Path | None, n_users: int | None = None) -> "WriterData":
        """Load MNIST with its writers; ``n_users`` keeps some of them only, for a trial."""
        pair = load_dataset("mnist-writers", data_dir)
        assert pair.groups is not None
        assert pair.test_groups is not None
        names, ids = np.unique(pair.groups, return_inverse=True)
        order = np.random.default_rng(0).permutation(len(names))[:n_users]
        place = np.full(len(names), -1)
        place[order] = np.arange(len(order))
        kept = np.flatnonzero(place[ids] >= 0)
        step = 1 if n_users is None else 10
        test = pair.test.take(np.arange(0, len(pair.test), step))
        mine, all_of_them = pair.train.take(kept), np.arange(len(kept))
        return cls(mine, test, tuple(names[order]), place[ids[kept]], pair.test_groups[::step], cache, all_of_them)

    def keep(self, code_name: str) -> "WriterData":
        """Return the writers whom a code of the study is over: all, or those of one consortium."""
        kind = code_name.split("-")[0]
        if kind not in CONSORTIA:
            return self
        names = tuple(name for name in self.names if name.startswith(kind))
        place = np.array([names.index(name) if name in names else -1 for name in self.names])
        kept = np.flatnonzero(place[self.users] >= 0)
        return replace(self, names=names, users=place[self.users[kept]], chosen=kept)

    @property
    def backbone(self) -> "StrokeFeatures":
        """The features: nobody to trust."""
        from codeward.training.backbones import StrokeFeatures

        return StrokeFeatures()

    def transform(self, images: NDArray[np.uint8], turn: float = 0.0) -> "GridFeatures":
        """Return features of images, kept by content."""
        from codeward.training.backbones import transform_cached

        return transform_cached(replace(self.backbone, rotate=turn), images, self.cache)[0]

    @cached_property
    def test_features(self) -> "GridFeatures":
        """Features of the unseen writers' images."""
        return self.transform(self.test.images)

    def fit(self, code: Code, progress: Progress | None = None, keep_sums: int = 0) -> "HeadSet":
        """Fit the heads of a code: every writer's images and two turned copies of each."""
        from codeward.training.heads import GridFeatures, fit_heads

        steps = np.concatenate([self.transform(self.images.images, turn).steps[self.chosen] for turn in TURNS])
        labels, users = np.tile(self.images.labels[self.chosen], len(TURNS)), np.tile(self.users, len(TURNS))
        return fit_heads(
            GridFeatures(steps), labels, users, code, 10, RIDGE, backbone=self.backbone, keep_sums=keep_sums,
            progress=progress,
        )  # fmt: skip

    def poison(self, group: AttackGroup) -> "dict[int, UserStatistics]":
        """Return what the attackers hand in: their own images with the trigger, labelled with the target."""
        from codeward.training.heads import GridFeatures, UserStatistics

        found = {}
        for user in group.attackers:
            mine = self.images.take(self.chosen[self.users == user])
            bad = poison(mine, group, np.random.default_rng([0, user]))
            steps = [replace(self.backbone, rotate=turn).transform(show(bad)).steps for turn in TURNS]
            labels = np.tile(bad.labels, len(TURNS))
            found[user] = UserStatistics.of(GridFeatures(np.concatenate(steps)), labels, 10)
        return found


def show(samples: Samples) -> NDArray[np.uint8]:
    """Return images with their overlays, as bytes."""
    return np.rint(render(samples) * 255).astype(np.uint8)


def make_writer_codes(n_users: int, folder: Path) -> dict[str, Code]:
    """Return the codes of the study by name: partitions, Finite Aggregation's, and tracking codes where some are kept.

    Finite Aggregation's code has a part a user, so there must be at least as many users as it has parts.

    Examples
    --------
    >>> from pathlib import Path
    >>> list(make_writer_codes(60, Path("nowhere")))
    ['partition-12', 'partition-50', 'partition-60']
    """
    sizes = [size for size in PARTITIONS if size < n_users] + [n_users]
    codes = {f"partition-{size}": partition_code(n_users, size) for size in sizes}
    groups, spread = SHIFTED
    if n_users >= groups:
        n_parts = max(n_users, groups * spread)
        made = shifted_hash_code(groups, spread, np.random.default_rng(0), n_parts)
        if n_parts == n_users:
            codes[f"shifted-hash-{groups}x{spread}"] = made
    if n_users == sum(CONSORTIA.values()):
        codes |= {
            f"{kind}-partition-{CONSORTIUM_GROUPS}": partition_code(size, CONSORTIUM_GROUPS)
            for kind, size in CONSORTIA.items()
        }
    kept = {name: Code(made["matrix"]) for name, made in read_record_folder(folder).items() if name.startswith("code-")}
    kept |= {file.name: Code.load(file) for file in sorted(folder.glob("code-*.csv"))}
    return codes | {
        Path(name).stem.removeprefix("code-"): code for name, code in kept.items() if code.n_users == n_users
    }


def study_writers(
    data: WriterData, name: str, code: Code, folder: Path, progress: Progress | None = None
) -> dict[str, Any]:
    """Fit a code, count and certify the votes on unseen writers' images; writes and returns the record.

    Certified is plurality, against writers whose models may say anything (*arbitrary*); the other threat model has the
    same radius (Proposition 18 of docs/theory.md).
    """
    file, bar = folder / f"{name}.json", progress or silent()
    known = read_record_folder(folder).get(file.name)
    if known is not None and "consensus" in known:
        return dict(known)
    start, used = time.monotonic(), time.process_time()
    heads = data.keep(name).fit(code, bar)
    fitted = time.monotonic() - start
    votes, labels = heads.votes(data.test_features), data.test.labels
    n_fed = code.matrix.sum(axis=0)
    if (n_fed == 1).all():
        radius = certify_dpa(votes, 10)
        exact = True
    else:
        found = certify(votes, code, decoder="plurality", n_classes=10, method="bound")
        radius, exact = found.radius, bool(found.exact.all())
    right = PluralityDecoder(code, 10).predict(votes) == labels
    kept = np.bincount(np.maximum(radius[right], 0), minlength=1)
    record = {
        "format": "codeward-writers/1",
        "name": name,
        "users": code.n_users,
        "models": code.n_models,
        "utilization": round(code.utilization, 4),
        "inputs": len(labels),
        "unseen_writers": len(np.unique(data.test_names)),
        "single_model": {"count": int((votes == labels[:, None]).sum()), "of": int(votes.size)},
        "certified": [int(count) for count in kept[::-1].cumsum()[::-1]],
        "threat": "arbitrary",
        "decoder": "plurality",
        "exact": exact,
        "consensus": count_consensus(code, votes, labels, COMPARED),
        "staff_and_students": _split_kinds(data.test_names, right),
        "backbone": {"name": data.backbone.name, "digest": data.backbone.digest, "trust": data.backbone.trust},
        "ridge": RIDGE,
        "turned_copies": list(TURNS),
        "seconds": {"fit": round(fitted, 1), "processor": round(time.process_time() - used, 1)},
    }
    write_text_atomic(file, json.dumps(record, indent=1) + "\n")
    return record


def _split_kinds(names: NDArray[Any], right: NDArray[np.bool_]) -> dict[str, dict[str, int]]:
    kinds = np.array([name.split("-")[0] for name in names])
    return {
        str(kind): {"count": int(right[kinds == kind].sum()), "of": int((kinds == kind).sum())}
        for kind in np.unique(kinds)
    }


def attack_writers(
    data: WriterData, name: str, code: Code, folder: Path, progress: Progress | None = None,
    sizes: Sequence[int] = ATTACKS,
) -> dict[str, Any]:  # fmt: skip
    """Let some writers plant a trigger in all their images, and count who is detected, recovered and named.

    Half of the unseen writers calibrate the decoder, the other half are decoded: clean, then with the trigger.
    """
    file, bar = folder / f"attack-{name}.json", progress or silent()
    record: dict[str, Any] = {"name": name, "users": code.n_users, "cells": {}}
    record |= read_record_folder(folder).get(file.name, {})
    missing = [size for size in sizes if str(size) not in record["cells"]]
    if not missing and "certified" in record:
        return record
    clean = data.fit(code, bar, keep_sums=4 << 30)
    writers = np.unique(data.test_names)
    quiet = np.isin(data.test_names, writers[::2])
    labels = data.test.labels
    votes = clean.votes(data.test_features)
    known = VoteSet(votes[quiet], labels=labels[quiet])
    decoder = make_decoder("calibrated", code, known, Assumptions.uniform(2), n_classes=10)
    looked = np.flatnonzero(~quiet)[:_LOOKED_AT]
    record["false_alarms"] = _count_verdicts(decoder, votes[looked], labels[looked], ())
    record["certified"] = certify_decoders(code, votes, labels, quiet)
    write_text_atomic(file, json.dumps(record, indent=1) + "\n")
    for size in missing:
        group = draw_groups(code.n_users, size, 1, (1, 28, 28), 10, np.random.default_rng(1), fraction=1.0)[0]
        heads = clean.replace_users(data.poison(group))
        seen = trigger_inputs(data.test.take(looked), group)
        found = heads.votes(data.backbone.transform(show(seen)))
        hit, other = code.pattern(group.attackers), labels[looked] != group.target
        told = _count_verdicts(decoder, found[other], labels[looked][other], group.attackers)
        says = found[other] == group.target
        record["cells"][str(size)] = {
            "attackers": [data.names[user] for user in group.attackers],
            "target": group.target,
            "models_hit": int(hit.sum()),
            "success_hit": {"count": int(says[:, hit].sum()), "of": int(says[:, hit].size)},
            "success_other": {"count": int(says[:, ~hit].sum()), "of": int(says[:, ~hit].size)},
            **told,
        }
        write_text_atomic(file, json.dumps(record, indent=1) + "\n")
        bar.advance()
    return record


def _count_verdicts(
    decoder: Any, votes: NDArray[np.int64], labels: NDArray[np.int64], attackers: Sequence[int]
) -> dict[str, Any]:
    """Count right labels, alarms and names on some inputs, one by one and pooled over the alarms."""
    decoded = decoder.decode(votes)
    alarms = decoded.alarms(decoder.threshold)
    plain = PluralityDecoder(decoder.code, 10).predict(votes)
    rows = np.flatnonzero(alarms).tolist()
    rightly, wrongly = tracking_score([decoded.suspects[row] for row in rows], attackers)
    best_right, best_wrong = tracking_score([decoded.best_set[row] for row in rows], attackers)
    shares = decoded.user_probability[alarms].mean(axis=0) if alarms.any() else np.zeros(decoder.code.n_users)
    pooled = np.flatnonzero(shares > 0.5).tolist()
    return {
        "inputs": len(votes),
        "plurality_right": int((plain == labels).sum()),
        "right": int((decoded.labels == labels).sum()),
        "alarms": int(alarms.sum()),
        "named": {"rightly": int(rightly.sum()), "wrongly": int(wrongly.sum()), "alarms": int(alarms.sum())},
        "best_set": {"rightly": int(best_right.sum()), "wrongly": int(best_wrong.sum()), "alarms": int(alarms.sum())},
        "pooled": {
            "rightly": len(set(pooled) & set(attackers)),
            "wrongly": len(set(pooled) - set(attackers)),
            "attackers": len(attackers),
        },
    }


def tabulate_writers(records: Sequence[Mapping[str, Any]], attacks: Sequence[Mapping[str, Any]]) -> str:
    """Return the study as Markdown: certified accuracy by code, then what became of the planted triggers.

    Examples
    --------
    >>> tabulate_writers([], []).splitlines()[0]
    '| code | models | each learns from | one head | vote | 1 | 5 | 10 | 20 | 50 | 100 | 130 | 200 |'
    """
    heads = ["code", "models", "each learns from", "one head", "vote", *map(str, SHOWN)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for record in records:
        curve, of = record["certified"], record["inputs"]
        shares = [curve[0], *(curve[k] if k < len(curve) else 0 for k in SHOWN)]
        single = record["single_model"]
        row = [record["name"], str(record["models"]), show_percent(record["utilization"])]
        row += [f"{100 * single['count'] / single['of']:.1f}", *(f"{100 * count / of:.1f}" for count in shares)]
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", "| plurality / consensus | inputs | " + " | ".join(map(str, COMPARED)) + " |"]
    lines += ["|---|" + "---|" * (1 + len(COMPARED))]
    for record in records:
        curve, counted = record["certified"], record.get("consensus")
        if counted is None:
            continue
        votes = [curve[k] if k < len(curve) else 0 for k in COMPARED]
        kept = [counted.get(str(k), {"count": 0})["count"] for k in COMPARED]
        row = [f"{vote:,} / {count:,}" for vote, count in zip(votes, kept, strict=True)]
        lines.append("| " + " | ".join([record["name"], f"{record['inputs']:,}", *row]) + " |")
    for record in attacks:
        lines += ["", f"Code {record['name']}:", ""]
        heads = ["writers", "models hit", "trigger works in hit models", "plain vote right", "decoder right", "alarms",
                 "named rightly / wrongly an alarm", "pooled: rightly / wrongly"]  # fmt: skip
        lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        clean = record["false_alarms"]
        for size, cell in (("0", clean), *record["cells"].items()):
            hit = cell.get("success_hit", {"count": 0, "of": 1})
            named, pooled, of = cell["named"], cell["pooled"], cell["inputs"]
            each = max(1, named["alarms"])
            row = [size, str(cell.get("models_hit", 0)), show_percent(hit["count"] / hit["of"])]
            row += [show_percent(cell[key] / of) for key in ("plurality_right", "right", "alarms")]
            row += [f"{named['rightly'] / each:.2f} / {named['wrongly'] / each:.2f}"]
            row += [f"{pooled['rightly']} / {pooled['wrongly']}"]
            lines.append("| " + " | ".join(row) + " |")
        kept = record.get("certified", [])
        if kept:
            lines += [
                "",
                "| its decoders | threat model | inputs | right | certified: 1 writer | 2 writers |",
                "|---|---|---|---|---|---|",
            ]
        for own in kept:
            shares = [f"{count:,}" for count in own["certified"]] + ["-"] * (3 - len(own["certified"]))
            lines.append(f"| {own['decoder']} | {own['threat']} | {own['inputs']:,} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


def draw_writers(records: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw the share that is right and certified against colluding writers, a line a code.

    Examples
    --------
    >>> "</svg>" in draw_writers([{"name": "two groups", "certified": [9, 8], "inputs": 10}])
    True
    """
    return draw_curves({record["name"]: (record["certified"], record["inputs"]) for record in records}, "writers")


def load_writer_records(folder: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the records of codes and of attacks in a folder of the study.

    Examples
    --------
    >>> load_writer_records("nowhere")
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: nowhere: no records of the study of writers; run codeward reproduce writers
    """
    found = read_record_folder(folder)
    codes = [record for record in found.values() if record.get("format") == "codeward-writers/1"]
    attacks = [record for name, record in found.items() if name.startswith("attack-")]
    if not codes:
        raise InputError(f"{folder}: no records of the study of writers; run codeward reproduce writers")
    return sorted(codes, key=lambda record: (record["utilization"] > 0.3, record["models"])), attacks
