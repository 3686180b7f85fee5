"""``codeward certify``: from a vote file to certified radii."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from codeward._errors import InputError
from codeward._notebook import check_drawing_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from codeward._progress import Progress
    from codeward.certificates import CollectiveCertificate, Threat
    from codeward.cli._clean_votes import VoteSource
    from codeward.codes import Code
    from codeward.decoding import Decoder, VoteReader

#: Inputs certified at a time.
CHUNK = 20_000


def certify(
    votes: Path = typer.Argument(
        ..., metavar="VOTES", help="Vote file: .npz (votes, labels, confusion) or .csv; or a folder of codeward train."
    ),
    code: Path = typer.Option(None, "--code", help="Code file: .csv, .npy or .json; a folder has its own."),
    threat: str = typer.Option(
        ..., "--threat", help="deterministic: hit models all say one target; arbitrary: each says anything."
    ),
    decoder: str = typer.Option(
        "plurality",
        "--decoder",
        help="plurality, consensus; deterministic only: bayes, groups; arbitrary only, from class scores: runoff.",
    ),
    attackers: int = typer.Option(None, "--attackers", help="consensus: attackers the decoder tolerates (k)."),
    errors: int = typer.Option(0, "--errors", help="consensus: wrong clean votes it tolerates (e)."),
    max_attackers: int = typer.Option(
        None, "--max-attackers", "-k", help="Search no further than this many attackers."
    ),
    classes: int | None = typer.Option(
        None,
        "--classes",
        help="Number of classes; by default of confusion or scores, else to the largest label.",
    ),
    collective: bool = typer.Option(
        False,
        "--collective",
        help="Also: outputs that one attacker set can change at once (holds all votes in memory).",
    ),
    time_limit: float = typer.Option(
        60.0, "--time-limit", help="Seconds for the solver (each k of --collective anew); then sound bounds."
    ),
    targets: bool = typer.Option(
        False, "--targets", help="Also the users it takes to force each single label (radius_to in the files)."
    ),
    fail_under: list[str] = typer.Option(
        [], "--fail-under", help="k=1:0.80: exit 1 if less than 80% is right and certified at k = 1; repeatable."
    ),
    plot: Path = typer.Option(None, "--plot", help="Draw the certified share against k to this .svg file."),
    output: Path = typer.Option(None, "--output", "-o", help="Certificate per input: .jsonl, .csv or .npz."),
    force: bool = typer.Option(False, "--force", help="Certify although the votes are of another code."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as one JSON object."),
) -> None:
    r"""Certify votes: for every input the largest k such that no k users can change the output.

    The votes are taken as those of clean models. Radius 0 means that one user may be enough. For plurality and
    consensus both threat models give the same radius, since one common target is as bad as anything. runoff lets the
    two classes with most votes meet in a second round, by class scores. Without confusion matrices in the file, bayes
    estimates them on the even-numbered inputs and is measured on the odd-numbered ones.

    A folder of codeward train is certified with its own code; classes and users have their names.

    Example: codeward certify votes.npz --code code.csv --threat arbitrary --plot certified.svg -o certified.jsonl
    """
    from codeward._progress import show_progress
    from codeward.certificates import certify as certify_votes
    from codeward.certificates import certify_collective, parse_floor
    from codeward.cli._certified import Tally, open_certificates, show_summary
    from codeward.cli._clean_votes import open_votes

    # 1. What is asked for, and whether it makes sense, before any work.
    if threat not in ("deterministic", "arbitrary"):
        raise InputError(f"--threat must be deterministic or arbitrary, got {threat!r}")
    if decoder in ("bayes", "groups") and threat == "arbitrary":
        raise InputError(
            f"the {decoder} decoder has no certificate under arbitrary: its guarantee assumes that all hit models say "
            "the same target; use --threat deterministic, or --decoder plurality or consensus"
        )
    if decoder == "runoff" and threat != "arbitrary":
        raise InputError(
            "the runoff decoder is certified under arbitrary, which covers deterministic: use that --threat"
        )
    if max_attackers is not None and max_attackers < 1:
        raise InputError(f"--max-attackers must be at least 1, got {max_attackers}")
    if not time_limit >= 0:
        raise InputError(f"--time-limit must be 0 or more seconds, got {time_limit}")
    check_drawing_path(plot)
    floors = [parse_floor(text) for text in fail_under]
    source = open_votes(votes, code, force)
    reader, the_code = source.reader, source.code
    if floors and not reader.has_labels:
        raise InputError(f"{votes}: no labels; --fail-under is about certified accuracy, which needs the true labels")
    classes = len(source.class_names) if classes is None and source.class_names else classes
    chosen, n_classes, origin = _make_decoder(reader, the_code, decoder, attackers, errors, classes)

    # 2. One pass over the file, block by block; a second one where the whole set is certified at once.
    held_out = origin is not None and "even-numbered" in origin
    tally, start, spent = Tally(), 0, 0.0
    ask: dict[str, Any] = {"threat": cast("Threat", threat), "decoder": chosen, "n_classes": n_classes}
    progress = show_progress("certify", reader.n_inputs, not as_json)
    with open_certificates(output, source) as write, progress as bar:
        for part in reader.chunks(CHUNK, with_scores=chosen.needs == "scores"):
            begin, size = time.monotonic(), part.votes.shape[0]
            block = certify_votes(
                part.observed(chosen.needs),
                the_code,
                **ask,
                max_attackers=max_attackers,
                time_limit=max(0.0, time_limit - spent),
                targets=targets,
                progress=_Scaled(bar, size),
            )
            tally.add(block, part.labels, _measured(start, size, held_out))
            write(block)
            spent += time.monotonic() - begin
            start += size
    at_once: list[CollectiveCertificate] = []
    if collective:
        import numpy as np

        top = min(tally.by_radius.size, max_attackers or tally.last.searched)
        parts = list(reader.chunks(with_scores=chosen.needs == "scores"))
        seen = np.concatenate([part.observed(chosen.needs) for part in parts])
        known = [part.labels for part in parts if part.labels is not None]
        rows = _measured(0, len(seen), held_out)
        truth = np.concatenate(known)[rows] if known else None
        at_once = [
            certify_collective(seen[rows], the_code, k, labels=truth, **ask, time_limit=time_limit)
            for k in range(1, top + 1)
        ]

    # 3. The summary.
    kept = _find_agreement(source, chosen, n_classes, max_attackers, as_json) if origin else None
    what = "certified accuracy" if reader.has_labels else "certified share"
    if plot is not None:
        tally.curve().plot().save(plot)
    facts: dict[str, Any] = {
        "votes": str(votes),
        "decoder": tally.last.decoder,
        "threat": threat,
        "classes": n_classes,
        "confusion": origin,
        "output": None if output is None else str(output),
        "plot": None if plot is None else str(plot),
        "error_free": kept,
        "targets": targets,
    }
    show_summary(tally, facts, at_once, what, as_json, source)
    for floor in floors:
        floor.check(tally.curve().at(floor.n_attackers), tally.judged)


def _find_agreement(
    source: "VoteSource", decoder: "Decoder", n_classes: int, max_attackers: int | None, quiet: bool
) -> "dict[str, Any] | None":
    """Say what the decoder undoes as long as no model errs; None where that takes too long."""
    from codeward._progress import show_progress
    from codeward.certificates import certify_agreement, is_agreement_affordable

    code = source.code
    most = min(3 if max_attackers is None else max_attackers, code.n_users)
    if n_classes < 2 or not is_agreement_affordable(code, n_classes, most):
        return None
    with show_progress("if no model errs", 1, not quiet) as progress:
        found = certify_agreement(code, decoder, n_classes, max_attackers=most, progress=progress)
    broken = found.witness and {
        "attackers": source.name_users(found.witness.attackers),
        "target": source.name_class(found.witness.target),
    }
    label = source.name_class(found.label)
    return {"attackers": found.n_attackers, "searched": found.searched, "label": label, "broken_by": broken}


def _make_decoder(
    reader: "VoteReader", code: "Code", name: str, attackers: int | None, errors: int, classes: int | None
) -> tuple["Decoder", int, str | None]:
    """Make the decoder, count the classes, and say where the confusion matrices come from."""
    from codeward.cli._clean_votes import find_classes, find_confusion
    from codeward.decoding import Assumptions, make_decoder

    if name not in ("plurality", "bayes", "groups", "consensus", "runoff"):
        raise InputError(f"--decoder must be plurality, bayes, groups, consensus or runoff, got {name!r}")
    if name == "runoff" and not reader.has_scores:
        raise InputError(f"{reader.path}: no scores; --decoder runoff reads class scores (N x m x c)")
    if name == "consensus" and attackers is None:
        raise InputError("--decoder consensus needs --attackers K")
    n_classes = find_classes(reader, _count_scored(reader, classes))
    confusion = source = None
    if name in ("bayes", "groups"):
        confusion, source = find_confusion(reader, n_classes, None)
    assumptions = Assumptions(n_attackers=attackers, n_errors=errors)
    chosen = make_decoder(name, code, confusion, assumptions, n_classes if confusion is None else None)
    return chosen, n_classes, source


def _count_scored(reader: "VoteReader", classes: int | None) -> int | None:
    """Return ``--classes``, or where it is not given and the file has scores, the number of classes these are of."""
    if not reader.has_scores:
        return classes
    first = next(reader.chunks(1, with_scores=True)).scores
    assert first is not None
    scored = int(first.shape[2])
    if classes not in (None, scored):
        raise InputError(f"--classes {classes}, but the scores are of {scored}")
    return scored


def _measured(start: int, size: int, held_out: bool) -> "NDArray[np.bool_]":
    """Mark the inputs that are measured: all, or the odd-numbered ones where the others were used for fitting."""
    import numpy as np

    odd: NDArray[np.bool_] = np.arange(start, start + size) % 2 == 1
    return odd if held_out else np.ones_like(odd)


class _Scaled:
    """A progress of total 1 shown as part of a bar that counts inputs."""

    def __init__(self, bar: "Progress", size: int) -> None:
        self.bar, self.size = bar, size

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Move on by ``amount`` of the block."""
        self.bar.advance(amount * self.size, note)
