"""``codeward decode``: from a vote file to verdicts."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from codeward._errors import InputError
from codeward.cli._noise import find_classes, find_confusion
from codeward.cli._soft import OnScores, fit_soft

if TYPE_CHECKING:
    from codeward.decoding import Decoded, Decoder, VoteReader, VoteSet

#: Inputs decoded at a time.
CHUNK = 20_000


def decode(
    votes: Path = typer.Argument(..., help="Vote file: .npz (votes, labels, confusion) or .csv."),
    code: Path = typer.Option(..., "--code", help="Code file: .csv, .npy or .json."),
    decoder: str = typer.Option(
        "bayes", help="bayes, groups (two independent groups), plurality, consensus or soft (class scores)."
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
        False, "--batch", help="bayes: decode all inputs together (shared attackers and targets)."
    ),
    threshold: float | None = typer.Option(
        None, help="Attack probability from which an input is an alarm (default 0.5)."
    ),
    false_alarm_rate: float | None = typer.Option(
        None, help="Set the threshold on the even-numbered inputs, taken as clean."
    ),
    output: Path | None = typer.Option(None, "--output", "-o", help="Verdict per input: .jsonl, .csv or .npz."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as one JSON object."),
) -> None:
    r"""Decode votes: label, attack probability, suspects and target of every input.

    Without --validation and without confusion matrices in the file, but with labels, they are estimated on the
    even-numbered inputs (taken as clean), and the accuracy is that on the odd-numbered ones.

    Example: codeward decode votes.npz --code code.csv -o verdicts.jsonl
    """
    from codeward.cli._verdicts import Summary, open_writer
    from codeward.codes import Code
    from codeward.decoding import VoteReader

    the_code = Code.load(code)
    reader = VoteReader(votes)
    if reader.n_models != the_code.n_models:
        raise InputError(f"{votes}: {reader.n_models} votes an input, but {code} has {the_code.n_models} models (rows)")
    if reader.n_inputs == 0:
        raise InputError(f"{votes}: no inputs")
    if threshold is not None and false_alarm_rate is not None:
        raise InputError("give --threshold or --false-alarm-rate, not both")
    if batch and decoder != "bayes":
        raise InputError("--batch needs --decoder bayes")
    n_classes = find_classes(reader, classes)

    # 1. The decoder, and where its noise model comes from.
    from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder, TwoGroupDecoder

    source = None
    chosen: Decoder
    if decoder == "plurality":
        chosen = PluralityDecoder(the_code, n_classes)
    elif decoder == "consensus":
        if attackers is None:
            raise InputError("--decoder consensus needs --attackers K")
        chosen = ConsensusDecoder(the_code, attackers, errors, n_classes)
    elif decoder in ("bayes", "groups"):
        if max_attackers < 0:
            raise InputError(f"--max-attackers must be 0 or more, got {max_attackers}")
        confusion, source = find_confusion(reader, n_classes, accuracy, validation)
        prior = [1 / (max_attackers + 1)] * (max_attackers + 1)
        known = (the_code, confusion, attack_rate, success_rate, prior)
        chosen = BayesDecoder(*known) if decoder == "bayes" else TwoGroupDecoder(*known, second_rate)
    elif decoder == "soft":
        chosen, source = fit_soft(the_code, reader, validation, false_alarm_rate, as_json)
        false_alarm_rate = None  # the fit has set the alarm
    else:
        raise InputError(f"--decoder must be bayes, groups, plurality, consensus or soft, got {decoder!r}")

    # 2. One pass over the file; a second one before it where a threshold is to be set.
    if false_alarm_rate is not None:
        threshold = _find_threshold(reader, chosen, false_alarm_rate)
    held_out = decoder in ("bayes", "groups") and accuracy is None and reader.confusion is None and validation is None
    summary = Summary(the_code, 0.5 if threshold is None else threshold, held_out)
    with open_writer(output, the_code) as write:
        for start, part, verdicts in _decode_file(reader, chosen, batch, as_json):
            summary.add(start, verdicts, part.labels)
            write(start, verdicts)
    summary.show(votes, decoder, source, output, as_json)


def _find_threshold(reader: "VoteReader", decoder: "Decoder", rate: float) -> float:
    """Threshold with at most this share of alarms on the even-numbered inputs."""
    import numpy as np

    from codeward.decoding import alarm_threshold

    if not 0 <= rate <= 1:
        raise InputError(f"--false-alarm-rate must be in 0..1, got {rate}")
    seen, start = [], 0
    for part in reader.chunks(CHUNK):
        seen.append(decoder.decode(part.votes[start % 2 :: 2]).attack_probability)
        start += part.votes.shape[0]
    return alarm_threshold(np.concatenate(seen), rate)


def _decode_file(
    reader: "VoteReader", decoder: "Decoder", batch: bool, quiet: bool
) -> "Iterator[tuple[int, VoteSet, Decoded]]":
    """Yield (first input, part of the file, verdicts), with a progress bar; a batch is one part."""
    from codeward._progress import show_progress
    from codeward.decoding import BayesDecoder, decode_batch

    start = 0
    with show_progress("decode", reader.n_inputs, quiet=quiet) as progress:
        on_scores = isinstance(decoder, OnScores)
        for part in reader.chunks(reader.n_inputs if batch else CHUNK, with_scores=on_scores):
            if on_scores:
                assert part.scores is not None
                verdicts = decoder.decode(part.scores)
            elif batch:
                assert isinstance(decoder, BayesDecoder)
                verdicts = decode_batch(decoder, part.votes)
            else:
                verdicts = decoder.decode(part.votes)
            yield start, part, verdicts
            start += part.votes.shape[0]
            progress.advance(part.votes.shape[0])
