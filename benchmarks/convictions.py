"""How often the ledger convicts somebody though nobody attacks, and how soon it convicts those who do.

Real votes of shipped codes (``results/mnist-iid``: d, g and h). *Nobody attacks*: validation inputs and a stream of
clean inputs are drawn without replacement from the clean inputs of a cell, so that they are exchangeable by
construction; counted are streams in which an attack is ever shown, and in which somebody is ever convicted. *Somebody
attacks*: streams of incidents of which a given share is triggered; who is convicted. There are about 150 distinct false
alarms in a cell, so the power with more of them is measured with reference and false alarms both drawn with
replacement, which is exchangeable too. *A trigger fails in some models*: votes of clean models of the modern recipe
(``results/*-iid-modern``), in which every hit model says the target at a rate of its own; who is convicted, and who
would be by the posterior alone (``--uneven``). Run: ``python -m benchmarks.convictions [--votes DIR] [--record FILE]``.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from codeward._files import write_atomic
from codeward.codes import Code, inspect
from codeward.decoding import VoteSet, load_votes, uniform_prior
from codeward.reproduction import unpack_setting
from codeward.serve import Examiner, bet_on_small, compute_p_values, find_alarms

CODES = ("d", "g", "h")
SIZES = (10, 20, 30, 50, 75, 100, 125, 150, 200, 300, 500, 1000, 2000, 5000)
#: Inputs of a stream after which is counted; the test may be looked at after each.
LENGTHS = (300, 1000)
ALPHAS = (0.01, 0.05)
N_CLASSES = 10
Rows = dict[str, list[dict[str, Any]]]
#: Grids and codes on which triggers fail, numbers of attackers that decoders expect at most, and incidents.
UNEVEN = {"cifar10-iid-modern/btc2412": (3, 2), "mnist-iid-modern/btc2412": (3, 2)}
UNEVEN_LENGTHS = (10, 50)
#: Validation inputs, and clean inputs apart from them to compare with, as a run folder has them.
PAIRS = ((100, 100), (270, 270), (2000, 2000))
#: Attackers of the cells where somebody attacks: as many as the code tells apart.
ATTACKERS = {"d": 1, "g": 1, "h": 2}
#: Share of true incidents among the incidents of a stream, and lengths of the stream.
ATTACKS = {1.0: (5, 10, 20, 50), 0.1: (50, 100), 0.01: (100,)}
ATTACKED = ((1000, 0), (5000, 0), (270, 270), (2000, 2000))
#: Reference false alarms, and incidents of a stream, where both are drawn with replacement.
REFERENCES, DRAWN = (10, 20, 50, 100, 200, 500, 1000), 1000


#: How a trigger works: the rate at which each model says the target, of those that are hit.
TRIGGERS: dict[str, Callable[[np.random.Generator, NDArray[np.bool_]], NDArray[np.float64]]] = {
    "works everywhere": lambda rng, hit: np.full(hit.size, 0.996),
    "fails in one": lambda rng, hit: _fail(rng, hit, 1),
    "fails in two": lambda rng, hit: _fail(rng, hit, 2),
    "fails in two fifths": lambda rng, hit: np.where(rng.random(hit.size) < 0.6, 0.95, 0.1),
    "another rate in each": lambda rng, hit: rng.random(hit.size),
    "half of the time": lambda rng, hit: np.full(hit.size, 0.5),
}


def _fail(rng: np.random.Generator, hit: NDArray[np.bool_], count: int) -> NDArray[np.float64]:
    rates = np.full(hit.size, 0.996)
    rates[rng.choice(np.flatnonzero(hit), count, replace=False)] = 0.02
    return rates


class Cell:
    """Votes of one cell: clean inputs, and triggered ones where somebody attacks."""

    def __init__(self, folder: Path, repeat: int, n_attackers: int) -> None:
        stem = f"repeat{repeat}-attackers{n_attackers}"
        parts = [load_votes(folder / "votes" / f"{stem}-{name}.npz") for name in ("validation", "clean")]
        self.code = Code.load(folder / "code.json")
        self.votes = np.concatenate([part.votes for part in parts])
        self.labels = np.concatenate([part.labels for part in parts if part.labels is not None])
        self.distinct, place = np.unique(self.votes, axis=0, return_inverse=True)
        self.place = place.reshape(-1)
        self.prior = uniform_prior(max(1, min(3, inspect(self.code).detect)))
        if n_attackers:
            record = json.loads((folder / "records" / f"{stem}.json").read_text(encoding="utf-8"))
            self.attackers = set(record["figures"]["groups"][0]["attackers"])
            self.triggered = load_votes(folder / "votes" / f"{stem}-triggered.npz").votes

    def examiner(
        self, rows: NDArray[np.int64], apart: NDArray[np.int64] | None = None, most: int | None = None
    ) -> Examiner:
        """Return the examiner with these validation inputs, and with these to compare with; it may expect others."""
        prior = self.prior if most is None else uniform_prior(most)
        parts = [VoteSet(self.votes[chosen], self.labels[chosen]) for chosen in (rows, apart) if chosen is not None]
        validation, reference = parts[0], parts[1] if apart is not None and apart.size else None
        return Examiner(self.code, validation, N_CLASSES, reference=reference, attackers_prior=prior)


def simulate_clean(
    cells: Sequence[Cell], size: int, streams: int, rng: np.random.Generator, apart: int = 0
) -> dict[str, Any]:
    """Count streams of clean inputs that show an attack, and that convict, for one number of validation inputs.

    With ``apart``, so many further clean inputs are the reference, and all validation inputs make confusion matrices.
    """
    p_values, places, references, orders = [], [], [], []
    for number in range(streams):
        cell = cells[number % len(cells)]
        order = rng.permutation(len(cell.votes))[: size + apart + LENGTHS[-1]]
        examiner = cell.examiner(order[:size])
        unseen = order[size : size + apart] if apart else order[:size][examiner.parts_[1]]
        # What `Examiner.examine` does, each distinct vote vector once.
        known, stream = cell.place[unseen], cell.place[order[size + apart :]]
        present = np.flatnonzero(np.bincount(np.concatenate([known, stream]), minlength=len(cell.distinct)))
        alarms = find_alarms(examiner.decoder_, cell.distinct[present], examiner.threshold)
        target_of, score_of = np.full(len(cell.distinct), -1), np.zeros(len(cell.distinct))
        target_of[present[alarms.rows]], score_of[present[alarms.rows]] = alarms.targets, alarms.scores
        known, rows = known[target_of[known] >= 0], np.flatnonzero(target_of[stream] >= 0)
        stream = stream[rows]
        for target in range(N_CLASSES):
            own = np.where(target_of == target, score_of, -np.inf)
            p_values.append(compute_p_values(own[known], own[stream], rng.random(stream.size)))
            places.append(rows)
        references.append(known.size)
        orders.append(order)
    capital = _bet(p_values, np.repeat(references, N_CLASSES))
    row: dict[str, Any] = {"validation": size, "streams": streams, "reference_alarms": float(np.mean(references))}
    row |= {"apart": apart, "stream_alarms": float(np.mean([len(rows) for rows in places]))}
    for length in LENGTHS:
        seen = np.array([rows.searchsorted(length) for rows in places])
        inside = np.arange(capital.shape[1]) < seen[:, None]
        top = np.where(inside, capital, 0.0).max(axis=1, initial=0.0).reshape(streams, N_CLASSES).max(axis=1)
        bounds = N_CLASSES * np.exp(-top)
        for alpha in ALPHAS:
            shown = np.flatnonzero(bounds <= alpha)
            entry: dict[str, Any] = {"attack_shown": shown.size}
            if alpha == ALPHAS[0]:
                named = [_convicts(cells[i % len(cells)], orders[i], size, apart, length) for i in shown.tolist()]
                entry["convicted"] = sum(named)
            entry["limits"] = [_limit(shown.size, streams, side) for side in (0.025, 0.975)]
            row[f"alpha {alpha:g}, {length} inputs"] = entry
    return row


def _bet(p_values: Sequence[NDArray[np.float64]], references: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bet on all streams at once; short ones are filled up with 1, on which capital only shrinks."""
    table = np.ones((len(p_values), max(map(len, p_values))))
    for place, values in enumerate(p_values):
        table[place, : len(values)] = values
    step = 2000
    parts = [bet_on_small(table[i : i + step], references[i : i + step]) for i in range(0, len(table), step)]
    return np.concatenate(parts)


def _convicts(cell: Cell, order: NDArray[np.int64], size: int, apart: int, length: int) -> bool:
    """Whether the posterior is sure of somebody too, at the end of a stream that shows an attack."""
    examiner = cell.examiner(order[:size], order[size : size + apart])
    votes = cell.votes[order[size + apart :][:length]]
    evidence = examiner.examine(votes, [f"{row}" for row in range(length)])
    return any((item.user_probability >= item.certainty).any() for item in evidence.values())


def _limit(count: int, total: int, side: float) -> float:
    """Clopper-Pearson limit of a share."""
    if side < 0.5:
        return float(beta.ppf(side, count, total - count + 1)) if count else 0.0
    return float(beta.ppf(side, count + 1, total - count)) if count < total else 1.0


def simulate_attack(
    cells: Sequence[Cell], size: int, apart: int, share: float, streams: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Stream incidents of which a share is triggered; say who is convicted after each number of them."""
    lengths = ATTACKS[share]
    counts = {length: np.zeros(5) for length in lengths}
    for number in range(streams):
        cell = cells[number % len(cells)]
        order = rng.permutation(len(cell.votes))
        examiner = cell.examiner(order[:size], order[size : size + apart])
        pools = [cell.votes[order[size + apart :]], rng.permutation(cell.triggered)]
        false, true = (pool[find_alarms(examiner.decoder_, pool, examiner.threshold).rows] for pool in pools)
        for length in lengths:
            n_true = round(share * length)
            if n_true > len(true) or length - n_true > len(false):
                continue
            votes = rng.permutation(np.concatenate([true[:n_true], false[: length - n_true]]))
            evidence = examiner.examine(votes, [f"{number} {row}" for row in range(length)])
            named = {user for item in evidence.values() for user in item.convicted}
            shown = any(item.is_attack for item in evidence.values())
            right, wrong = named & cell.attackers, named - cell.attackers
            counts[length] += 1, shown, bool(right), len(right) / len(cell.attackers), bool(wrong)
    names = ("attack_shown", "somebody_rightly", "attackers_convicted", "somebody_wrongly")
    return [
        {"validation": size, "apart": apart, "true_share": share, "incidents": length, "streams": int(total)}
        | dict(zip(names, (rest / max(total, 1)).tolist(), strict=True))
        for length in lengths
        for total, *others in [counts[length].tolist()]
        for rest in [np.array(others)]
    ]


def simulate_power(cells: Sequence[Cell], streams: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Say after how many incidents an attack is shown, by the number of reference false alarms; drawn with replacement.

    The bound: with R references, no test that keeps alpha shows an attack in which x of q incidents rank above all else
    while C(q, x) / C(R + q, x) is above alpha over the number of classes.
    """
    scores = []
    for cell in cells:
        order = rng.permutation(len(cell.votes))
        examiner = cell.examiner(order[:2000])
        false = find_alarms(examiner.decoder_, cell.votes[order[2000:]], examiner.threshold)
        true = find_alarms(examiner.decoder_, cell.triggered, examiner.threshold)
        target = int(np.bincount(true.targets).argmax())
        scores.append([np.where(part.targets == target, part.scores, -np.inf) for part in (false, true)])
    rows = []
    for share in ATTACKS:
        for size in REFERENCES:
            p_values = []
            for number in range(streams):
                false, true = scores[number % len(scores)]
                attacked = rng.random(DRAWN) < share
                stream = np.where(attacked, rng.choice(true, DRAWN), rng.choice(false, DRAWN))
                p_values.append(compute_p_values(rng.choice(false, size), stream, rng.random(DRAWN)))
            shown = _bet(p_values, np.full(streams, size)) >= np.log(N_CLASSES / ALPHAS[0])
            first = np.where(shown.any(axis=1), shown.argmax(axis=1) + 1, DRAWN + 1)
            rows.append({"true_share": share, "reference_alarms": size, "streams": streams})
            rows[-1] |= {"shown": float(shown.any(axis=1).mean()), "median_incidents": float(np.median(first))}
    return rows


def simulate_uneven(cells: Sequence[Cell], most: int, streams: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Stream inputs with a trigger that works at another rate in each hit model; say who is convicted."""
    rows = []
    for size, (name, draw) in product((1, 2), TRIGGERS.items()):
        counts = {length: np.zeros(5) for length in UNEVEN_LENGTHS}
        for number in range(streams):
            cell = cells[number % len(cells)]
            order = rng.permutation(len(cell.votes))
            examiner = cell.examiner(order[:2500], order[2500:5000], most)
            attackers = set(rng.choice(cell.code.n_users, size, replace=False).tolist())
            target, apart = int(rng.integers(N_CLASSES)), order[5000:]
            votes = cell.votes[apart[cell.labels[apart] != target]].copy()
            hit = cell.code.pattern(sorted(attackers))
            votes[hit & (rng.random(votes.shape) < draw(rng, hit))] = target
            alarms = find_alarms(examiner.decoder_, votes, examiner.threshold).rows
            for length in UNEVEN_LENGTHS:
                if len(alarms) < length:
                    continue
                found = examiner.examine(votes[alarms[:length]], [f"{number} {row}" for row in range(length)]).values()
                likely = {user for item in found for user in item.likely}
                named = {user for item in found for user in item.convicted}
                right = [len(each & attackers) / size for each in (likely, named)]
                counts[length] += 1, right[0], bool(likely - attackers), right[1], bool(named - attackers)
        for length, (total, *sums) in counts.items():
            shares = (np.array(sums) / max(total, 1)).tolist()
            what = ("posterior_attackers", "posterior_wrongly", "attackers_convicted", "somebody_wrongly")
            rows.append({"most": most, "attackers": size, "trigger": name, "incidents": length, "streams": int(total)})
            rows[-1] |= {"spare": examiner.spare_} | dict(zip(what, shares, strict=True))
    return rows


def write_uneven(uneven: Rows) -> str:
    """Return the table of triggers that fail, in Markdown: of the posterior alone, and of convictions."""
    head = [f"{length}: alone, convicted" for length in UNEVEN_LENGTHS]
    lines = _head("votes | expected | attackers | trigger", head)
    for path, rows in uneven.items():
        for first in range(0, len(rows), len(UNEVEN_LENGTHS)):
            part = rows[first : first + len(UNEVEN_LENGTHS)]
            cells = [
                f"{row['posterior_attackers']:.0%} / {row['posterior_wrongly']:.1%}, "
                f"{row['attackers_convicted']:.0%} / {row['somebody_wrongly']:.1%}"
                for row in part
            ]
            row = part[0]
            lines.append(
                f"| {path} | {row['most']} | {row['attackers']} | {row['trigger']} | " + " | ".join(cells) + " |"
            )
    return "\n".join(lines) + "\n"


def write_tables(clean: Rows, attacked: Rows, power: Rows) -> str:
    """Return the tables in Markdown, a column a code."""
    alpha, length = ALPHAS[0], LENGTHS[-1]
    lines = _head("validation inputs", [f"code {name}: shown (95% interval), convicted" for name in clean])
    for size, apart in [*((size, 0) for size in SIZES), *PAIRS]:
        cells = []
        for rows in clean.values():
            row = next((row for row in rows if (row["validation"], row["apart"]) == (size, apart)), None)
            if row is None:
                cells.append("-")
                continue
            entry = row[f"alpha {alpha:g}, {length} inputs"]
            low, high = entry["limits"]
            rates = f"{entry['attack_shown'] / row['streams']:.2%} ({low:.2%} to {high:.2%})"
            cells.append(f"{rates}, {entry['convicted'] / row['streams']:.2%}")
        lines.append(f"| {_inputs({'validation': size, 'apart': apart})} | " + " | ".join(cells) + " |")
    titles = [f"code {name}, k = {ATTACKERS[name]}: right / wrong" for name in attacked]
    lines += ["", *_head("true incidents | incidents | validation inputs", titles)]
    for rows in zip(*attacked.values(), strict=True):
        cells = [
            f"{row['attackers_convicted']:.0%} / {row['somebody_wrongly']:.1%}" if row["streams"] else "-"
            for row in rows
        ]
        head = f"| {rows[0]['true_share']:.0%} | {rows[0]['incidents']} | {_inputs(rows[0])} | "
        lines.append(head + " | ".join(cells) + " |")
    lines += ["", *_head("true incidents | reference false alarms", [f"code {name}: shown, median" for name in power])]
    for rows in zip(*power.values(), strict=True):
        cells = [
            f"{row['shown']:.0%}, {row['median_incidents']:.0f}" if row["shown"] > 0.5 else f"{row['shown']:.0%}"
            for row in rows
        ]
        head = f"| {rows[0]['true_share']:.0%} | {rows[0]['reference_alarms']} | "
        lines.append(head + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _head(first: str, titles: Sequence[str]) -> list[str]:
    columns = [*first.split(" | "), *titles]
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]


def _inputs(row: dict[str, Any]) -> str:
    return f"{row['validation']:,}" + (f" and {row['apart']:,} apart" if row["apart"] else "")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--votes", type=Path, help="folder with a run folder a code; by default results' are unpacked")
    parser.add_argument("--streams", type=int, default=2000, help="streams a size where nobody attacks")
    parser.add_argument("--attacked", type=int, default=100, help="streams a row where somebody attacks")
    parser.add_argument("--repeats", type=int, default=5, help="cells (repeats) the streams take turns on")
    parser.add_argument("--codes", nargs="+", default=list(CODES))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="numbers of validation inputs")
    parser.add_argument("--uneven", action="store_true", help="triggers that fail in some models, and nothing else")
    parser.add_argument("--record", type=Path, help="write all counts there, as JSON; other parts of it stay")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        if options.uneven:
            measure_uneven(options, Path(scratch))
        else:
            measure(options, options.votes or _unpack(Path(scratch), "mnist-iid"))


def _unpack(scratch: Path, setting: str) -> Path:
    """Return the run folders of a setting of the results."""
    for file in Path("results").glob(f"{setting}.*"):
        shutil.copy(file, scratch)
    unpack_setting(scratch, setting)
    return scratch / setting


def _record(file: Path, parts: dict[str, Any]) -> None:
    """Put parts into a record; those that are there otherwise stay."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    text = (json.dumps(_round(kept | parts), indent=1) + "\n").encode()
    write_atomic(file, lambda out: out.write(text))


def _round(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _round(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_round(value) for value in found]
    return round(found, 6) if isinstance(found, float) else found


def measure_uneven(options: argparse.Namespace, scratch: Path) -> None:
    uneven: Rows = {}
    for place, (path, expected) in enumerate(UNEVEN.items()):
        setting, _, _ = path.partition("/")
        _unpack(scratch, setting)
        cells = [Cell(scratch / path, repeat, 0) for repeat in range(options.repeats)]
        rng = np.random.default_rng([1, place])
        uneven[path] = [row for most in expected for row in simulate_uneven(cells, most, options.attacked, rng)]
    if options.record:
        _record(options.record, {"repeats": options.repeats, "uneven": uneven})
    print(write_uneven(uneven))


def measure(options: argparse.Namespace, votes: Path) -> None:
    begin = time.process_time()
    parts: dict[str, Rows] = {"clean": {}, "attacked": {}, "power": {}}
    for name in options.codes:
        folder = votes / name
        rng = np.random.default_rng([0, ord(name)])
        cells = [Cell(folder, repeat, ATTACKERS[name]) for repeat in range(options.repeats)]
        parts["power"][name] = simulate_power(cells, options.attacked, rng)
        parts["attacked"][name] = [
            row
            for share in ATTACKS
            for size, apart in ATTACKED
            for row in simulate_attack(cells, size, apart, share, options.attacked, rng)
        ]
        print(name, json.dumps(parts["power"][name]), f"{time.process_time() - begin:.0f} s", flush=True)
        cells = [Cell(folder, repeat, 0) for repeat in range(options.repeats)]
        parts["clean"][name] = []
        pairs = [pair for pair in PAIRS if pair[0] in options.sizes or options.sizes == list(SIZES)]
        for size, apart in [*((size, 0) for size in options.sizes), *pairs]:
            parts["clean"][name].append(simulate_clean(cells, size, options.streams, rng, apart))
            print(name, json.dumps(parts["clean"][name][-1]), f"{time.process_time() - begin:.0f} s", flush=True)
        if options.record:
            _record(options.record, {"alphas": ALPHAS, "lengths": LENGTHS, "repeats": options.repeats} | parts)
    print(write_tables(**parts), f"{time.process_time() - begin:.0f} s of processor time", sep="\n")


if __name__ == "__main__":
    main()
