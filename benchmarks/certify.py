"""Certificates: speed at the paper's size, against Finite Aggregation, and pointwise against collective.

Votes are simulated: every model is right with the stated chance, and inputs differ in difficulty, so that errors
are shared between models as they are on real data. Run: ``python -m benchmarks.certify``.
"""

import time

import numpy as np
from numpy.typing import NDArray

from codeward.certificates import (
    certified_accuracy,
    certify,
    certify_bagging,
    certify_collective,
    certify_finite_aggregation,
)
from codeward.codes import Code, bagging_code, named_code, partition_code, shifted_hash_code
from codeward.decoding import BayesDecoder, ConsensusDecoder, PluralityDecoder, estimate_confusion

CLASSES = 10


def draw_votes(
    rng: np.random.Generator, n_inputs: int, n_models: int, accuracy: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels, and votes whose chance to be right is ``accuracy`` on average and varies from input to input."""
    labels = rng.integers(0, CLASSES, n_inputs)
    chance = rng.beta(4 * accuracy, 4 * (1 - accuracy), n_inputs)
    wrong = (labels[:, None] + rng.integers(1, CLASSES, (n_inputs, n_models))) % CLASSES
    return np.where(rng.random((n_inputs, n_models)) < chance[:, None], labels[:, None], wrong), labels


def plain_loop(votes: NDArray[np.int64], code: Code, max_attackers: int) -> NDArray[np.int64]:
    """Certify as one would first write it: every attacker set, rival and input in turn."""
    from itertools import combinations

    radius = np.full(votes.shape[0], max_attackers)
    for index, row in enumerate(votes):
        label = int(np.bincount(row, minlength=CLASSES).argmax())
        attacks = ((k, x) for k in range(1, max_attackers + 1) for x in combinations(range(code.n_users), k))
        for k, attackers in attacks:
            hit = code.matrix[:, attackers].any(axis=1)
            after = (np.bincount(np.where(hit, t, row), minlength=CLASSES).argmax() for t in range(CLASSES))
            if any(int(value) != label for value in after):
                radius[index] = k - 1
                break
    return radius


def speed(rng: np.random.Generator) -> None:
    code = bagging_code(16, 15, 6, rng)
    print("10,000 inputs, n=16, m=15, c=10, k<=4, plurality, arbitrary")
    for what, votes in (
        ("accuracy 85%", draw_votes(rng, 10_000, 15, 0.85)[0]),
        ("accuracy 97%", draw_votes(rng, 10_000, 15, 0.97)[0]),
        ("all vote vectors random", rng.integers(0, CLASSES, (10_000, 15))),
    ):
        begin = time.perf_counter()
        certificates = certify(votes, code, max_attackers=4)
        seconds = time.perf_counter() - begin
        distinct = np.unique(votes, axis=0).shape[0]
        begin = time.perf_counter()
        slow = plain_loop(votes[:200], code, 4)
        ratio = (time.perf_counter() - begin) * 50 / seconds
        agree = bool((slow == certificates.radius[:200]).all())
        print(
            f"  {what:24s} {seconds:6.2f} s, {distinct} distinct; plain loop {ratio:,.0f} times slower, agrees: {agree}"
        )
    for name, decoder, threat in (
        ("consensus K=2", ConsensusDecoder(code, 2), "arbitrary"),
        ("bayes", None, "deterministic"),
    ):
        votes, labels = draw_votes(rng, 200, 15, 0.9)
        begin = time.perf_counter()
        chosen = decoder or BayesDecoder(code, estimate_confusion(votes, labels, CLASSES))
        certificates = certify(votes, code, threat=threat, decoder=chosen, max_attackers=2)
        print(f"  {name:24s} {time.perf_counter() - begin:6.2f} s for 200 inputs, k<=2")


def against_finite_aggregation(rng: np.random.Generator) -> None:
    print("\nshifted-hash codes, 1,000 inputs, c=10: exact radius against Finite Aggregation's")
    print("  groups spread  m=n  accuracy  mean FA  mean exact  larger  largest gain  flagged inexact  seconds")
    for groups, spread in ((8, 2), (8, 4), (16, 4), (25, 4), (12, 8)):
        code = shifted_hash_code(groups, spread, rng)
        for accuracy in (0.85, 0.97):
            votes, _ = draw_votes(rng, 1000, code.n_models, accuracy)
            published = certify_finite_aggregation(votes, code, CLASSES)
            begin = time.perf_counter()
            ours = certify(votes, code, time_limit=20)
            seconds = time.perf_counter() - begin
            gain = ours.radius - published
            print(
                f"  {groups:6d} {spread:6d} {code.n_models:4d} {accuracy:9.2f} {published.mean():8.3f} "
                f"{ours.radius.mean():11.3f} {100 * (gain > 0).mean():6.1f}% {gain.max():13d} "
                f"{100 * (~ours.exact).mean():15.1f}% {seconds:8.1f}"
            )
            assert (gain >= 0).all()


def by_code_and_decoder(rng: np.random.Generator) -> None:
    print("\nthe paper's codes, 300 inputs, accuracy 92%: % of all inputs right and certified for 0, 1, 2 users")
    print("  code      n  m  plurality           consensus K=1       consensus K=2       bayes (deterministic)")
    for name in ("a", "b", "c", "d", "e", "f", "g"):
        code = named_code(name)
        votes, labels = draw_votes(rng, 600, code.n_models, 0.92)
        decoders = {
            "plurality": PluralityDecoder(),
            "one": ConsensusDecoder(code, 1, n_classes=CLASSES),
            "two": ConsensusDecoder(code, 2, n_classes=CLASSES),
            "bayes": BayesDecoder(code, estimate_confusion(votes[300:], labels[300:], CLASSES)),
        }
        cells = []
        for decoder in decoders.values():
            found = certify(votes[:300], code, threat="deterministic", decoder=decoder, max_attackers=2)
            shares = certified_accuracy(found, labels[:300], max_attackers=2).accuracy
            cells.append(" / ".join(f"{100 * share:4.1f}" for share in shares))
        print(f"  ({name})      {code.n_users:2d} {code.n_models:2d}  " + "  ".join(cells))


def against_bagging(rng: np.random.Generator) -> None:
    print("\nrandom subsets, 1,000 inputs, accuracy 97%: these models' radius; bagging's (alpha = 0.001)")
    for n, m, row_weight in ((30, 50, 3), (30, 300, 3), (100, 300, 5)):
        code = bagging_code(n, m, row_weight, rng)
        votes, _ = draw_votes(rng, 1000, m, 0.97)
        binomial = certify_bagging(votes, n, row_weight, CLASSES, replacement=False)
        bound = certify(votes, code, method="bound")
        print(
            f"  n={n}, m={m}, r={row_weight}: bagging {np.maximum(binomial, 0).mean():.3f} "
            f"(abstains {100 * (binomial < 0).mean():.1f}%), sound bound {bound.radius.mean():.3f}",
            end="",
        )
        if n == 30:
            exact = certify(votes[:200], code, method="patterns", max_attackers=5)
            few = (exact.radius.mean(), bound.radius[:200].mean(), np.clip(binomial[:200], 0, 5).mean())
            print("; first 200 inputs, k<=5: exact {:.3f}, bound {:.3f}, bagging {:.3f}".format(*few), end="")
        print()


def collective(rng: np.random.Generator) -> None:
    print(
        "\n2,000 inputs, accuracy 90%: outputs that k users can change, one by one (pointwise) and at once (collective)"
    )
    codes = {
        "partition, n=16, m=16": partition_code(16, 16),
        "random rows, n=16, m=15, r=4": bagging_code(16, 15, 4, rng),
        "shifted hash 8 x 2, n=m=16": shifted_hash_code(8, 2, rng),
    }
    for name, code in codes.items():
        votes, labels = draw_votes(rng, 2000, code.n_models, 0.9)
        for k in (1, 2, 3):
            result = certify_collective(votes, code, k, labels=labels)
            print(
                f"  {name:30s} k={k}: right {result.n_counted}, pointwise {result.pointwise}, "
                f"collective {result.changed} ({100 * (1 - result.changed / max(1, result.pointwise)):.0f}% fewer)"
            )


def main(arguments: list[str] | None = None) -> int:
    del arguments
    generator = np.random.default_rng(0)
    speed(generator)
    against_finite_aggregation(generator)
    by_code_and_decoder(generator)
    against_bagging(generator)
    collective(generator)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
