"""``codeward referee``: claimed radii, anybody's, against what is proved and what attacks do."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from codeward._errors import InputError, UnmetError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from codeward.certificates import Ruling
    from codeward.codes import Code
    from codeward.decoding import VoteSet

#: Characters of a line of claims, and lines.
_LINE, _LINES = 1 << 20, 1 << 24
#: Attacks that the summary prints.
SHOWN = 5


@dataclass(frozen=True)
class Claims:
    """Radii that a file claims, and for what; what it does not say is None."""

    path: Path
    radius: "NDArray[np.int64]"
    labels: "NDArray[np.int64] | None" = None
    threat: str | None = None
    decoder: str | None = None


def referee(
    files: list[Path] = typer.Argument(
        ..., metavar="FILE...", help="Votes (.npz, .csv) or scores (.pth), then claims about them (.jsonl, .npz)."
    ),
    code: Path = typer.Option(..., "--code", help="Code file: .csv, .npy or .json."),
    threat: str = typer.Option(
        None, "--threat", help="deterministic or arbitrary; by default as claimed, or arbitrary."
    ),
    decoder: str = typer.Option(None, "--decoder", help="By default as claimed, or plurality."),
    attackers: int = typer.Option(None, "--attackers", help="consensus: attackers the decoder tolerates (k)."),
    errors: int = typer.Option(0, "--errors", help="consensus: wrong clean votes it tolerates (e)."),
    time_limit: float = typer.Option(60.0, "--time-limit", help="Seconds for the solver, each file of claims anew."),
    output: Path = typer.Option(None, "--output", "-o", help="Ruling per input: .jsonl."),
    force: bool = typer.Option(False, "--force", help="Judge although the votes are of another code."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    r"""Judge claimed certificates: recompute radii exactly where possible, attack them where not.

    A file of claims (what certify -o writes, or arrays label and radius) is about the votes or scores before it; a vote
    or score file may carry its claims itself, as an array radius beside votes or {labels, scores}. Exit 1 when a claim
    is unsound: an attack by no more users than it allows changes the output, and it is printed.

    Example: codeward referee votes.npz certified.jsonl --code code.csv
    """
    if threat not in (None, "deterministic", "arbitrary"):
        raise InputError(f"--threat must be deterministic or arbitrary, got {threat!r}")
    if output is not None and output.suffix.lower() != ".jsonl":
        raise InputError(f"{output}: rulings are written as .jsonl")
    from codeward.codes import Code

    the_code = Code.load(code)
    rulings: list[tuple[Claims, Ruling]] = []
    observed: tuple[Path, VoteSet] | None = None
    for path in files:
        found = _read(path)
        if not isinstance(found, Claims):
            observed = (path, found)
            _check(path, found, the_code, code, force)
            if found.radius is None:
                continue
            found = Claims(path, found.radius)
        if observed is None:
            raise InputError(f"{path}: claims about what? Give the file of votes or scores before it")
        ask = {"threat": threat, "decoder": decoder, "attackers": attackers, "errors": errors}
        rulings.append((found, _judge(found, *observed, the_code, ask, time_limit, as_json)))
    if not rulings:
        raise InputError("no claims: give a file with radii, such as certify -o writes, or votes with an array radius")
    if output is not None:
        _write(output, rulings)
    _show(rulings, as_json)
    wrong = sum(int(ruling.unsound.sum()) for _, ruling in rulings)
    if wrong:
        raise UnmetError(f"{wrong:,} of {sum(len(ruling.claimed) for _, ruling in rulings):,} claims are unsound")


def _check(path: Path, votes: "VoteSet", code: "Code", file: Path, force: bool) -> None:
    if votes.votes.shape[1] != code.n_models:
        raise InputError(f"{path}: {votes.votes.shape[1]} votes an input, but {file} has {code.n_models} models (rows)")
    if votes.code_digest not in (None, code.digest) and not force:
        raise InputError(f"{path}: votes of another code than {file}; give the code they are of, or --force")


def _read(path: Path) -> "VoteSet | Claims":
    """Read votes, scores or claims, by what the file holds."""
    from dataclasses import replace

    from codeward._files import ArrayFile
    from codeward.decoding import load_scores, load_votes

    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        return _read_lines(path)
    if suffix in (".pth", ".pt"):
        return load_scores(path)
    if suffix == ".csv":
        return load_votes(path)
    if suffix != ".npz":
        raise InputError(f"{path}: votes are .npz or .csv, scores .pth, claims .jsonl or .npz")
    with ArrayFile(path, "iufU", ("votes", "label", "radius", "threat", "decoder")) as file:
        shapes = {name: header.shape for name, header in file.headers.items()}
        arrays = {}
        for name in ("label", "radius"):
            if name in shapes:
                if len(shapes[name]) != 1 or shapes[name][0] > _LINES:
                    raise InputError(f"{path}: {name}: expected one whole number an input, got shape {shapes[name]}")
                arrays[name] = _whole(file.read(name), f"{path}: {name}")
        words = {}
        for name in ("threat", "decoder"):
            if shapes.get(name, ()) != ():
                raise InputError(f"{path}: {name}: expected one word for all claims, got shape {shapes[name]}")
            if name in shapes:
                words[name] = str(file.read(name))
    if "votes" in shapes:
        return replace(load_votes(path), radius=arrays.get("radius"))
    if "radius" not in arrays:
        raise InputError(f"{path}: neither votes nor radii in it")
    return Claims(path, arrays["radius"], arrays.get("label"), words.get("threat"), words.get("decoder"))


def _read_lines(path: Path) -> Claims:
    """Read what ``certify -o FILE.jsonl`` writes: label, radius, threat and decoder of every input."""
    import io

    import numpy as np

    from codeward._files import open_regular

    radius, labels, kinds = [], [], set()
    with io.TextIOWrapper(open_regular(path, None), encoding="utf-8", errors="replace") as handle:
        number = 0
        while line := handle.readline(_LINE):
            number += 1
            try:
                row = json.loads(line) if len(line) < _LINE and number <= _LINES else None
            except (ValueError, RecursionError):
                row = None
            # Where classes have names, the label is one, and the class its number.
            if isinstance(row, dict) and "class" in row:
                row["label"] = row["class"]
            if not isinstance(row, dict) or any(type(row.get(name)) is not int for name in ("label", "radius")):
                raise InputError(f"{path}: line {number}: expected an object with whole numbers label and radius")
            if max(abs(row["radius"]), abs(row["label"])) > 1 << 40:
                raise InputError(f"{path}: line {number}: a number that no label or radius is")
            radius.append(row["radius"])
            labels.append(row["label"])
            kinds.add((str(row.get("threat")), str(row.get("decoder"))))
    if not radius or len(kinds) > 1:
        raise InputError(f"{path}: " + ("no claims" if not radius else "claims of several threat models or decoders"))
    threat, decoder = (None if word == "None" else word for word in kinds.pop())
    return Claims(path, np.array(radius), np.array(labels), threat, decoder)


def _whole(values: "NDArray[Any]", what: str) -> "NDArray[np.int64]":
    import numpy as np

    if values.dtype.kind not in "iuf" or not np.isfinite(values).all() or (values != np.rint(values)).any():
        raise InputError(f"{what}: expected whole numbers")
    if values.dtype.kind == "f":
        values = values.astype(np.float64)  # half precision does not reach the limits below
    return np.asarray(np.clip(values, -(1 << 40), 1 << 40), dtype=np.int64)


def _judge(
    claims: Claims, path: Path, found: "VoteSet", code: "Code", ask: dict[str, Any], time_limit: float, quiet: bool
) -> "Ruling":
    """Make the decoder that the claims are about, and judge them."""
    from codeward._progress import show_progress
    from codeward.certificates import referee as judge

    name = ask["decoder"] or claims.decoder or "plurality"
    threat: Any = ask["threat"] or claims.threat or "arbitrary"
    if name not in ("plurality", "consensus", "runoff", "bayes", "groups"):
        raise InputError(f"{claims.path}: no referee for the decoder {name[:40]!r}")
    if name == "consensus" and ask["attackers"] is None:
        raise InputError("--decoder consensus needs --attackers K")
    observed: Any = found.votes
    confusion = found.confusion
    n_classes = None if found.scores is None else int(found.scores.shape[2])
    if name == "runoff":
        if found.scores is None:
            raise InputError(f"{path}: no scores; the claims are about a run-off, which reads class scores")
        observed = found.scores
    elif name in ("bayes", "groups") and confusion is None:
        from codeward.cli._clean_votes import find_classes, find_confusion
        from codeward.decoding import VoteReader

        if path.suffix.lower() not in (".npz", ".csv"):
            raise InputError(f"{path}: the {name} decoder needs confusion matrices; give votes as .npz with confusion")
        reader = VoteReader(path)
        confusion, _ = find_confusion(reader, find_classes(reader, n_classes), None)
    with show_progress("referee", 1, not quiet) as progress:
        return judge(
            observed,
            code,
            claims.radius,
            claimed_labels=claims.labels,
            threat=threat,
            decoder=name,
            confusion=confusion if name in ("bayes", "groups") else None,
            n_attackers=ask["attackers"],
            n_errors=ask["errors"],
            n_classes=None if name in ("bayes", "groups") else n_classes,
            time_limit=time_limit,
            progress=progress,
        )


def _describe(index: int, ruling: "Ruling") -> dict[str, Any]:
    verdict = "unsound" if ruling.unsound[index] else "sound" if ruling.sound[index] else "open"
    witness = ruling.witnesses.get(index)
    return {
        "input": index,
        "ruling": verdict,
        "claimed": int(ruling.claimed[index]),
        "proved": int(ruling.proved.radius[index]),
        "exact": bool(ruling.proved.exact[index]),
        "attack": witness and {"attackers": list(witness.attackers), "target": witness.target},
        "reason": ruling.reason(index),
    }


def _write(path: Path, rulings: "list[tuple[Claims, Ruling]]") -> None:
    from codeward._files import write_atomic

    lines = [
        json.dumps({"file": str(claims.path), **_describe(index, ruling)}) + "\n"
        for claims, ruling in rulings
        for index in range(len(ruling.claimed))
    ]
    write_atomic(path, lambda out: out.write("".join(lines).encode()))


def _show(rulings: "list[tuple[Claims, Ruling]]", as_json: bool) -> None:
    """Print what is sound, unsound and open in every file, and the first attacks."""
    import numpy as np

    facts: list[dict[str, Any]] = []
    for claims, ruling in rulings:
        wrong = np.flatnonzero(ruling.unsound)
        facts.append(
            {
                "file": str(claims.path),
                "decoder": ruling.proved.decoder,
                "threat": ruling.proved.threat,
                "claims": len(ruling.claimed),
                "sound": int(ruling.sound.sum()),
                "unsound": wrong.size,
                "open": int(ruling.open.sum()),
                "exact": int(ruling.proved.exact.sum()),
                "users_given_away": None if np.isnan(ruling.loose) else ruling.loose,
                "attacks": [_describe(int(index), ruling) for index in wrong[:SHOWN]],
            }
        )
    if as_json:
        print(json.dumps({"files": facts}))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for fact in facts:
        table = Table("", "", show_header=False, title=fact["file"])
        table.add_row("about", f"{fact['decoder']}, {fact['threat']}, {fact['claims']:,} claims")
        for name in ("sound", "unsound", "open"):
            table.add_row(name, f"{fact[name]:,}")
        table.add_row("exact radius known", f"{fact['exact']:,}")
        if fact["users_given_away"] is not None:
            table.add_row("below exact", f"{fact['users_given_away']:.3g} users on average, of the sound claims")
        for attack in fact["attacks"]:
            table.add_row(f"input {attack['input']}", attack["reason"])
        console.print(table)
