"""``codeward decode``: from a vote file to verdicts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from codeward._errors import InputError
from codeward.cli._clean_votes import check_digest, find_classes, find_confusion, find_validation, open_votes

if TYPE_CHECKING:
    from codeward.decoding import Decoded, Decoder, EvidenceDecoder, VoteReader, VoteSet

#: Inputs decoded at a time.
CHUNK = 20_000


def decode(
    votes: Path = typer.Argument(
        ..., help="Vote file: .npz (votes, labels, confusion) or .csv; or a folder of codeward train."
    ),
    code: Path | None = typer.Option(None, "--code", help="Code file: .csv, .npy or .json; a folder has its own."),
    decoder: str | None = typer.Option(
        None,
        help="By default that of the folder, bayes for a file. bayes, calibrated (the best that --validation allows), "
        "groups (two independent groups), plurality, consensus, soft (class scores), discounted (soft "
        "without scores) or runoff (class scores: the two classes with most votes, then a vote between them).",
    ),
    validation: Path | None = typer.Option(
        None, help="Vote file of clean labelled inputs: confusion matrices (bayes) or the fit (soft) come from it."
    ),
    attackers: int | None = typer.Option(None, help="consensus: the most users that may attack (k)."),
    errors: int = typer.Option(0, help="consensus: wrong clean votes to tolerate (e)."),
    attack_rate: float = typer.Option(
        0.5,
        help="bayes, groups: prior probability of an attack (A). Lower: fewer false alarms, but fewer triggers undone "
        "where attackers leave few models alone.",
    ),
    success_rate: float = typer.Option(0.99, help="bayes, groups: how often a trigger works in a hit model (S)."),
    max_attackers: int = typer.Option(3, help="bayes, groups: attackers (of a group) are uniform on 0 to this (Q)."),
    second_rate: float = typer.Option(0.01, help="groups: prior probability that an attack has a second group (B)."),
    accuracy: float | None = typer.Option(
        None, help="bayes, groups: assume models this accurate, errors alike, when nothing is known."
    ),
    classes: int | None = typer.Option(
        None, help="Number of classes; by default as in the confusion matrices or the votes."
    ),
    batch: bool = typer.Option(
        False,
        "--batch",
        help="bayes, calibrated, soft, discounted: name suspects from all alarms with the same target together; labels "
        "and alarms stay as one by one.",
    ),
    threshold: float | None = typer.Option(
        None, help="Attack probability above which an input is an alarm (default: the decoder's)."
    ),
    false_alarm_rate: float | None = typer.Option(
        None, help="Set the threshold on the even-numbered inputs, taken as clean."
    ),
    output: Path | None = typer.Option(None, "--output", "-o", help="Verdict per input: .jsonl, .csv or .npz."),
    force: bool = typer.Option(False, "--force", help="Decode although the votes are of another code."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as one JSON object."),
) -> None:
    r"""Decode votes: label, attack probability, suspects and target of every input.

    Without --validation and without confusion matrices in the file, but with labels, they are estimated on the
    even-numbered inputs (taken as clean), and the accuracy is that on the odd-numbered ones.

    A folder of codeward train or run is decoded as it is served: with its own code, decoder and alarm; classes and
    users have their names.

    Example: codeward decode votes.npz --code code.csv -o verdicts.jsonl
    """
    own = decoder is None and validation is None and accuracy is None
    decoder = decoder or "bayes"
    if threshold is not None and false_alarm_rate is not None:
        raise InputError("give --threshold or --false-alarm-rate, not both")
    if batch and decoder not in ("bayes", "calibrated", "soft", "discounted"):
        raise InputError("--batch needs --decoder bayes, calibrated, soft or discounted")
    if accuracy is not None and validation is not None:
        raise InputError("give --accuracy (assumed) or --validation (measured), not both")
    if decoder == "consensus" and attackers is None:
        raise InputError("--decoder consensus needs --attackers K")
    if max_attackers < 0:
        raise InputError(f"--max-attackers must be 0 or more, got {max_attackers}")

    from codeward._progress import show_progress
    from codeward.cli._verdicts import Summary, open_writer
    from codeward.decoding import VoteReader, VoteSet

    source = open_votes(votes, code, force)
    reader, the_code = source.reader, source.code
    cell = source.cell if own else None
    decoder = decoder if cell is None else cell.decoding.name
    if validation is not None:
        check_digest(VoteReader(validation), the_code, code or votes, force)
    elif accuracy is None:
        validation = source.validation
    if decoder == "runoff" and not reader.has_scores:
        raise InputError(f"{votes}: no scores; --decoder runoff reads class scores (N x m x c), plurality votes alone")
    known = classes if source.class_names is None or classes is not None else len(source.class_names)
    n_classes = reader.n_score_classes if decoder == "runoff" else find_classes(reader, known)

    # 1. The decoder, and where its noise model comes from.
    from codeward.decoding import Assumptions, make_decoder

    assumptions = Assumptions.uniform(
        max_attackers,
        attack_rate=attack_rate,
        success_rate=success_rate,
        second_rate=second_rate,
        n_attackers=attackers,
        n_errors=errors,
    )
    noise: Any = None
    origin = None
    if cell is not None:
        noise, origin = cell.validation, f"{validation}, as the folder is served"
    elif decoder in ("bayes", "groups"):
        noise, origin = find_confusion(reader, n_classes, accuracy, validation)
    elif decoder in ("calibrated", "soft", "discounted"):
        if false_alarm_rate is not None:  # the fit sets the alarm
            assumptions, false_alarm_rate = replace(assumptions, false_alarm_rate=false_alarm_rate), None
        noise, decoder, origin = find_validation(reader, validation, decoder)
    with show_progress("fit", 0, not as_json and isinstance(noise, VoteSet)) as progress:
        progress.advance(0, "a minute, or several with many attacker sets")
        known = n_classes if noise is None else None
        chosen = cell.decoder() if cell is not None else make_decoder(decoder, the_code, noise, assumptions, known)

    # 2. One pass over the file; a second one before it where a threshold is to be set.
    if false_alarm_rate is not None:
        threshold = _find_threshold(reader, chosen, false_alarm_rate)
    held_out = decoder in ("bayes", "groups") and accuracy is None and reader.confusion is None and validation is None
    threshold = chosen.threshold if threshold is None else threshold
    summary = Summary(source, threshold, held_out)
    with open_writer(output, source) as write:
        for start, part, verdicts in _decode_file(reader, chosen, threshold if batch else None, as_json):
            summary.add(start, verdicts, part.labels)
            write(verdicts)
    summary.show(votes, decoder, origin, output, as_json)


def _find_threshold(reader: "VoteReader", decoder: "Decoder", rate: float) -> float:
    """Threshold with at most this share of alarms on the even-numbered inputs."""
    import numpy as np

    from codeward.decoding import alarm_threshold

    if not 0 <= rate <= 1:
        raise InputError(f"--false-alarm-rate must be in 0..1, got {rate}")
    seen, start = [], 0
    for part in reader.chunks(CHUNK, with_scores=decoder.needs == "scores"):
        seen.append(decoder.decode(part.observed(decoder.needs)[start % 2 :: 2]).attack_probability)
        start += part.votes.shape[0]
    return alarm_threshold(np.concatenate(seen), rate)


def _decode_file(
    reader: "VoteReader", decoder: "Decoder", batch: float | None, quiet: bool
) -> "Iterator[tuple[int, VoteSet, Decoded]]":
    """Yield (first input, part of the file, verdicts), with a progress bar; a batch (its threshold) is one part."""
    from codeward._progress import show_progress
    from codeward.decoding import PluralityDecoder, VerdictMemory, decode_batch

    start = 0
    # Counting votes takes less time than looking them up.
    once = decoder if decoder.needs == "scores" or isinstance(decoder, PluralityDecoder) else VerdictMemory(decoder)
    with show_progress("decode", reader.n_inputs, not quiet) as progress:
        step = CHUNK if batch is None else reader.n_inputs
        for part in reader.chunks(step, with_scores=decoder.needs == "scores"):
            observed = part.observed(decoder.needs)
            if batch is None:
                verdicts = once.decode(observed)
            else:
                verdicts = decode_batch(cast("EvidenceDecoder", decoder), observed, batch)
            yield start, part, verdicts
            start += part.votes.shape[0]
            progress.advance(part.votes.shape[0])
