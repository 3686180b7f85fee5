"""Records and tables: a JSON file for every cell in results/federated-*, and docs/federated-attacks.md.

Tables come from the records alone. How a cell is trained, attacked and counted is not decided here.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial, reduce
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.federated_attacks._global_model import GLOBAL_BEHAVIOURS, RULES, run_global, silence_flower
from benchmarks.federated_attacks._sub_models import CODE_BEHAVIOURS, run_code, train_honest
from benchmarks.federated_attacks._trial import USERS, Trial, find_code, prepare
from codeward._files import write_text_atomic
from codeward.data import DatasetPair
from codeward.experiments import load_pair
from codeward.runs import describe_machine, read_record_folder, save_record

#: What records call the defence that is no rule of Flower's.
CODED = "codeward"
#: What a table says where there is no record.
MISSING = "not run"

#: Figures by attackers, behaviour and defence, one entry a seed.
Found = dict[tuple[int, str, str], list[dict[str, Any]]]
#: A row of a table: whose records, and the way to each figure in them.
Row = tuple[str, Sequence[tuple[str, ...]]]
_GLOBAL_ROWS: dict[str, Row] = {rule: (rule, [("success",), ("triggered_right",), ("clean_right",)]) for rule in RULES}
_CODE_ROWS: dict[str, Row] = {
    decoder: (
        CODED,
        [*(("triggered", decoder, kind) for kind in ("fooled", "right", "no_verdict")), ("clean", decoder, "right")],
    )
    for decoder in ("plurality", "bayes", "consensus")
} | {
    "*trigger works in planted models*": (CODED, [("success_in_planted_models",)]),
    "*models not hit right, triggered*": (CODED, [("triggered", "clean_models_right")]),
    "*at most e of them wrong: right for sure*": (CODED, [("triggered", "theorem_applies")]),
}


def run_cells(trial: Trial, seeds: Sequence[int], sizes: Sequence[int], folder: Path) -> None:
    """Run every cell whose record is not there yet."""
    silence_flower()
    torch.set_num_threads(1)
    pair = load_pair(trial.config())
    settings = {name: value for name, value in asdict(trial).items() if name != "data_dir"} | {"users": USERS}
    known = load_all(folder)
    for seed, k in product(seeds, sizes):
        for (behaviour, defence), run in list_cells(trial, pair, seed, k).items():
            file = folder / f"seed{seed}-attackers{k}-{behaviour}-{defence}.json"
            if file.name in known:
                continue
            told = {
                "dataset": trial.dataset,
                "defence": defence,
                "behaviour": behaviour,
                "n_attackers": k,
                "seed": seed,
            }
            begin = time.process_time()
            found = run()
            seconds = round(time.process_time() - begin, 1)
            machine = describe_machine("cpu")
            machine["versions"]["flwr"] = version("flwr")
            save_record({**told, **found, "settings": settings, "cpu_seconds": seconds, **machine}, file)
            print(f"{file.name}: {seconds} s", flush=True)


def list_cells(
    trial: Trial, pair: DatasetPair, seed: int, n_attackers: int
) -> dict[tuple[str, str], Callable[[], dict[str, Any]]]:
    """Return what runs each cell of a seed and number of attackers, by behaviour and defence."""
    setting = prepare(trial, pair, seed, find_code(n_attackers))
    honest = cache(partial(train_honest, setting))
    coded = {
        (behaviour, CODED): partial(run_code, trial, setting, n_attackers, behaviour, honest)
        for behaviour in CODE_BEHAVIOURS
    }
    return coded | {
        (behaviour, rule): partial(run_global, trial, pair, seed, n_attackers, behaviour, rule)
        for behaviour, rule in product(GLOBAL_BEHAVIOURS, RULES)
    }


def load_all(folder: Path) -> dict[str, dict[str, Any]]:
    """Read all records by name: those of ``records.jsonl.gz``, and files that came after it was packed."""
    return {name: record for name, record in read_record_folder(folder).items() if name.startswith("seed")}


def load_figures(folder: Path) -> Found:
    """Read the figures of all records."""
    found: Found = {}
    for record in load_all(folder).values():
        cell = record["n_attackers"], record["behaviour"], record["defence"]
        found.setdefault(cell, []).append(record["figures"])
    return found


def write_tables(folder: Path) -> str:
    """Return both tables of a data set as Markdown; cells without a record say so."""
    found = load_figures(folder)
    upper = _write_table(found, "one global model", GLOBAL_BEHAVIOURS, _GLOBAL_ROWS)
    return upper + "\n" + _write_table(found, "codeward", CODE_BEHAVIOURS, _CODE_ROWS)


def _write_table(found: Found, title: str, behaviours: Sequence[str], rows: Mapping[str, Row]) -> str:
    """Return a table with a column for every number of attackers in the records and every behaviour."""
    columns = list(product(sorted({n_attackers for n_attackers, _, _ in found}), behaviours))
    lines = [[title, *(f"k={k} {behaviour}" for k, behaviour in columns)]]
    for name, (defence, paths) in rows.items():
        cells = [found.get((k, behaviour, defence), []) for k, behaviour in columns]
        lines.append([name, *(" / ".join(_pool(cell, path) for path in paths) if cell else MISSING for cell in cells)])
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|---|" + "---|" * len(columns), *body]) + "\n"


def _pool(figures: Sequence[dict[str, Any]], path: tuple[str, ...]) -> str:
    """Return a share of all seeds together, in percent."""
    shares = [reduce(lambda inner, name: inner[name], path, entry) for entry in figures]
    return f"{100 * sum(one['count'] for one in shares) / max(1, sum(one['of'] for one in shares)):.0f}"


def write_docs(page: Path, dataset: str, tables: str) -> None:
    """Put tables between the markers of a data set."""
    begin, end = (f"<!-- {word}: federated attacks, {dataset} -->" for word in ("begin", "end"))
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise SystemExit(f"{page}: no markers {begin} and {end}")
    head, _, rest = text.partition(begin)
    write_text_atomic(page, f"{head}{begin}\n{tables}{end}{rest.partition(end)[2]}")
