"""Defences of many models: noise, output codes, parts of the data, and codes of users."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import UnmetError
from codeward._files import write_atomic
from codeward._progress import Shown
from codeward.certificates import certify
from codeward.codes import Code, bagging_code, design, inspect, named_code, partition_code, shifted_hash_code
from codeward.data import Samples, count_classes, render
from codeward.decoding import (
    Assumptions,
    BayesDecoder,
    ConsensusDecoder,
    Decoder,
    NearestDecoder,
    PluralityDecoder,
    RunOffDecoder,
    VoteSet,
    make_decoder,
)
from codeward.experiments.comparison._scene import Outcome, Scene, train_scenes
from codeward.runs import round_scores
from codeward.training import vote

#: Models of the noise ensemble; its authors take 1,000.
NOISE_MODELS = 20
#: Standard deviation of the noise on pixels of 0..1.
NOISE = 0.2


@dataclass(frozen=True)
class CodedDefence:
    """A code of users and a decoder. What trains is apart from what decodes: votes are kept in the scene's folder.

    Attributes
    ----------
    make_code : callable
        From the number of users and a seed to the code.
    decoder : str
        As `codeward.decoding.make_decoder` knows it.
    n_attackers : int
        What the decoder expects at most.
    scores : bool
        Whether a decoder of this code reads class scores.
    names : bool
        Whether suspects are counted.
    """

    make_code: Callable[[int, int], Code]
    decoder: str
    n_attackers: int
    scores: bool = False
    names: bool = False

    def __call__(self, scene: Scene) -> Outcome:
        """Train the sub-models (or read their votes), decode, and compare with what was certified."""
        code = self.code(scene)
        return decode_votes(scene, code, collect_votes(scene, [self])[code.digest], self)

    def code(self, scene: Scene) -> Code:
        """Return the code for the scene's users."""
        return self.make_code(len(scene.users), scene.seed)


def collect_votes(scene: Scene, defences: Sequence[CodedDefence]) -> dict[str, dict[str, NDArray[Any]]]:
    """Return by code what its models say of validation, clean and triggered inputs, and of the last without the attack.

    Class scores in half precision where a decoder reads them, else votes. All models that are missing are trained in
    one go.
    """
    codes = {code.digest: (code, one.scores) for one in defences for code in [one.code(scene)]}
    found = {digest: kept for digest in codes if (kept := _read_votes(scene, digest)) is not None}
    missing = {digest: pair for digest, pair in codes.items() if digest not in found}
    trained = train_scenes([task for code, _ in missing.values() for task in _tasks(scene, code)])
    for (digest, (_, with_scores)), hit, free in zip(missing.items(), trained[::2], trained[1::2], strict=True):
        heard = scene.score(hit, [scene.validation, scene.clean, scene.triggered])
        heard += free.score_all([scene.triggered])
        names = ("validation", "clean", "triggered", "unattacked")
        kept = {
            name: round_scores(scores) if with_scores else vote(scores).astype(np.int16)
            for name, scores in zip(names, heard, strict=True)
        }
        if scene.folder is not None:
            write_atomic(_votes_file(scene, digest), partial(_write_arrays, kept))
        found[digest] = kept
    return found


def train_ahead(scenes: Sequence[Scene], defences: Sequence[CodedDefence], alone: bool, progress: Shown) -> None:
    """Train the models of all scenes in one go and leave them in the store, where `collect_votes` finds them.

    Parameters
    ----------
    scenes : sequence of Scene
        They share a store.
    defences : sequence of CodedDefence
        Those whose votes of a scene are kept need no models.
    alone : bool
        Also the one model on everybody's data, which the defences around a single model start from.
    progress : Progress or bool, optional
    """
    tasks = [
        task
        for scene in scenes
        for code in {code.digest: code for one in defences for code in [one.code(scene)]}.values()
        if _read_votes(scene, code.digest) is None
        for task in _tasks(scene, code)
    ]
    tasks += [(scene, scene.everybody, scene.users) for scene in scenes if alone]
    train_scenes(tasks, progress)


def _tasks(scene: Scene, code: Code) -> list[tuple[Scene, Code, Sequence[Samples]]]:
    """Return what a code's models are trained on: what users hand in, and the same without the attack.

    Most models of the second are those of the first, and are trained once.
    """
    return [(scene, code, scene.users), (scene, code, scene.honest)]


def decode_votes(scene: Scene, code: Code, heard: dict[str, NDArray[Any]], defence: CodedDefence) -> Outcome:
    """Decode what the models of a code say; no model is needed. Nothing is certified without what they said before."""
    votes = {
        name: vote(said.astype(np.float32)) if said.ndim == 3 else said.astype(np.int64) for name, said in heard.items()
    }
    made = make_fitted(scene, code, heard["validation"], defence)
    said = {name: heard[name].astype(np.float32) if made.needs == "scores" else votes[name] for name in heard}
    with scene.inferring():
        on_clean, on_triggered = made.decode(said["clean"]), made.decode(said["triggered"])
    plain = PluralityDecoder(code, scene.n_classes)
    labels = [  # where the consensus decoder has no verdict, the plurality stands for it
        np.where(decoded.labels < 0, plain.predict(votes[name]), decoded.labels)
        for name, decoded in (("clean", on_clean), ("triggered", on_triggered))
    ]
    alarms = defence.decoder not in ("plurality", "runoff")
    certified = broken = None
    if scene.attackers and "unattacked" in heard:
        certified, broken = check_certificates(scene, code, made, said, votes)
    kept, words = _guarantee(code, votes["clean"], scene, getattr(made, "nearest_", None))
    return Outcome(
        labels[0],
        labels[1],
        on_clean.attack_probability if alarms else None,
        on_triggered.attack_probability if alarms else None,
        tuple(map(tuple, on_triggered.suspects)) if defence.names else None,
        kept,
        words,
        certified,
        broken,
        code.n_models,
        code.n_models,
    )


def make_fitted(scene: Scene, code: Code, heard: NDArray[Any], defence: CodedDefence) -> Decoder:
    """Return the defence's decoder, fitted on what models say of the validation inputs."""
    given = VoteSet(_vote(heard), scene.validation.labels, None, heard if heard.ndim == 3 else None)
    counts = count_classes((user.labels for user in scene.users), scene.n_classes)
    assumptions = Assumptions.uniform(defence.n_attackers, n_attackers=defence.n_attackers, class_counts=counts)
    return make_decoder(defence.decoder, code, given, assumptions, scene.n_classes)


def check_certificates(
    scene: Scene, code: Code, decoder: Decoder, said: dict[str, NDArray[Any]], votes: dict[str, NDArray[np.int64]]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Certify what the models say without the attack, and tell where the attack changed a certified label.

    Under *arbitrary*: plurality (also in place of a fitted decoder on a code with little margin), run-off, consensus.
    Bayes and fitted decoders (by what the votes determine, Proposition 43) are certified under *deterministic*, so an
    input counts where all hit models say one target.
    Models that no attacker reaches must have said the same both times, or nothing could be certified at all.

    Raises
    ------
    UnmetError
        Where a model that no attacker reaches changed.
    """
    hit, k = code.pattern(scene.attackers), len(scene.attackers)
    free, attacked = votes["unattacked"], votes["triggered"]
    if (free != attacked)[:, ~hit].any():
        raise UnmetError("a model that no attacker reaches answers otherwise than without the attack")
    applies = np.ones(len(free), dtype=bool)
    known: dict[str, Any] = {"n_classes": scene.n_classes, "max_attackers": k}
    judge: Decoder = decoder
    proved = decoder if isinstance(decoder, BayesDecoder) else getattr(decoder, "nearest_", None)
    if proved is not None:
        applies = (attacked[:, hit] == attacked[:, [int(np.argmax(hit))]]).all(axis=1)
        radius = certify(free, code, threat="deterministic", decoder=proved, max_attackers=k).radius
    elif isinstance(decoder, ConsensusDecoder):
        radius = certify(
            free, code, decoder="consensus", n_attackers=decoder.n_attackers, n_errors=decoder.n_errors, **known
        ).radius
    elif isinstance(decoder, RunOffDecoder):
        radius = certify(said["unattacked"], code, decoder="runoff", **known).radius
    else:
        judge = PluralityDecoder(code, scene.n_classes)
        radius = certify(free, code, **known).radius
    read = said if judge.needs == "scores" else votes
    before, after = (judge.decode(read[name]).labels for name in ("unattacked", "triggered"))
    certified = applies & (radius >= k) & (before == scene.triggered.labels)
    return certified, certified & (after != before)


def _vote(heard: NDArray[Any]) -> NDArray[np.int64]:
    return vote(heard.astype(np.float32)) if heard.ndim == 3 else heard.astype(np.int64)


def _votes_file(scene: Scene, digest: str) -> Path:
    assert scene.folder is not None
    return scene.folder / "votes" / f"{scene.name}-{digest[:12]}-seed{scene.seed}.npz"


def _read_votes(scene: Scene, digest: str) -> dict[str, NDArray[Any]] | None:
    if scene.folder is None or not (file := _votes_file(scene, digest)).is_file():
        return None
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _write_arrays(arrays: dict[str, NDArray[Any]], out: IO[bytes]) -> None:
    np.savez_compressed(out, allow_pickle=False, **arrays)


def partition_users(n_users: int, seed: int) -> Code:
    """One model a user: Deep Partition Aggregation over users."""
    return partition_code(n_users, n_users)


def hash_users(n_users: int, seed: int) -> Code:
    """Finite Aggregation over users: every user feeds three models, every model learns from a quarter of them."""
    return shifted_hash_code(max(1, n_users // 3), 3, np.random.default_rng([seed, 12]), n_users)


def bag_users(n_users: int, seed: int) -> Code:
    """Bagging over users: 15 random subsets of a third."""
    return bagging_code(n_users, 15, n_users // 3, np.random.default_rng([seed, 8]))


def take_named(n_users: int, seed: int, name: str) -> Code:
    """One of the codes that have a name; they have 12 users."""
    return named_code(name)


@cache
def design_tracking(n_users: int, seed: int) -> Code:
    """Design the smallest code that tracks two users with a margin of 3."""
    return design(n_users, n_attackers=2, utilization=1 / 3, guarantee="track", margin=3, reproducible=True).code


def run_noise(scene: Scene) -> Outcome:
    """Train models on noisy copies of everybody's data; a noisy input gets the most voted class.

    Weber et al.: RAB, S&P 2023. The certified radius bounds the Euclidean norm of all changes to the training data
    together, not the number of users: 5% of a user's images under a visible patch are far outside.
    """
    levels = NOISE * 255

    def disturb(samples: Samples, seed: list[int]) -> Samples:
        noise = np.random.default_rng(seed).normal(0, levels, samples.images.shape)
        return replace(samples, images=np.clip(np.rint(samples.images + noise), 0, 255).astype(np.uint8))

    said: list[list[NDArray[np.int64]]] = []
    noisy = [disturb(scene.pooled, [scene.seed, 9, model]) for model in range(NOISE_MODELS)]
    for model, ensemble in enumerate(scene.train_each(noisy)):
        inputs = [disturb(samples, [scene.seed, 10, model]) for samples in (scene.clean, scene.triggered)]
        said.append([vote(scores)[:, 0] for scores in scene.score(ensemble, inputs)])
    votes = [np.stack(one, axis=1) for one in zip(*said, strict=True)]
    plain = PluralityDecoder(n_classes=scene.n_classes)
    moved = np.sqrt(sum(_distance(user, honest) for user, honest in zip(scene.users, scene.honest, strict=True)))
    words = (
        f"changes of norm {np.median(radius_of_noise(votes[0])):.2f} to all training pixels (0..1) together, for half "
        f"of the inputs; the attack's is {moved:.0f}. No number of users"
    )
    clean, triggered = (plain.predict(one) for one in votes)
    return Outcome(clean, triggered, guarantee=words, n_models=NOISE_MODELS, n_passes=NOISE_MODELS)


def _distance(one: Samples, other: Samples) -> float:
    """Squared Euclidean distance of two users' images, pixels of 0..1."""
    return float(((render(one).astype(np.float64) - render(other)) ** 2).sum()) if one is not other else 0.0


def radius_of_noise(votes: NDArray[np.int64], noise: float = NOISE, doubt: float = 0.001) -> NDArray[np.float64]:
    r"""Norm of the changes to the training data that leave the most voted class, by RAB's theorem, shape (N,).

    :math:`\sigma \Phi^{-1}(p)` with p the lower Clopper-Pearson bound of that class's share among models trained on
    noise of deviation :math:`\sigma`; 0 where p is at most a half.

    Examples
    --------
    >>> radius_of_noise(np.array([[1] * 20, [1] * 12 + [0] * 8])).round(2)
    array([0.11, 0.  ])
    """
    from scipy.stats import beta, norm

    n_models = votes.shape[1]
    most = (votes[:, :, None] == votes[:, None, :]).sum(axis=1).max(axis=1)
    share = beta.ppf(doubt, most, n_models - most + 1)
    return np.asarray(noise * np.maximum(norm.ppf(share), 0.0))


def run_output_code(scene: Scene) -> Outcome:
    """Error-correcting output codes: binary models on everybody's data, classes told apart by their code words.

    Dietterich, Bakiri, 1995. Every model sees every user, so a trigger is learned by all that its labels concern.
    """
    words = draw_words(scene.n_classes, np.random.default_rng([scene.seed, 11]))
    # Binary models are asked about images; the ten classes of their labels would be refused.
    asked = [replace(samples, labels=np.zeros_like(samples.labels)) for samples in (scene.clean, scene.triggered)]
    halves = [replace(scene.pooled, labels=bit[scene.pooled.labels]) for bit in words]
    said = [
        [vote(scores)[:, 0] for scores in scene.score(ensemble, asked)]
        for ensemble in scene.train_each(halves, n_classes=2)
    ]
    clean, triggered = (nearest_word(np.stack(one, axis=1), words) for one in zip(*said, strict=True))
    return Outcome(clean, triggered, n_models=len(words), n_passes=len(words))


def draw_words(n_classes: int, rng: np.random.Generator, n_bits: int = 15) -> NDArray[np.int64]:
    """Draw a code word for each class, a model's bits in a row, shape (bits, classes); no bit is shared by all."""
    words = rng.integers(0, 2, (n_bits, n_classes))
    for bit in words:
        if bit.min() == bit.max():
            bit[rng.integers(n_classes)] ^= 1
    return words


def nearest_word(heard: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class whose word is nearest to what the models say (N, bits), the smaller on a tie."""
    return np.asarray((heard[:, :, None] != words[None]).sum(axis=1).argmin(axis=1), dtype=np.int64)


def _guarantee(code: Code, votes: NDArray[np.int64], scene: Scene, nearest: NearestDecoder | None) -> tuple[int, str]:
    """Say what holds: of a fitted decoder what votes determine, else of the vote on half of the clean inputs."""
    if nearest is not None:
        k = nearest.n_attackers
        return k, f"{k} users with one target (deterministic), where at most {nearest.n_errors} model errs without them"
    radius = certify(votes, code, threat="arbitrary", n_classes=scene.n_classes).radius
    half = int(np.median(radius))
    found = inspect(code, max_attackers=3)
    words = f"half of the inputs: no {half} users change the plurality vote (arbitrary)"
    if found.correct:
        words += f"; the code corrects {found.correct} and tracks {found.track} (deterministic, models right)"
    return max(half, found.correct), words
