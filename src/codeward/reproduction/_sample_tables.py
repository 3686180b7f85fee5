"""Certified accuracy per poisoned sample: from the votes of a study into its record, one table, one plot."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._figures import save_figure
from codeward._files import write_text_atomic
from codeward._progress import Progress, silent
from codeward.certificates import certify, certify_dpa, certify_finite_aggregation
from codeward.decoding import ConsensusDecoder, PluralityDecoder
from codeward.report import Groups, Table, TableEntry
from codeward.reproduction._sample_votes import SAMPLE_CODES, SampleStudy, list_sample_studies
from codeward.reproduction._studies import PAPER_DATASETS

#: Decoders of a study, in words.
SAMPLE_DECODERS = {"plurality": "plurality", "runoff": "run-off", "consensus": "consensus"}
#: Numbers of samples that the table shows, by data set; others get fractions of the parts.
SHOWN: dict[str, tuple[int, ...]] = {
    "cifar10": (5, 10, 15, 20, 40, 50, 60, 100, 200, 300),
    "mnist": (5, 10, 20, 50, 100, 300, 400, 500, 550),
}
#: What every figure is about.
COST = "A sample that is inserted, removed or given a new label counts one, a sample whose input is changed counts two"
#: Parts up to which the consensus decoder is tried.
MOST_CONSENSUS_PARTS = 16


def certify_samples(study: SampleStudy, decoders: Sequence[str], progress: Progress | None = None) -> dict[str, Any]:
    """Certify the votes of a study by every decoder that is missing in its record; write and return the record.

    A figure of k samples counts test inputs that are right and whose label no attack on k parts changes (*arbitrary*:
    models that learn from them may say anything), hence no k samples (Proposition 32 of docs/theory.md).

    Examples
    --------
    See `vote_samples`.
    """
    bar, record = progress or silent(), study.load_record()
    missing = [name for name in decoders if name not in record["certified"]]
    if missing:
        votes, labels, counts = study.load_votes()
        record["single_model"] = {"count": int((votes == labels[:, None]).sum()), "of": int(votes.size)}
        n_classes = int(record["classes"])
        for name in missing:
            bar.advance(0, f"{study.name}, {SAMPLE_DECODERS[name]}")
            if name == "plurality":
                found = PluralityDecoder(study.code, n_classes).predict(votes)
                radius = (
                    certify_dpa(votes, n_classes)
                    if study.feeds_one
                    else certify_finite_aggregation(votes, study.code, n_classes)
                )
                record["certified"][name] = count_certified(found == labels, radius)
            elif name == "runoff":
                given = counts if study.feeds_one else study.load_orders()
                held = certify(given, study.code, decoder="runoff", n_classes=n_classes, method="bound")
                record["certified"][name] = count_certified(held.labels == labels, held.radius)
            else:
                record["certified"][name] = _certify_consensus(study, votes, labels, n_classes)
            bar.advance()
        write_text_atomic(study.record_file, json.dumps(record, indent=1) + "\n")
    return record


def count_certified(right: NDArray[np.bool_], radius: NDArray[np.int64]) -> list[int]:
    """Count right inputs of radius at least k, for k = 0, 1, ... up to the last that has one.

    Examples
    --------
    >>> count_certified(np.array([True, True, False]), np.array([2, 0, 5]))
    [2, 1, 1]
    """
    kept = np.bincount(np.maximum(radius[right], 0), minlength=1)
    return [int(count) for count in kept[::-1].cumsum()[::-1]]


def half_certified(curve: Sequence[int], n_inputs: int) -> int | None:
    """Return the most samples against which half of the inputs are right and certified; None where fewer are right.

    Examples
    --------
    >>> half_certified([9, 6, 5, 4], 10), half_certified([4, 3], 10)
    (2, None)
    """
    held = [k for k, count in enumerate(curve) if 2 * count >= n_inputs]
    return held[-1] if held else None


def tabulate_samples(records: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return one table a data set: a row a code and decoder, a column a number of samples.

    Examples
    --------
    >>> tabulate_samples([])
    []
    """
    tables = []
    for dataset in dict.fromkeys(record["dataset"] for record in records):
        here = [record for record in records if record["dataset"] == dataset and record["certified"]]
        top = max((len(curve) - 1 for record in here for curve in record["certified"].values()), default=0)
        shown = [k for k in SHOWN.get(dataset, tuple(sorted({1, 2, 3, 5, top // 4, top // 2}))) if 0 < k <= top]
        groups: Groups = {}
        for record in here:
            words = f"{record['parts']:,} parts"
            for name, curve in record["certified"].items():
                half = half_certified(curve, record["inputs"])
                cells = [_show(curve, k, record["inputs"]) for k in (0, *shown)]
                frozen = f", heads on {record['backbone']['name']}" if "backbone" in record else ""
                groups.setdefault(words, []).append(
                    (
                        TableEntry(f"{SAMPLE_CODES[record['code']['name']]}, {SAMPLE_DECODERS[name]}{frozen}"),
                        TableEntry(f"{record['code']['models']:,}"),
                        _show_share(record["single_model"]),
                        *cells,
                        TableEntry("none" if half is None else str(half)),
                    )
                )
        if groups:
            name = PAPER_DATASETS.get(dataset, dataset)
            note = (
                f"Share of the {here[0]['inputs']:,} test inputs whose label is right and provably stays so whatever "
                f"becomes of so many training samples. {COST}. Samples are dealt to "
                "parts by a hash of their own content; models that a changed part feeds may say anything. Parts: every "
                "model learns from one sample in so many."
            )
            trusted = sorted({record["backbone"]["trust"] for record in here if "backbone" in record})
            if trusted:
                note += (
                    f" Heads are linear models on features of a backbone that saw none of these samples ({trusted[0]})."
                )
            heads = ("code, decoder", "models", "one model", "0", *map(str, shown), "half of the test set at")
            rows = tuple((words, tuple(rows)) for words, rows in groups.items())
            tables.append(Table(f"samples-{dataset}", f"Certified per sample: {name}", note, "parts", heads, rows))
    return tables


def load_sample_records(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the records of the studies in the folder ``samples`` of a grid folder, in the order of the table.

    Examples
    --------
    >>> load_sample_records("no/such/folder")
    []
    """
    return [study.load_record() for study in list_sample_studies(Path(folder, "samples"))]


def plot_samples(records: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Draw share certified against samples, a panel a data set, a line a code and decoder; needs matplotlib.

    Examples
    --------
    >>> plot_samples([], "certified.svg")  # doctest: +SKIP
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install 'codeward[plot]'") from error
    datasets = list(dict.fromkeys(record["dataset"] for record in records if record["certified"]))
    figure = Figure(figsize=(6.4 * max(len(datasets), 1), 4.4), layout="constrained")
    for place, dataset in enumerate(datasets, 1):
        axes: Any = figure.add_subplot(1, len(datasets), place)
        for record in records:
            for name, curve in record["certified"].items() if record["dataset"] == dataset else ():
                words = f"{record['parts']:,} parts, {record['code']['name']}, {SAMPLE_DECODERS[name]}"
                words += f", {record['backbone']['name']}" if "backbone" in record else ""
                shares = 100 * np.array([*curve, 0]) / record["inputs"]
                axes.step(range(len(shares)), shares, where="post", linewidth=1.2, label=words)
        axes.axhline(50, color="grey", linewidth=0.8, linestyle=":")
        axes.set_title(PAPER_DATASETS.get(dataset, dataset))
        axes.set_xlabel("samples inserted, removed or relabelled (a changed input: two)")
        axes.set_ylabel("right and certified, % of the test set")
        axes.set_ylim(0, 102)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    save_figure(figure, path)


def _certify_consensus(
    study: SampleStudy, votes: NDArray[np.int64], labels: NDArray[np.int64], n_classes: int
) -> list[int]:
    """Count, for every k, what the consensus decoder that is made for k certifies against k."""
    if study.code.n_users > MOST_CONSENSUS_PARTS:
        raise InputError(f"--decoders consensus: for at most {MOST_CONSENSUS_PARTS} parts, not {study.code.n_users}")
    counts = []
    for k in range(study.code.n_users):
        found = certify(votes, study.code, decoder=ConsensusDecoder(study.code, k, n_classes=n_classes))
        held = int(((found.labels == labels) & (found.radius >= k)).sum())
        if not held:
            break
        counts.append(held)
    return counts or [0]


def _show(curve: Sequence[int], k: int, n_inputs: int) -> TableEntry:
    return _show_share({"count": curve[k] if k < len(curve) else 0, "of": n_inputs})


def _show_share(share: Mapping[str, int]) -> TableEntry:
    return TableEntry(f"{100 * share['count'] / share['of']:.1f}", counts=f"{share['count']:,} of {share['of']:,}")
