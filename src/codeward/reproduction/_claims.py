"""Figures that pages quote: each with its value, its denominator, the cells it comes from, and how it is computed.

``claims.json`` in the grid folder is a list of quotes: ``page`` (a file beside the grid folder), ``quote`` (text of
the page, exactly; blanks and line breaks count alike), and ``figures``, in the order of the quote. A figure has
``text`` (what the quote says), ``how`` (a name in `HOW`) and what that takes. `fill_claims` adds ``value``, ``of`` and
``cells``; `check_claims` says what does not agree. To add one: write page, quote and figures, then run
``codeward reproduce claims``.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from codeward._errors import InputError
from codeward._files import write_text_atomic
from codeward.reproduction._grid_folder import (
    Grid,
    GridRun,
    list_calibrated,
    list_certified,
    list_records,
    list_shares,
    list_success,
    open_grid,
)
from codeward.reproduction._paper_tables import find_cells, list_tracking
from codeward.reproduction._sample_tables import half_certified
from codeward.runs import read_record_folder

#: What a figure is a fraction or a mean of: numerator and denominator, or a number and what it counts.
Sample = tuple[float, int]
#: Samples and the repeats they are of.
Found = tuple[list[Sample], Iterable[int]]


def _count_accuracy(run: GridRun, attackers: int, decoder: str, inputs: str = "all", repeats: Any = None) -> Found:
    """Right labels of records: ``decoder`` plurality, bayes or single_model; without attackers on clean inputs."""
    chosen = list_records(run, attackers, repeats)
    shares = list_shares(run, attackers, decoder, inputs, repeats)
    return _take(shares), [record["repeat"] for record in chosen]


def _count_success(run: GridRun, attackers: int, models: str = "hit_models", repeats: Any = None) -> Found:
    """Target votes of hit or clean models on triggered inputs with another label."""
    shares = list_success(run, attackers, models, repeats)
    return _take(shares), [record["repeat"] for record in list_records(run, attackers, repeats)]


def _count_names(run: GridRun, attackers: int, tracker: str, side: str) -> Found:
    """Users named rightly (true_positives) or wrongly (false_positives) by triggered input."""
    found = list_tracking(run, attackers, tracker)
    return [(figure[side], figure["inputs"]) for figure in found], range(len(found))


def _count_certified(run: GridRun, certificate: str, k: int) -> Found:
    """Certified accuracy on clean inputs."""
    shares = list_certified(run, certificate).get(k, [])
    return _take(shares), [study["repeat"] for study in run.studies if study.get("certified")]


def _count_studied(run: GridRun, attackers: int, path: Sequence[str | int], repeats: Any = None) -> Found:
    """Whatever share a study holds at ``path``."""
    found, of = [], []
    for study in run.studies:
        if study["n_attackers"] == attackers and (repeats is None or study["repeat"] in repeats):
            value: Any = study
            for step in path:
                value = value.get(step) if isinstance(value, dict) else value[step] if value else None
            if value is not None:
                found.append(value)
                of.append(study["repeat"])
    return _take(found), of


def _count_rate(run: GridRun, attackers: int, rate: float, field: str) -> Found:
    """Give what the paper's decoder does at another attack rate, at its own success rate."""
    chosen = [study for study in run.studies if study["n_attackers"] == attackers]
    rows = [(study["repeat"], row) for study in chosen for row in study.get("dial", []) if row["attack_rate"] == rate]
    return _take([row[field] for _, row in rows]), [repeat for repeat, _ in rows]


def _count_calibrated(
    run: GridRun, attackers: int, figure: str = "right", inputs: str = "all", repeats: Any = None
) -> Found:
    """Right labels or alarms of the run's own decoder: on clean inputs, or on the triggered ones of every group."""
    records = [record for record in list_records(run, attackers, repeats) if "decoder" in record["figures"]]
    return _take(list_calibrated(run, attackers, figure, inputs, repeats)), [record["repeat"] for record in records]


#: Ways to compute a figure, by name.
HOW: dict[str, Callable[..., Found]] = {
    "accuracy": _count_accuracy,
    "calibrated": _count_calibrated,
    "success": _count_success,
    "names": _count_names,
    "certified": _count_certified,
    "studied": _count_studied,
    "rate": _count_rate,
}


def compute_claim(grid: Grid, figure: dict[str, Any]) -> dict[str, Any]:
    """Compute a figure of a claim.

    Parameters
    ----------
    grid : Grid
    figure : dict
        ``how``, ``run`` (``<setting>/<code>``), what `HOW` takes, and ``statistic`` (mean by default; sd). Or ``how``:
        ``cells`` with ``study`` and ``dataset``, ``part``: there or planned. Or ``how``: ``samples`` (share certified
        against so many) or ``half`` with ``study`` (``cifar10-50-partition``), ``decoder``, and ``samples``. Or
        ``how``: ``writers`` with ``study`` (``partition-50``) and ``writers`` (share certified against so many) or
        ``kind`` (share right on test writers of it).

    Returns
    -------
    dict
        ``value``, ``of`` and ``cells``.
    """
    told = {key: value for key, value in figure.items() if key not in ("text", "how", "run", "value", "of", "cells")}
    if figure["how"] == "cells":
        return _count_cells(grid, **told)
    if figure["how"] == "writers":
        return _count_writers(grid, **told)
    if figure["how"] in ("samples", "half"):
        return _count_samples(grid, figure["how"], **told)
    statistic = told.pop("statistic", "mean")
    run = next((run for run in grid.runs if run.path == figure["run"]), None)
    if run is None or figure["how"] not in HOW:
        raise InputError(f"claims: no run {figure['run']}, or no way {figure['how']} to compute a figure of it")
    samples, repeats = HOW[figure["how"]](run, **told)
    if not samples:
        raise InputError(f"claims: {figure['run']} has nothing for {figure['how']} {told}")
    values = [value for value, _ in samples]
    value = fmean(values) if statistic == "mean" else stdev(values)
    sizes = sorted({of for _, of in samples})
    size = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    listed = sorted(set(repeats))
    where = f"{run.path}, repeat{'s' * (len(listed) > 1)} {', '.join(map(str, listed))}"
    attackers = told.get("attackers", 0)
    return {
        "value": round(value, 6),
        "of": f"{len(values)} time{'s' * (len(values) > 1)} {size}",
        "cells": f"{where}, attackers {attackers}",
    }


def check_claims(folder: str | os.PathLike[str], grid: Grid | None = None) -> list[str]:
    """Compare ``claims.json`` with the pages and with the records; return what does not agree, a line each.

    Parameters
    ----------
    folder : path-like
        The grid folder; pages are named from its parent.
    grid : Grid, optional
        The grid, where it is open already.

    Examples
    --------
    >>> check_claims("no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no records in any run folder; ...
    """
    root, opened = Path(folder), grid or open_grid(folder)
    wrong = []
    for claim in load_claims(root):
        page = root.parent / claim["page"]
        text = " ".join(page.read_text(encoding="utf-8").split()) if page.is_file() else ""
        quote = " ".join(claim["quote"].split())
        if text.count(quote) != 1:
            wrong.append(f"{claim['page']}: {text.count(quote)} times the quote {quote!r}")
        place = 0
        for figure in claim["figures"]:
            found = compute_claim(opened, figure)
            stored = {key: figure.get(key) for key in found}
            if stored != found:
                wrong.append(f"{claim['page']}: {quote!r}: stored {stored}, the records say {found}")
            place = quote.find(figure["text"], place)
            if place < 0:
                wrong.append(f"{claim['page']}: {quote!r} does not say {figure['text']!r} (in this order)")
                break
            place += len(figure["text"])
            if not _agrees(figure["text"], found["value"], 1 if figure["how"] in ("names", "cells", "half") else 100):
                wrong.append(f"{claim['page']}: {quote!r} says {figure['text']}, the records say {found['value']}")
    return wrong


def fill_claims(folder: str | os.PathLike[str]) -> int:
    """Compute value, denominator and cells of every figure in ``claims.json`` anew; return how many there are.

    Examples
    --------
    >>> fill_claims("no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    codeward._errors.InputError: no/such/folder: no records in any run folder; ...
    """
    grid, claims = open_grid(folder), load_claims(folder)
    for claim in claims:
        claim["figures"] = [figure | compute_claim(grid, figure) for figure in claim["figures"]]
    lines = []
    for claim in claims:
        figures = ",\n   ".join(json.dumps(figure, ensure_ascii=False) for figure in claim["figures"])
        head = f'{{"page": {json.dumps(claim["page"])},\n  "quote": {json.dumps(claim["quote"], ensure_ascii=False)},'
        lines.append(f'{head}\n  "figures": [\n   {figures}]}}')
    write_text_atomic(Path(folder) / "claims.json", "[\n " + ",\n ".join(lines) + "\n]\n")
    return sum(len(claim["figures"]) for claim in claims)


def load_claims(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read ``claims.json`` of a grid folder."""
    file = Path(folder) / "claims.json"
    try:
        claims = json.loads(file.read_text(encoding="utf-8"))
        if not all({"page", "quote", "figures"} <= set(claim) for claim in claims):
            raise ValueError("a claim has page, quote and figures")
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{file}: not readable ({error})") from error
    return list(claims)


def _count_cells(grid: Grid, study: str, dataset: str, part: str) -> dict[str, Any]:
    """Count the cells of the paper's recipe."""
    runs = {run.path: run for run in grid.runs}
    known = grid.plans[study].items()
    plan = {path: c for path, c in known if c.dataset == dataset and c.training.recipe == "paper"}
    there = sum(len(find_cells(runs.get(path), config)) for path, config in plan.items())
    planned = sum(config.repeats * len(config.attack.attackers) for config in plan.values())
    return {"value": there if part == "there" else planned, "of": f"{planned:,} cells", "cells": f"{study}, {dataset}"}


def _count_samples(grid: Grid, how: str, study: str, decoder: str, samples: int = 0) -> dict[str, Any]:
    """Give the share certified against so many samples, or the samples against which half of the test set is."""
    record = read_record_folder(grid.path / "samples")[f"{study}.json"]
    curve, inputs = record["certified"][decoder], record["inputs"]
    where = {"of": f"1 time {inputs:,}", "cells": f"samples/{study}, {decoder}"}
    if how == "half":
        return {"value": half_certified(curve, inputs), **where}
    return {"value": round((curve[samples] if samples < len(curve) else 0) / inputs, 6), **where}


def _count_writers(grid: Grid, study: str, writers: int = 0, kind: str | None = None) -> dict[str, Any]:
    """Give the share certified against so many colluding writers, or the share right on one kind of test writers."""
    record = read_record_folder(grid.path / "writers")[f"{study}.json"]
    if kind is not None:
        share = record["staff_and_students"][kind]
        value, inputs = share["count"] / share["of"], share["of"]
    else:
        curve, inputs = record["certified"], record["inputs"]
        value = (curve[writers] if writers < len(curve) else 0) / inputs
    return {"value": round(value, 6), "of": f"1 time {inputs:,}", "cells": f"writers/{study}"}


def _take(shares: Iterable[dict[str, int]]) -> list[Sample]:
    return [(share["count"] / share["of"], share["of"]) for share in shares if share["of"]]


def _agrees(text: str, value: float, scale: int) -> bool:
    """Say whether a number as printed is this value, times ``scale``, at its digits; a half may go either way."""
    digits = Decimal(re.sub(r"[^0-9.]", "", text))
    step = Decimal(1).scaleb(int(digits.as_tuple().exponent))
    return abs(Decimal(str(value)) * scale - digits) * 2 <= step
