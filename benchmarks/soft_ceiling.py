"""How much can be detected at all? Oracles that are trained on the real attack, on score files of real ensembles.

    python -m benchmarks.soft_ceiling scores/c.npz scores/d.npz [--output table.md] [--seed 0]

Files and triggers are those of ``soft.py``. Three oracles, gradient boosting on calibrated scores, are trained on one
half of the *evaluation* inputs with the real triggered scores and tested on the other half, both ways round. No decoder
may do that: what they miss is out of reach of any decoder that is no more flexible than they are.

- *all*: knows who attacks, the target, and the kind and strength of the trigger.
- *kind*: knows how many models are hit and the kind and strength of the trigger, but neither who nor the target.
- *nothing*: one test for every number of attackers, kind and strength of trigger, as a decoder has to be.

With r(x, t) = p(scores | x, t) / p(scores | clean) the likelihood ratio of one explanation, the best test against all
of them is their mean over the prior of (x, t) (Neyman and Pearson: it is the likelihood ratio of the mixture). One
classifier learns r, from real attacks moved to other patterns and targets: a hit model gets the scores that a really
hit model has on that input, with the classes of the two targets exchanged. For *nothing* the moved scores are softened
by a factor drawn log-uniformly from 1/2..16 in half of the attacks, and fail with S drawn from 0.6..1 in half of them.

Detection is the share of triggered inputs whose label is not the target above the 95% quantile of the clean inputs of
the same half: 5% false alarms with a threshold known exactly, which flatters the oracles once more. Labels when the
attackers are known: the argmax of the calibrated sum over the models that are not hit.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from benchmarks.soft import vary_triggers
from codeward._files import write_text_atomic
from codeward.codes import Code
from codeward.decoding.soft._explanations import list_explanations
from codeward.decoding.soft._learners import Calibration, calibrate, log_softmax

#: Attacks made from each triggered input for the oracles that do not know who attacks.
MOVES = 3
#: Explanations of a clean input (of those whose target is voted for) that such an oracle is trained on, on average.
FRAMES = 8
#: Fills up the sorted log-odds of a side; larger than any of them.
PAD = 100.0
PENALTY = 0.1
FALSE_ALARM_RATE = 0.05
HEAD = (
    "| code k | trigger | labels, attackers known | detected knowing all | knowing the kind | knowing nothing |\n"
    "|---|---|---|---|---|---|"
)

_Floats = NDArray[np.float64]


def describe(scores: _Floats, hit: NDArray[np.bool_], target: NDArray[np.int64]) -> _Floats:
    """Features of N inputs, calibrated scores (N, m, c), in the light of one explanation each: (N, m) and (N,).

    The models of a side are sorted and padded, so that all patterns look alike.
    """
    size, _, n_classes = scores.shape
    rows = np.arange(size)
    of_target = scores[rows, :, target]
    odds = of_target - np.log(-np.expm1(np.minimum(of_target, -1e-12)))
    is_target = target[:, None] == np.arange(n_classes)
    columns = [np.sort(np.where(side, odds, PAD), axis=1) for side in (hit, ~hit)]
    inner = np.where(hit[:, :, None], scores, 0.0).sum(axis=1)
    whole = scores.sum(axis=1)
    outer = whole - inner
    best = np.where(is_target, -np.inf, outer).argmax(axis=1)
    for total in (inner, outer, whole):
        rest = np.partition(np.where(is_target, -np.inf, total), -2, axis=1)
        columns.append(np.stack([total[rows, target] - rest[:, -1], rest[:, -1] - rest[:, -2]], axis=1))
    votes = scores.argmax(axis=2)
    surest = scores.max(axis=2)
    for side in (hit, ~hit):
        counts = [((votes == said[:, None]) & side).sum(axis=1) for said in (target, best)]
        columns.append(np.stack([*counts, np.where(side, surest, 0.0).sum(axis=1)], axis=1))
    columns.append(np.stack([inner[rows, best], hit.sum(axis=1)], axis=1))
    return np.concatenate(columns, axis=1)


def boost(features: _Floats, attacked: NDArray[np.bool_], seed: int) -> HistGradientBoostingClassifier:
    model = HistGradientBoostingClassifier(
        max_iter=100, learning_rate=0.1, max_leaf_nodes=15, l2_regularization=1.0, random_state=seed
    )
    return model.fit(features, attacked)


def share_detected(clean: _Floats, attacked: _Floats) -> float:
    return float((attacked > np.quantile(clean, 1 - FALSE_ALARM_RATE)).mean())


@dataclass(frozen=True)
class Attack:
    """A real attack on the evaluation inputs, through one trigger.

    ``raw`` are the log-probabilities (N, m, c) of the triggered inputs, ``clean`` those of the same inputs without; the
    trigger works in the ``working`` models (N, m) of the ``hit`` ones (m,).
    """

    raw: _Floats
    clean: _Floats
    working: NDArray[np.bool_]
    hit: NDArray[np.bool_]
    target: int
    labels: NDArray[np.int64]
    calibration: Calibration


def learn_the_attack(attack: Attack, train: NDArray[np.bool_], seed: int) -> Callable[[_Floats], _Floats]:
    """Oracle that knows all: a function from calibrated scores to log odds of this attack."""

    def see(scores: _Floats) -> _Floats:
        everywhere = np.full(scores.shape[0], attack.target)
        return describe(scores, np.broadcast_to(attack.hit, scores.shape[:2]), everywhere)

    clean = see(attack.calibration.apply(attack.clean[train]))
    attacked = see(attack.calibration.apply(attack.raw[train & (attack.labels != attack.target)]))
    features = np.concatenate([clean, attacked])
    model = boost(features, np.arange(features.shape[0]) >= clean.shape[0], seed)
    return lambda scores: np.asarray(model.decision_function(see(scores)))


def move_attack(
    attack: Attack, rows: NDArray[np.int64], members: NDArray[np.bool_], vary: bool, generator: np.random.Generator
) -> tuple[_Floats, NDArray[np.int64]]:
    """Move the attack on inputs ``rows`` to patterns ``members`` (M, m) and random targets; calibrated scores."""
    size, n_classes = rows.size, attack.raw.shape[2]
    goals = (attack.labels[rows] + generator.integers(1, n_classes, size)) % n_classes
    exchange = np.tile(np.arange(n_classes), (size, 1))
    exchange[:, attack.target] = goals
    exchange[np.arange(size), goals] = attack.target
    sources = generator.choice(np.flatnonzero(attack.hit), size=members.shape)
    held = attack.raw[rows[:, None], sources]
    held = np.take_along_axis(held, np.broadcast_to(exchange[:, None, :], held.shape), axis=2)
    works = members & attack.working[rows[:, None], sources]
    if vary:
        soft = generator.random(size) < 0.5
        factor = np.where(soft, np.exp(generator.uniform(np.log(0.5), np.log(16.0), size)), 1.0)
        held = log_softmax(held / factor[:, None, None])
        success = np.where(generator.random(size) < 0.5, 1.0, generator.uniform(0.6, 1.0, size))
        works &= generator.random(members.shape) < success[:, None]
    return attack.calibration.apply(np.where(works[:, :, None], held, attack.clean[rows])), goals


def list_candidates(votes: NDArray[np.int64], n_patterns: int, n_classes: int) -> tuple[NDArray[np.int64], ...]:
    """Every (input, pattern, target) whose target some model votes for."""
    said = np.zeros((votes.shape[0], n_classes), dtype=bool)
    np.put_along_axis(said, votes, True, axis=1)
    inputs, targets = np.nonzero(said)
    return np.repeat(inputs, n_patterns), np.tile(np.arange(n_patterns), inputs.size), np.repeat(targets, n_patterns)


def learn_the_mixture(
    attack: Attack,
    patterns: NDArray[np.bool_],
    prior: _Floats,
    vary: bool,
    train: NDArray[np.bool_],
    generator: np.random.Generator,
) -> Callable[[_Floats], _Floats]:
    """Oracle that knows neither who nor the target: from calibrated scores to log odds of the mixture over patterns."""
    n_classes = attack.raw.shape[2]
    rows = np.tile(np.flatnonzero(train & (attack.labels != attack.target)), MOVES)
    members = patterns[generator.choice(prior.size, size=rows.size, p=prior)]
    made, goals = move_attack(attack, rows, members, vary, generator)
    clean = attack.calibration.apply(attack.clean[train])
    candidates = list_candidates(clean.argmax(axis=2), prior.size, n_classes)
    # Patterns are thinned by their prior, so that all candidates weigh alike.
    kept = generator.choice(
        candidates[0].size, FRAMES * clean.shape[0], p=prior[candidates[1]] / prior[candidates[1]].sum()
    )
    of, x, t = (part[kept] for part in candidates)
    features = np.concatenate([describe(made, members, goals), describe(clean[of], patterns[x], t)])
    model = boost(features, np.arange(features.shape[0]) < rows.size, int(generator.integers(2**31)))

    def rate(scores: _Floats) -> _Floats:
        of, x, t = list_candidates(scores.argmax(axis=2), prior.size, n_classes)
        total = np.zeros(scores.shape[0])
        for part in np.array_split(np.arange(of.size), 1 + of.size // 100_000):
            ratio = np.exp(model.decision_function(describe(scores[of[part]], patterns[x[part]], t[part])))
            np.add.at(total, of[part], prior[x[part]] * ratio)
        return np.log(np.maximum(total, 1e-300))

    return rate


def study_file(path: Path, seed: int) -> Iterator[str]:
    with np.load(path, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}
    code = Code(arrays["code"])
    labels = arrays["labels"].astype(np.int64)
    explanations = list_explanations(code, np.full(4, 0.25))
    prior = np.exp(explanations.log_weights)
    for k in (k for k in range(1, 10) if f"attack{k}_triggered_scores" in arrays):
        validation, clean, triggered = (
            log_softmax(arrays[f"attack{k}_{part}_scores"].astype(np.float64))
            for part in ("validation", "clean", "triggered")
        )
        hit = code.pattern(arrays[f"attack{k}_attackers"].tolist())
        target = int(arrays[f"attack{k}_target"])
        calibration = calibrate(validation, arrays["validation_labels"].astype(np.int64), PENALTY)
        alike = explanations.patterns.sum(axis=1) == hit.sum()
        first = np.random.default_rng(seed).permutation(labels.size) % 2 == 0
        seen_clean = calibration.apply(clean)
        hard = Attack(triggered, clean, np.broadcast_to(hit, clean.shape[:2]), hit, target, labels, calibration)
        alarms = [
            learn_the_mixture(hard, explanations.patterns, prior, True, half, np.random.default_rng(seed))
            for half in (first, ~first)
        ]
        of_clean = [alarm(seen_clean[~half]) for alarm, half in zip(alarms, (first, ~first), strict=True)]
        for kind, scores in vary_triggers(triggered, clean, hit, np.random.default_rng(seed)):
            seen = calibration.apply(scores)
            attack = replace(hard, raw=scores, working=hit & (scores != clean).any(axis=2))
            found: list[list[float]] = [[], [], []]
            for half, alarm, quiet in zip((first, ~first), alarms, of_clean, strict=True):
                tested = ~half & (labels != target)
                found[2].append(share_detected(quiet, alarm(seen[tested])))
                knowing = learn_the_attack(attack, half, seed)
                found[0].append(share_detected(knowing(seen_clean[~half]), knowing(seen[tested])))
                if alike.any():
                    here = prior[alike] / prior[alike].sum()
                    generator = np.random.default_rng(seed)
                    sized = learn_the_mixture(attack, explanations.patterns[alike], here, False, half, generator)
                    found[1].append(share_detected(sized(seen_clean[~half]), sized(seen[tested])))
            known = (seen[:, ~hit].sum(axis=1).argmax(axis=1) == labels).mean()
            cells = [f"{path.stem} {k} ({int(hit.sum())}/{code.n_models} hit)", kind]
            cells.append("none: all hit" if hit.all() else f"{known:.3f}")
            cells += [f"{np.mean(shares):.3f}" if shares else "-" for shares in found]
            yield "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, help="also write the table here (markdown)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(HEAD)
    lines = [HEAD]
    for path in options.files:
        for line in study_file(path, options.seed):
            print(line, flush=True)
            lines.append(line)
    if options.output:
        write_text_atomic(options.output, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
