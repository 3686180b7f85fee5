"""Compare the score decoder with the paper's, on score files of real ensembles.

    python benchmarks/soft.py scores/c.npz scores/d.npz [--output table.md] [--seed 0]

A file holds ``code`` (m, n), ``validation_scores`` (Nv, m, c) log-probabilities, ``validation_labels``, ``labels`` (Ne)
of the evaluation half, and for k attackers ``attack{k}_validation_scores`` and ``attack{k}_clean_scores`` (the same
images through the poisoned ensemble), ``attack{k}_triggered_scores`` (Ne, m, c), ``attack{k}_attackers``,
``attack{k}_target``. Everything is fitted on the validation half of the poisoned ensemble, which holds clean images
only, and measured on the other half.

Softened triggers divide the log-probabilities of the hit models by a factor and normalise again; failing ones give a
hit model its clean scores with probability 1 - S; weak ones mix the probabilities of the hit models with and without
the trigger, so that the target need not win the vote. Clean accuracy and false alarms (FF) are shares of all Ne clean
inputs, accuracy under attack of all Ne triggered inputs, detection (det) of the triggered inputs whose label is not the
target. The bound uses the calibrated scores of the clean models alone, as if the attackers were known. The last column
is the accuracy under attack less the paper decoder's: with scores, with votes.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from codeward._files import write_text_atomic
from codeward.codes import Code
from codeward.decoding import BayesDecoder, Decoded, PluralityDecoder, estimate_confusion
from codeward.decoding.soft import SoftDecoder

FACTORS = (2.0, 5.0, 10.0)
SUCCESS_RATES = (0.9, 0.7)
SHARES = (0.1, 0.3, 0.45, 0.6)
HEAD = (
    "| code k | trigger | vote clean | paper clean / FF | scores clean / FF | votes clean / FF "
    "| paper attacked / det | scores attacked / det | votes attacked / det | bound | against paper |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def vary_triggers(
    triggered: NDArray[np.float64], clean: NDArray[np.float64], hit: NDArray[np.bool_], generator: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    yield "hard", triggered
    for factor in FACTORS:
        softened = triggered.copy()
        softened[:, hit] = log_softmax(triggered[:, hit] / factor, axis=-1)
        yield f"softened /{factor:g}", softened
    for success in SUCCESS_RATES:
        fails = hit & (generator.random(triggered.shape[:2]) >= success)
        yield f"failing S={success:g}", np.where(fails[:, :, None], clean, triggered)
    for share in SHARES:
        mixed = np.logaddexp(clean + np.log1p(-share), triggered + np.log(share))
        yield f"weak w={share:g}", np.where(hit[:, None], mixed, clean)


def measure(found: Decoded, labels: NDArray[np.int64], counted: NDArray[np.bool_] | None = None) -> tuple[float, float]:
    """Accuracy on all inputs, share flagged among the counted ones."""
    flagged = found.attack_probability > 0.5
    shown = flagged if counted is None else flagged[counted]
    return float((found.labels == labels).mean()), float(shown.mean())


def show(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3f} / {pair[1]:.3f}"


def compare_file(path: Path, seed: int, seconds: list[float]) -> Iterator[str]:
    with np.load(path, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}
    code = Code(arrays["code"])
    labels = arrays["labels"].astype(np.int64)
    truth = arrays["validation_labels"].astype(np.int64)
    attacks = [k for k in range(1, 10) if f"attack{k}_triggered_scores" in arrays]
    for k in attacks:
        validation, clean, triggered = (
            log_softmax(arrays[f"attack{k}_{part}_scores"].astype(np.float64), axis=-1)
            for part in ("validation", "clean", "triggered")
        )
        hit = code.pattern(arrays[f"attack{k}_attackers"].tolist())
        counted = labels != int(arrays[f"attack{k}_target"])
        begin = time.process_time()
        soft = SoftDecoder(code, seed=seed).fit(validation, truth)
        seconds.append(time.process_time() - begin)
        paper = BayesDecoder(code, estimate_confusion(validation.argmax(axis=2), truth, clean.shape[2]))
        votes = clean.argmax(axis=2)
        vote_clean = float((PluralityDecoder(code, clean.shape[2]).predict(votes) == labels).mean())
        paper_clean = measure(paper.decode(votes), labels)
        soft_clean = measure(soft.decode(clean), labels)
        hard_clean = measure(soft.decode_votes(votes), labels)
        for name, scores in vary_triggers(triggered, clean, hit, np.random.default_rng(seed)):
            votes = scores.argmax(axis=2)
            by_paper = measure(paper.decode(votes), labels, counted)
            by_soft = measure(soft.decode(scores), labels, counted)
            by_votes = measure(soft.decode_votes(votes), labels, counted)
            known = soft.calibration_.whole.apply(scores)[:, ~hit].sum(axis=1)
            bound = f"{(known.argmax(axis=1) == labels).mean():.3f}" if not hit.all() else "none: all hit"
            verdict = f"{by_soft[0] - by_paper[0]:+.3f}, {by_votes[0] - by_paper[0]:+.3f}"
            cells = [f"{path.stem} {k} ({int(hit.sum())}/{code.n_models} hit)", name, f"{vote_clean:.3f}"]
            cells += [show(pair) for pair in (paper_clean, soft_clean, hard_clean, by_paper, by_soft, by_votes)]
            yield "| " + " | ".join([*cells, bound, verdict]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, help="also write the table here (markdown)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(HEAD)
    lines = [HEAD]
    seconds: list[float] = []
    for path in options.files:
        for line in compare_file(path, options.seed, seconds):
            print(line, flush=True)
            lines.append(line)
    closing = f"\n{len(seconds)} fits, {min(seconds):.0f} to {max(seconds):.0f} s of processor time each."
    print(closing)
    if options.output:
        write_text_atomic(options.output, "\n".join([*lines, closing]) + "\n")


if __name__ == "__main__":
    main()
