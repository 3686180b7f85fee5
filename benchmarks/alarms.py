"""Alarms fitted on few validation votes: false alarms and detection, of the votes' decoder and the paper's posterior.

    python -m benchmarks.alarms [cifar10-iid-modern/c ...] [--rate 0.05] [--confidence 0.95] [--inputs 269] [--cells]

A draw takes validation votes of a repeat in results/ that nobody attacked: n inputs to fit on, 2,500 others to judge.
Of `DiscountedDecoder` and of the paper's decoder (confusion matrices pooled as in the default decoder below 200 inputs,
scores of ten folds) as many of the n may pass the threshold as keep the upper end of the rate's interval (Clopper and
Pearson) below the rate, with the confidence asked for or else by the decoder's own rule. On each judged input two
attacks with another class as target are simulated, by one to three users, alike often: a trigger that works in every
model reached, and one that fails in some of them, with one chance an attack, uniform in 0..0.4. Attacks that reach
every model are left out. The last two columns set both thresholds anew, so that four fifths of the rate are flagged of
the judged clean inputs. Draw i has seed i and takes the repeats in turn.
With ``--cells``, all cells of these runs instead, with their own validation inputs and their real triggers; about ten
seconds a cell.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from codeward.codes import Code
from codeward.decoding import BayesDecoder, alarm_threshold, count_confusion, pool_counts, smooth_confusion
from codeward.decoding.soft import DiscountedDecoder
from codeward.reproduction import PackedSetting, list_runs
from codeward.runs import Cell

SETTINGS = ("mnist-iid-modern/c", "mnist-iid-modern/d", "cifar10-iid-modern/c", "cifar10-iid-modern/d")
#: Validation inputs to fit on, and draws of so many.
DRAWS = {50: 9, 100: 9, 269: 9, 1000: 3, 2500: 3}
JUDGED, CLASSES, FOLDS, MOST = 2500, 10, 10, 3
#: The decoder's confidence in the rate, least and most, and the share of the rate that it keeps all the same.
CONFIDENCE, SURE, KEPT = 0.75, 0.999, 0.8
#: Share of the rate at which alarms are compared, least chance to work.
EQUAL, WORST = 0.8, 0.6

Votes = NDArray[np.int64]
Scores = NDArray[np.float64]


def simulate(code: Code, votes: Votes, labels: Votes, fails: bool, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return votes of one attack on each input, shape (N, m): a trigger that works everywhere, or fails somewhere."""
    made = votes.copy()
    for row, label in enumerate(labels):
        target = (label + rng.integers(1, CLASSES)) % CLASSES
        while True:
            hit = code.pattern(rng.choice(code.n_users, rng.integers(1, MOST + 1), replace=False).tolist())
            works = hit & (rng.random(hit.size) < rng.uniform(WORST, 1)) if fails else hit
            if not hit.all() and works.any() and (works != hit).any() == fails:
                break
        made[row, works] = target
    return made


def count_allowed(n_inputs: int, rate: float, confidence: float | None = None) -> int:
    """Return how many validation inputs may pass the threshold; 0 where too few promise the rate.

    Without a confidence by the decoder's rule: as sure as costs no more than a fifth of the rate.
    """
    if confidence is None:
        least, most = (count_allowed(n_inputs, rate, sure) for sure in (SURE, CONFIDENCE))
        return min(most, max(least, int(KEPT * rate * n_inputs + 1e-9)))
    counts = np.arange(n_inputs)
    return max(0, int((beta.ppf(confidence, counts + 1, n_inputs - counts) <= rate).sum()) - 1)


def find_rate(n_inputs: int, allowed: int) -> float:
    """Return a rate for which the decoder allows so many inputs, or (where its rule jumps) the next number."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if count_allowed(n_inputs, middle) < allowed else (low, middle)
    return high


def score_posterior(code: Code, votes: Votes, labels: Votes, judged: Sequence[Votes]) -> list[Scores]:
    """Return the paper's posterior of an attack, of the inputs themselves (by the other folds) and of others."""

    def decode(rows: NDArray[np.bool_], seen: Votes) -> Scores:
        counts = pool_counts(count_confusion(votes[rows], labels[rows], CLASSES))
        found = BayesDecoder(code, smooth_confusion(counts)).decode(seen)
        return np.where(found.agreed, 0.0, found.attack_probability)

    folds, own = np.arange(len(labels)) % FOLDS, np.zeros(len(labels))
    for fold in range(FOLDS):
        own[folds == fold] = decode(folds != fold, votes[folds == fold])
    return [own, *(decode(folds >= 0, seen) for seen in judged)]


def judge(scores: Sequence[Scores], threshold: float, equal: float) -> list[float]:
    """Return false alarms and detection of both triggers in percent; then detection where ``equal`` are flagged."""
    limits = [threshold] * 3 + [alarm_threshold(scores[0], equal)] * 2
    parts = [*scores, *scores[1:]]
    return [100 * float((part > limit).mean()) for part, limit in zip(parts, limits, strict=True)]


def measure(setting: str, n_inputs: int, rate: float, confidence: float | None, seed: int) -> list[list[float]]:
    """Measure one draw: what `judge` says of the votes' decoder and of the posterior."""
    place, name = setting.split("/")
    stored = PackedSetting(Path("results") / place)
    code, rng = stored.load_code(name), np.random.default_rng(seed)
    files = [file for file in stored.list_files(f"{name}/votes") if file.endswith("-attackers0-validation.npz")]
    known = stored.load_votes(files[seed % len(files)])
    assert known.labels is not None
    order = rng.permutation(len(known.labels))
    rows, others = order[:n_inputs], order[-JUDGED:]
    votes, labels, clean, truth = known.votes[rows], known.labels[rows], known.votes[others], known.labels[others]
    judged = [clean, *(simulate(code, clean, truth, fails, rng) for fails in (False, True))]

    allowed = count_allowed(n_inputs, rate, confidence)
    # The rate for which the decoder, by its own rule, allows as many: its threshold is then this one.
    fitted = DiscountedDecoder(code, CLASSES, false_alarm_rate=find_rate(n_inputs, allowed), seed=seed)
    fitted = fitted.fit(votes, labels)
    agreed = [(seen == seen[:, :1]).all(axis=1) for seen in judged]
    odds = [np.where(same, -np.inf, fitted.log_odds(seen)) for same, seen in zip(agreed, judged, strict=True)]
    own, *posterior = score_posterior(code, votes, labels, judged)
    return [judge(odds, 0.0, EQUAL * rate), judge(posterior, float(np.sort(own)[::-1][allowed]), EQUAL * rate)]


def list_rows(settings: Sequence[str], sizes: Sequence[int], rate: float, confidence: float | None) -> Iterator[str]:
    yield (
        f"| setting | inputs | may pass | draws | alarm | false alarms (largest; draws above) | works | fails "
        f"| works at {EQUAL * rate:.1%} | fails at {EQUAL * rate:.1%} |\n|" + "---|" * 10
    )
    for setting in settings:
        for size in sizes:
            draws = np.array([measure(setting, size, rate, confidence, seed) for seed in range(DRAWS.get(size, 3))])
            for alarm, found in zip(("votes' decoder", "paper's posterior"), draws.transpose(1, 2, 0), strict=True):
                alarms, *detected = (f"{part.mean():.1f}" for part in found)
                head = f"| {setting} | {size:,} | {count_allowed(size, rate, confidence)} | {len(draws)} | {alarm} "
                above = int((found[0] > 100 * rate).sum())
                yield head + f"| {alarms} ({found[0].max():.1f}; {above}) | " + " | ".join(detected) + " |"


def list_cells(settings: Sequence[str], rate: float, confidence: float | None) -> Iterator[str]:
    """Decode the kept votes of runs: false alarms, and triggered inputs that are detected, cell by cell and in all."""
    runs, alarms, detected = list_runs("results"), list[float](), list[float]()
    for setting in settings:
        for place in sorted(runs[setting].list_votes()):
            cell = Cell(runs[setting], *place)
            size = len(cell.validation.votes)
            asked = replace(cell.assumptions, false_alarm_rate=find_rate(size, count_allowed(size, rate, confidence)))
            decoder = cell.decoder("discounted", asked)
            found = [100 * float(decoder.decode(said.votes).alarms().mean()) for said in (cell.clean, *cell.triggered)]
            alarms.append(found[0])
            detected += found[1:]
            yield f"{setting} {cell.name}: false alarms {found[0]:.2f}%, detected {found[1:]}"
    above = sum(share > 100 * rate for share in alarms)
    yield f"{len(alarms)} cells: false alarms {np.mean(alarms):.2f}% (largest {max(alarms):.2f}; {above} above)"
    yield f"{len(detected)} cells: detected {np.mean(detected):.1f}% of triggered inputs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=SETTINGS, help="setting/code of results/")
    parser.add_argument("--rate", type=float, default=0.05, help="of false alarms, default %(default)s")
    parser.add_argument("--confidence", type=float, help="in the rate; by default the decoder's")
    parser.add_argument("--inputs", type=int, nargs="+", default=list(DRAWS), help="validation inputs to fit on")
    parser.add_argument("--cells", action="store_true", help="whole cells, with their real triggers")
    options = parser.parse_args()
    rows = list_rows(options.settings, options.inputs, options.rate, options.confidence)
    for row in list_cells(options.settings, options.rate, options.confidence) if options.cells else rows:
        print(row, flush=True)


if __name__ == "__main__":
    main()
