"""Defences of many models: noise, output codes, parts of the data, and codes of users."""

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from codeward.certificates import certify
from codeward.codes import Code, bagging_code, design, inspect, named_code, partition_code, shifted_hash_code
from codeward.data import Samples
from codeward.decoding import Assumptions, Decoder, VoteSet, make_decoder
from codeward.experiments.comparison._scene import Outcome, Scene
from codeward.training import vote

#: Models of the noise ensemble; its authors take 1,000.
NOISE_MODELS = 20
#: Standard deviation of the noise on pixels of 0..1.
NOISE = 0.2


def run_code(scene: Scene, code: Code, decoder: str, n_attackers: int, names: bool = False) -> Outcome:
    """Train the sub-models of a code and decode their votes."""
    ensemble = scene.train(code)
    validation, clean, triggered = ensemble.score_all([scene.validation, scene.clean, scene.triggered])
    given = VoteSet(vote(validation), scene.validation.labels, None, validation.astype(np.float16))
    assumptions = replace(Assumptions.uniform(n_attackers), n_attackers=n_attackers)
    made = make_decoder(decoder, code, given, assumptions, scene.n_classes)
    on_clean, on_triggered = (made.decode(_observe(made, scores)) for scores in (clean, triggered))
    kept, words = _guarantee(code, made, vote(clean), clean, scene)
    alarms = decoder not in ("plurality", "runoff")
    return Outcome(
        np.asarray(on_clean.labels),
        np.asarray(on_triggered.labels),
        on_clean.attack_probability if alarms else None,
        on_triggered.attack_probability if alarms else None,
        tuple(map(tuple, on_triggered.suspects)) if names else None,
        kept,
        words,
        code.n_models,
        code.n_models,
    )


def run_partition(scene: Scene, decoder: str = "plurality") -> Outcome:
    """Deep Partition Aggregation over users: one model a user, plurality (or a run-off)."""
    return run_code(scene, partition_code(len(scene.users), len(scene.users)), decoder, 1)


def run_shifted_hash(scene: Scene) -> Outcome:
    """Finite Aggregation over users: every user feeds three models, every model learns from a quarter of them."""
    rng = np.random.default_rng([scene.seed, 12])
    n_users = len(scene.users)
    return run_code(scene, shifted_hash_code(max(1, n_users // 3), 3, rng, n_users), "plurality", 1)


def run_bagging(scene: Scene) -> Outcome:
    """Bagging over users: random subsets of a third."""
    rng = np.random.default_rng([scene.seed, 8])
    return run_code(scene, bagging_code(len(scene.users), 15, len(scene.users) // 3, rng), "plurality", 1)


def run_noise(scene: Scene) -> Outcome:
    """Train models on noisy copies of everybody's data; a noisy input gets the most voted class.

    Weber et al.: RAB, S&P 2023. The certified radius bounds the Euclidean norm of all changes to the training data
    together, not the number of users: 5% of a user's images under a visible patch are far outside.
    """
    levels = NOISE * 255

    def disturb(samples: Samples, seed: list[int]) -> Samples:
        noise = np.random.default_rng(seed).normal(0, levels, samples.images.shape)
        return replace(samples, images=np.clip(np.rint(samples.images + noise), 0, 255).astype(np.uint8))

    votes: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for model in range(NOISE_MODELS):
        ensemble = scene.train_one(disturb(scene.pooled, [scene.seed, 9, model]))
        inputs = [disturb(samples, [scene.seed, 10, model]) for samples in (scene.clean, scene.triggered)]
        clean, triggered = ensemble.score_all(inputs)
        votes.append((vote(clean)[:, 0], vote(triggered)[:, 0]))
    labels = [_count(np.stack([pair[side] for pair in votes], axis=1), scene.n_classes) for side in (0, 1)]
    words = f"a bound on the norm of all changes together (noise {NOISE} of the pixel range); no number of users"
    return Outcome(labels[0], labels[1], guarantee=words, n_models=NOISE_MODELS, n_passes=NOISE_MODELS)


def run_output_code(scene: Scene) -> Outcome:
    """Error-correcting output codes: binary models on everybody's data, classes told apart by their code words.

    Dietterich, Bakiri, 1995. Every model sees every user, so a trigger is learned by all that its labels concern.
    """
    rng, n_bits = np.random.default_rng([scene.seed, 11]), 15
    words = rng.integers(0, 2, (n_bits, scene.n_classes))
    for bit in words:  # a bit that all classes share says nothing
        if bit.min() == bit.max():
            bit[rng.integers(scene.n_classes)] ^= 1
    said = []
    # Binary models are asked about images; the ten classes of their labels would be refused.
    asked = [replace(samples, labels=np.zeros_like(samples.labels)) for samples in (scene.clean, scene.triggered)]
    for bit in words:
        ensemble = scene.train(
            Code(np.ones((1, 1), dtype=bool)), [replace(scene.pooled, labels=bit[scene.pooled.labels])], n_classes=2
        )
        said.append([vote(scores)[:, 0] for scores in ensemble.score_all(asked)])
    labels = []
    for side in (0, 1):
        heard = np.stack([pair[side] for pair in said], axis=1)
        distance = (heard[:, :, None] != words[None]).sum(axis=1)
        labels.append(distance.argmin(axis=1).astype(np.int64))
    return Outcome(labels[0], labels[1], n_models=n_bits, n_passes=n_bits)


def run_codeward(scene: Scene, code: str, decoder: str, n_attackers: int) -> Outcome:
    """Codeward with a code and a decoder by name."""
    return run_code(scene, named_code(code), decoder, n_attackers, names=True)


def run_default(scene: Scene) -> Outcome:
    """Codeward as `codeward run` has it: a code that tracks two users with a margin of 3, alarms calibrated."""
    return run_code(scene, _tracking_code(len(scene.users)), "calibrated", 2, names=True)


@cache
def _tracking_code(n_users: int) -> Code:
    found = design(n_users, n_attackers=2, utilization=1 / 3, guarantee="track", margin=3, reproducible=True)
    return found.code


def _observe(decoder: Decoder, scores: NDArray[np.float32]) -> NDArray[np.float32] | NDArray[np.int64]:
    return scores if decoder.needs == "scores" else vote(scores)


def _guarantee(
    code: Code, decoder: Decoder, votes: NDArray[np.int64], scores: NDArray[np.float32], scene: Scene
) -> tuple[int, str]:
    """Say what holds of most clean inputs: the median certified radius of plurality, and what the code promises."""
    radius = certify(votes, code, threat="arbitrary", n_classes=scene.n_classes).radius
    half = int(np.median(radius))
    found = inspect(code, max_attackers=3)
    words = f"half of the inputs: no {half} users change the plurality vote (arbitrary)"
    if found.correct:
        words += f"; the code corrects {found.correct} and tracks {found.track} (deterministic, models right)"
    return max(half, found.correct), words


def _count(votes: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    """Return the most voted class of each input, ties to the smaller."""
    counts = (votes[:, :, None] == np.arange(n_classes)).sum(axis=1)
    return np.asarray(counts.argmax(axis=1), dtype=np.int64)
