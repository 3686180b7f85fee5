"""Verdicts as files (one object or row an input, in input order) and as a summary."""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._figures import show_percent
from codeward._files import format_csv, write_atomic
from codeward.cli._clean_votes import VoteSource
from codeward.codes import Code
from codeward.decoding import Decoded

#: Explanations of one input, and inputs with several of them, in the table at most.
ALTERNATIVES = 4


@contextmanager
def open_table(
    path: Path | None,
    what: str,
    header: str,
    as_lines: Callable[[Any, str], Iterable[str]],
    as_arrays: Callable[[list[Any]], dict[str, NDArray[Any]]],
) -> Iterator[Callable[[Any], None]]:
    """Yield a function that takes rows block by block; the file appears whole when all is done, or not at all.

    ``.jsonl`` and ``.csv`` go through a temporary file, so memory holds one block; ``.npz`` is gathered.
    """
    suffix = "" if path is None else path.suffix.lower()
    if path is None:
        yield lambda block: None
    elif suffix == ".npz":
        gathered: list[Any] = []
        yield gathered.append
        write_atomic(path, lambda out: np.savez_compressed(out, **as_arrays(gathered)))  # type: ignore[arg-type]
    elif suffix not in (".jsonl", ".csv"):
        raise InputError(f"{path}: {what} are written as .jsonl, .csv or .npz")
    else:
        with tempfile.TemporaryFile("w+b") as spool:
            if suffix == ".csv":
                spool.write(f"{header}\n".encode())
            yield lambda block: spool.writelines(line.encode() for line in as_lines(block, suffix))
            spool.seek(0)
            write_atomic(path, lambda out: shutil.copyfileobj(spool, out))


def open_writer(path: Path | None, source: VoteSource) -> AbstractContextManager[Callable[[Decoded], None]]:
    """Open a file for verdicts."""
    header = "label,attack_probability,target,suspects,suspect_sets"
    return open_table(path, "verdicts", header, lambda block, suffix: _as_lines(block, source, suffix), _as_arrays)


def _as_lines(verdicts: Decoded, source: VoteSource, suffix: str) -> Iterator[str]:
    """Yield one line an input."""
    rows = zip(
        map(source.name_class, verdicts.labels.tolist()),
        verdicts.attack_probability.tolist(),
        map(source.name_class, verdicts.targets.tolist()),
        map(source.name_users, verdicts.suspects),
        verdicts.suspect_sets,
        verdicts.more_sets.tolist(),
        verdicts.neglected.tolist(),
        strict=True,
    )
    for label, probability, target, suspects, sets, more, neglected in rows:
        named = [source.name_users(users) for users in sets]
        if suffix == ".jsonl":
            row: dict[str, Any] = {"label": label, "attack_probability": probability, "suspects": suspects}
            row |= {"suspect_sets": named, "best_set": named[0] if named else [], "target": target}
            row |= ({"more_sets": more} if more else {}) | ({"neglected": neglected} if neglected > 0 else {})
            yield json.dumps(row) + "\n"
        else:
            listed = [" ".join(map(str, users)) or "nobody" for users in named] + [f"{more} more"] * bool(more)
            yield format_csv([[label, repr(probability), target, " ".join(map(str, suspects)), " | ".join(listed)]])


def _as_arrays(parts: list[Decoded]) -> dict[str, NDArray[Any]]:
    """Arrays of a .npz: users as indices, padded with -1; sets that are not there have -2."""
    whole = Decoded.concatenate(parts)
    width = max((len(users) for sets in whole.suspect_sets for users in sets), default=0)
    most = max(map(len, whole.suspect_sets), default=0)
    suspects = np.full((len(whole), width), -1, dtype=np.int32)
    listed = np.full((len(whole), most, width), -2, dtype=np.int32)
    for row, (certain, sets) in enumerate(zip(whole.suspects, whole.suspect_sets, strict=True)):
        suspects[row, : len(certain)] = certain
        listed[row, : len(sets)] = -1
        for place, users in enumerate(sets):
            listed[row, place, : len(users)] = users
    return {
        "label": whole.labels,
        "attack_probability": whole.attack_probability,
        "target": whole.targets,
        "suspects": suspects,
        "suspect_sets": listed,
        "more_sets": whole.more_sets,
        "neglected": whole.neglected,
    }


class Summary:
    """Counts over all chunks.

    Parameters
    ----------
    source : VoteSource
    threshold : float
        An input is an alarm when its attack probability is above this.
    held_out : bool
        Count accuracy on odd-numbered inputs only (the others were used for fitting).
    """

    def __init__(self, source: VoteSource, threshold: float, held_out: bool) -> None:
        self.source, self.code, self.threshold, self.held_out = source, source.code, threshold, held_out
        self.inputs = self.alarms = self.silent = self.counted = self.right = 0
        self.neglected = 0.0
        self.suspects: Counter[int] = Counter()
        self.targets: Counter[int] = Counter()
        self.unsure: Counter[tuple[tuple[int, ...], ...]] = Counter()

    def add(self, start: int, verdicts: Decoded, labels: NDArray[np.int64] | None) -> None:
        """Count the verdicts on the inputs from ``start`` on."""
        alarms = verdicts.alarms(self.threshold)
        self.inputs += len(verdicts)
        self.alarms += int(alarms.sum())
        self.silent += int((verdicts.labels < 0).sum())
        self.neglected = max(self.neglected, float(verdicts.neglected.max(initial=0.0)))
        flags = alarms.tolist()
        self.suspects.update(chain.from_iterable(compress(verdicts.suspects, flags)))
        self.targets.update(verdicts.targets[alarms & (verdicts.targets >= 0)].tolist())
        self.unsure.update(sets for sets in compress(verdicts.suspect_sets, flags) if len(sets) > 1)
        if labels is not None:
            counted = slice((start + 1) % 2, None, 2) if self.held_out else slice(None)
            self.counted += labels[counted].size
            self.right += int((verdicts.labels[counted] == labels[counted]).sum())

    def _list(self, sets: tuple[tuple[int, ...], ...]) -> str:
        """Explanations in words, the first few."""
        named = [" + ".join(map(self.code.user_name, users)) or "nobody" for users in sets[:ALTERNATIVES]]
        return " or ".join(named) + (f" or {len(sets) - ALTERNATIVES} others" if len(sets) > ALTERNATIVES else "")

    def show(self, votes: Path, decoder: str, source: str | None, output: Path | None, as_json: bool) -> None:
        """Print the summary: a table, or one JSON object."""
        top, targets = (
            sorted(found.items(), key=lambda item: (-item[1], item[0]))[:10] for found in (self.suspects, self.targets)
        )
        threshold = self.threshold if np.isfinite(self.threshold) else None
        if as_json:
            facts = {
                "votes": str(votes),
                "decoder": decoder,
                "confusion": source,
                "inputs": self.inputs,
                "threshold": threshold,
                "alarms": self.alarms,
                "no_verdict": self.silent,
                "accuracy": self.right / self.counted if self.counted else None,
                "accuracy_inputs": self.counted,
                "neglected": self.neglected,
                "guarantee": _state_guarantee(self.code, decoder),
                "suspects": [{"user": self.code.user_name(user), "alarms": count} for user, count in top],
                "targets": [{"target": self.source.name_class(label), "alarms": count} for label, count in targets],
                "several_explanations": sum(self.unsure.values()),
                "output": None if output is None else str(output),
            }
            print(json.dumps(facts))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table("", "", show_header=False)
        table.add_row("decoder", decoder)
        if source:
            table.add_row("confusion", source)
        table.add_row("inputs", f"{self.inputs:,}")
        if self.counted:
            which = "odd-numbered inputs" if self.held_out else "inputs"
            table.add_row("accuracy", f"{show_percent(self.right / self.counted)} of {self.counted:,} {which}")
        limit = "every input" if threshold is None else f"attack probability > {threshold:g}"
        table.add_row("alarms", f"{self.alarms:,} ({show_percent(self.alarms / self.inputs)} of inputs; {limit})")
        if self.silent:
            table.add_row("no verdict", f"{self.silent:,}")
        if self.neglected > 0:
            table.add_row("neglected", f"at most {self.neglected:.2g} of the posterior of any input")
        for label, count in targets[:ALTERNATIVES]:
            table.add_row("target", f"{self.source.name_class(label)}: {count:,} of {self.alarms:,} alarms")
        for user, count in top:
            table.add_row("suspect", f"{self.code.user_name(user)}: {count:,} of {self.alarms:,} alarms")
        for sets, count in sorted(self.unsure.items(), key=lambda item: (-item[1], item[0]))[:ALTERNATIVES]:
            table.add_row("one of these", f"{self._list(sets)}: {count:,} of {self.alarms:,} alarms")
        table.add_row("guarantee", _state_guarantee(self.code, decoder))
        if output is not None:
            table.add_row("written", str(output))
        Console().print(table)


def _state_guarantee(code: Code, decoder: str) -> str:
    """Say what the code guarantees, whatever the votes; consensus is for models that need not say one target."""
    from codeward.codes import inspect
    from codeward.runs import state_guarantees, sum_up_guarantees

    said = state_guarantees(inspect(code))
    if decoder == "consensus":
        return next(one.sentence for one in said if one.threat == "arbitrary")
    return sum_up_guarantees(said)
