"""Certificates as files (one object or row an input, in input order) and as a summary."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._figures import show_percent
from codeward._files import format_csv
from codeward.certificates import Certificates, CertifiedCurve, CollectiveCertificate, join_certificates
from codeward.cli._clean_votes import VoteSource
from codeward.cli._verdicts import open_table


def open_certificates(path: Path | None, source: VoteSource) -> AbstractContextManager[Callable[[Certificates], None]]:
    """Open a file for certificates."""

    def as_lines(block: Certificates, suffix: str) -> Iterator[str]:
        form = _as_json if suffix == ".jsonl" else _as_csv
        return (form(block, index, source) for index in range(len(block)))

    header = "label,radius,threat,decoder,exact,attackers,target,reason,radius_to"
    return open_table(path, "certificates", header, as_lines, _as_arrays)


def _as_json(block: Certificates, index: int, source: VoteSource) -> str:
    witness = block.witness(index)
    told: dict[str, Any] | None = None
    if witness is not None:
        told = {"attackers": source.name_users(witness.attackers), "target": source.name_class(witness.target)}
        if witness.opponent is not None:
            told |= {"opponent": source.name_class(witness.opponent), "n_opponent": witness.n_opponent}
    row = {
        "label": source.name_class(int(block.labels[index])),
        "radius": int(block.radius[index]),
        "threat": block.threat,
        "decoder": block.decoder,
        "exact": bool(block.exact[index]),
        "witness": told,
        "reason": block.reason(index, source.class_names),
    }
    if source.class_names is not None:
        row["class"] = int(block.labels[index])
    if block.radius_to is not None:
        to = block.radius_to[index].tolist()
        row["radius_to"] = to if source.class_names is None else dict(zip(source.class_names, to, strict=True))
    return json.dumps(row) + "\n"


def _as_csv(block: Certificates, index: int, source: VoteSource) -> str:
    witness = block.witness(index)
    attackers = " ".join(map(str, source.name_users(witness.attackers))) if witness else ""
    cells = [
        source.name_class(int(block.labels[index])),
        block.radius[index],
        block.threat,
        block.decoder,
        int(block.exact[index]),
    ]
    cells += [attackers, source.name_class(witness.target) if witness else ""]
    cells.append(block.reason(index, source.class_names))
    cells.append("" if block.radius_to is None else " ".join(map(str, block.radius_to[index].tolist())))
    return format_csv([cells])


def _as_arrays(blocks: list[Certificates]) -> dict[str, NDArray[Any]]:
    """Arrays of a .npz: ``attackers`` is (N, w) of user indices, padded with -1; ``target`` is -1 without a witness."""
    all_blocks = join_certificates(blocks)
    arrays = {
        "label": all_blocks.labels,
        "radius": all_blocks.radius,
        "exact": all_blocks.exact,
        "attackers": all_blocks.attackers,
        "target": all_blocks.targets,
        "threat": np.array(all_blocks.threat),
        "decoder": np.array(all_blocks.decoder),
    }
    extras = {"opponent": all_blocks.opponents, "radius_to": all_blocks.radius_to}
    return arrays | {name: extra for name, extra in extras.items() if extra is not None}


class Tally:
    """Counts of radii over all blocks; what the summary and the curve are made of."""

    def __init__(self) -> None:
        self.inputs = self.judged = self.silent = self.inexact = 0
        self.by_radius = np.zeros(1, dtype=np.int64)

    def add(self, block: Certificates, labels: NDArray[np.int64] | None, judged: NDArray[np.bool_]) -> None:
        """Count a block: inputs in ``judged`` that have a verdict and, where labels are given, the right one."""
        right = judged & (block.labels >= 0)
        if labels is not None:
            right &= block.labels == labels
        found = np.bincount(block.radius[right], minlength=self.by_radius.size)
        found[: self.by_radius.size] += self.by_radius
        self.by_radius = found
        self.inputs += len(block)
        self.judged += int(judged.sum())
        self.silent += int((block.labels < 0).sum())
        self.inexact += int((~block.exact).sum())
        self.last = block

    def curve(self) -> CertifiedCurve:
        """Return the share of judged inputs with radius at least k, for k from 0 to the largest radius."""
        held = np.cumsum(self.by_radius[::-1])[::-1]
        return CertifiedCurve(
            np.arange(held.size), held / max(1, self.judged), self.judged, self.last.threat, self.last.decoder
        )


def show_summary(
    tally: Tally,
    facts: dict[str, Any],
    collective: list[CollectiveCertificate],
    what: str,
    as_json: bool,
    source: VoteSource,
) -> None:
    """Print the summary: a table, or one JSON object."""
    curve = tally.curve()
    if as_json:
        facts |= {
            "inputs": tally.inputs,
            "no_verdict": tally.silent,
            "lower_bounds": tally.inexact,
            "searched": tally.last.searched,
            "measure": what,
            "measured_inputs": tally.judged,
            "certified": {str(k): float(share) for k, share in zip(curve.attackers, curve.accuracy, strict=True)},
            "collective": {
                str(c.n_attackers): {
                    "counted": c.n_counted,
                    "changed_at_most": c.changed,
                    "pointwise": c.pointwise,
                    "exact": c.exact,
                    "attackers": source.name_users(c.attackers),
                }
                for c in collective
            },
        }
        print(json.dumps(facts))
        return
    from rich.console import Console
    from rich.table import Table

    at_once = {c.n_attackers: c for c in collective}
    title = f"{facts['decoder']}, threat model {facts['threat']}, {tally.inputs:,} inputs, {facts['classes']} classes"
    table = Table("attackers k", f"{what} (of {tally.judged:,})", title=title)
    if collective:
        table.add_column("pointwise")
        table.add_column("collective")
        table.caption = "pointwise, collective: outputs that k users can change, each by its own users or all at once"
    shares = dict(zip(curve.attackers.tolist(), curve.accuracy.tolist(), strict=True))
    for k in sorted(shares.keys() | at_once.keys()):
        row = [str(k), show_percent(shares.get(k, 0.0))]
        if k in at_once:
            row += [str(at_once[k].pointwise), str(at_once[k].changed)]
        table.add_row(*row)
    console = Console()
    console.print(table)
    if tally.silent:
        console.print(f"no verdict: {tally.silent:,} inputs (radius 0)")
    if tally.inexact:
        console.print(f"{tally.inexact:,} radii are lower bounds (searched up to {tally.last.searched} users)")
    if facts.get("error_free"):
        found = facts["error_free"]
        console.print(
            f"if no model errs: undoes all attacks up to k = {found['attackers']} (of {found['searched']} tried)"
        )
    for key in ("confusion", "output", "plot"):
        if facts.get(key):
            console.print(f"{key}: {facts[key]}")
