"""Certified accuracy per poisoned sample, and per colluding writer: records into tables and plots."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._charts import COLOURS, HEIGHT, SHARES, Line, draw_lines, make_point
from codeward._errors import InputError
from codeward._figures import show_percent
from codeward._files import write_json
from codeward._notebook import Drawing
from codeward._progress import Progress, silent
from codeward.certificates import certify, certify_dpa, certify_finite_aggregation
from codeward.decoding import ConsensusDecoder, PluralityDecoder
from codeward.report import Groups, Table, TableEntry, make_table
from codeward.reproduction._sample_votes import SAMPLE_CODES, SampleStudy, count_networks, list_sample_studies
from codeward.reproduction._studies import PAPER_DATASETS
from codeward.runs import read_record_folder

#: Decoders of a study, in words.
SAMPLE_DECODERS = {"plurality": "plurality", "runoff": "run-off", "consensus": "consensus"}
#: Numbers of samples that the table shows, by data set; others get fractions of the parts.
SHOWN: dict[str, tuple[int, ...]] = {
    "cifar10": (5, 10, 15, 20, 40, 50, 60, 100, 200, 300),
    "mnist": (5, 10, 20, 50, 100, 300, 400, 500, 550),
}
#: Colluding writers that the table of writers shows, and those against whom decoders are compared.
COLLUDING, COMPARED = (1, 5, 10, 20, 50, 100, 130, 200), (1, 5, 10, 50, 100)
#: What every figure is about.
COST = "A sample that is inserted, removed or given a new label counts one, a sample whose input is changed counts two"
#: Of a panel with names at the ends of its lines.
PANEL_WIDTH = 440
#: Parts up to which the consensus decoder is tried.
MOST_CONSENSUS_PARTS = 16


def certify_samples(study: SampleStudy, decoders: Sequence[str], progress: Progress | None = None) -> dict[str, Any]:
    """Certify the votes of a study by every decoder that is missing in its record; write and return the record.

    A figure of k samples counts test inputs that are right and whose label no attack on k parts changes (*arbitrary*:
    models that learn from them may say anything), hence no k samples (Proposition 32 of docs/theory.md).

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from codeward.data import load_dataset
    >>> from codeward.reproduction import freeze_features, vote_heads
    >>> pair = load_dataset("digits")
    >>> study = SampleStudy(Path(tempfile.mkdtemp()), "digits", 5, "partition", backbone="gradients")
    >>> vote_heads(study, pair, freeze_features(pair, "gradients"))
    >>> record = certify_samples(study, ["plurality", "runoff"])
    >>> record["single_model"]["of"], sorted(record["certified"])  # five heads, 539 test inputs
    (2695, ['plurality', 'runoff'])
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
        write_json(study.record_file, record)
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
                counts = [curve[k] if k < len(curve) else 0 for k in (0, *shown)]
                cells = [_show_share({"count": count, "of": record["inputs"]}) for count in counts]
                frozen = f", heads on {record['backbone']['name']}" if "backbone" in record else ""
                if (committee := count_networks(record)) > 1:
                    frozen = f", {committee} networks a model"
                frozen += f", {record['given_epochs']} epochs" if "given_epochs" in record else ""
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
                f"becomes of so many training samples. {COST}. Samples are assigned to "
                "parts by a hash of their own content; models that a changed part feeds may say anything. Parts: every "
                "model learns from one sample in so many."
            )
            trusted = sorted({record["backbone"]["trust"] for record in here if "backbone" in record})
            if trusted:
                note += (
                    f" Heads are linear models on features of a backbone that saw none of these samples ({trusted[0]})."
                )
            heads = ("code, decoder", "models", "one model", "0", *map(str, shown), "half of the test set at")
            title = f"Certified per sample: {name}"
            tables.append(make_table(f"samples-{dataset}", title, note, heads, groups, "parts"))
    return tables


def load_sample_records(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the records of the studies in the folder ``samples`` of a grid folder, in the order of the table.

    Examples
    --------
    >>> load_sample_records("no/such/folder")
    []
    """
    return [study.load_record() for study in list_sample_studies(Path(folder, "samples"))]


def draw_samples(records: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw share certified against samples, a panel a data set, a line a code and decoder.

    Studies of a given length, which compare codes at equal work, are in the table alone.

    Examples
    --------
    >>> draw_samples([])
    <Drawing: Right and certified, by poisoned samples>
    """
    panels = []
    records = [record for record in records if "given_epochs" not in record]
    for dataset in dict.fromkeys(record["dataset"] for record in records if record["certified"]):
        curves = {}
        for record in records:
            committee = f" x {count_networks(record)}" if count_networks(record) > 1 else ""
            code = "heads" if "backbone" in record else record["code"]["name"] + committee
            for name, curve in record["certified"].items() if record["dataset"] == dataset else ():
                curves[f"{record['parts']:,} {code}, {SAMPLE_DECODERS[name]}"] = (curve, record["inputs"])
        panels.append(draw_curves(curves, f"{PAPER_DATASETS.get(dataset, dataset)}: poisoned samples"))
    parts = "".join(
        f'<svg x="{PANEL_WIDTH * place}" width="{PANEL_WIDTH}" height="{HEIGHT}" {panel.removeprefix("<svg ")}'
        for place, panel in enumerate(panels)
    )
    told = 'role="img" aria-label="Right and certified, by poisoned samples"'
    return Drawing(f'<svg viewBox="0 0 {PANEL_WIDTH * max(len(panels), 1)} {HEIGHT}" {told}>{parts}</svg>')


def draw_curves(curves: Mapping[str, tuple[Sequence[int], int]], x_label: str) -> Drawing:
    """Draw certified accuracy, a line a name: inputs certified against k = 0, 1, ... and of how many; some k are shown.

    Examples
    --------
    >>> "50 groups, 1: 80.0% (8 of 10)" in draw_curves({"50 groups": ([9, 8, 2], 10)}, "colluding writers")
    True
    """
    longest = max(len(curve) for curve, _ in curves.values())
    tick = next(size * ten for ten in (1, 10, 100, 1000) for size in (1, 2, 5) if 5 * size * ten >= longest)
    lines = []
    for place, (name, (curve, of)) in enumerate(curves.items()):
        step = -(-len(curve) // 12)
        counts = {k: curve[k] if k < len(curve) else 0 for k in range(0, len(curve) + step, step)}
        points = tuple(make_point(k, [{"count": n, "of": of}], f"{name}, {k}") for k, n in counts.items())
        again = place >= len(COLOURS)
        lines.append(Line(name, COLOURS[place % len(COLOURS)], again, "frame" if again else "disc", points))
    label = f"Right and certified: {x_label}"
    # Without bars there is nothing to move lines apart for.
    return draw_lines(lines, label, x_label, range(0, longest + tick, tick), y_names=dict(SHARES), width=PANEL_WIDTH)


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


def _show_share(share: Mapping[str, int]) -> TableEntry:
    return TableEntry(f"{100 * share['count'] / share['of']:.1f}", counts=f"{share['count']:,} of {share['of']:,}")


def tabulate_writers(records: Sequence[Mapping[str, Any]], attacks: Sequence[Mapping[str, Any]]) -> str:
    """Return the study as Markdown: certified accuracy by code, then what became of the planted triggers.

    Examples
    --------
    >>> tabulate_writers([], []).splitlines()[0]
    '| code | models | each learns from | one model | vote | 1 | 5 | 10 | 20 | 50 | 100 | 130 | 200 |'
    """
    heads = ["code", "models", "each learns from", "one model", "vote", *map(str, COLLUDING)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for record in records:
        curve, of = record["certified"], record["inputs"]
        shares = [curve[0], *(curve[k] if k < len(curve) else 0 for k in COLLUDING)]
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
    lines += ["", "| a partition and everybody | inputs | " + " | ".join(map(str, COMPARED)) + " |"]
    lines += ["|---|" + "---|" * (1 + len(COMPARED))]
    for record in records:
        if counted := record.get("with_everybody"):
            row = [f"{counted[str(k)]['count']:,}" if str(k) in counted else "0" for k in COMPARED]
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
                "| its decoders | threat model | inputs | right | certified: 1 writer | 2 writers | 3 writers |",
                "|---|---|---|---|---|---|---|",
            ]
        for own in kept:
            shares = ["-" if count is None else f"{count:,}" for count in own["certified"]]
            shares += ["-"] * (4 - len(shares))
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
