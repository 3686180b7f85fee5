"""From validation inputs to a fitted decoder: planted ones are left out, attacks simulated on the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code, pack_words, unpack_words
from codeward.decoding._assumptions import check_labels, check_votes
from codeward.decoding._attacker_sets import AttackerSets, Users
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import have_agreed
from codeward.decoding._nearest import ClassShares
from codeward.decoding.soft._attack_draws import Family, SimulatedAttacks, Success, draw_attacks
from codeward.decoding.soft._explanations import (
    Explanations,
    ModelEvidence,
    RatioModels,
    Sums,
    TrainingSet,
    average_ratios,
    learn_ratios,
    list_explanations,
)
from codeward.decoding.soft._learners import N_FOLDS
from codeward.decoding.soft._opinions import Part, Tuned, choose_threshold, fit_pool, list_opinions, sum_labels

#: Share of the clean inputs on scores, those least like attacks, that have a say in the label: poisoned validation
#: inputs are among the others. Held-out validation inputs (CIFAR-10: codes c, d and btc2412, MNIST: btc2412), clean or
#: with simulated triggers, change by -0.3 to 0.8 points; where a tenth of the fit's are poisoned, 0 to 2 points more of
#: the two users' triggered ones are right.
QUIET = 0.8
#: Fewest validation inputs a fit accepts.
LEAST_INPUTS = 30
#: Attacks simulated on one validation input at most. More cost time and taught nothing: with 134 inputs of the digits'
#: models, labels and alarms on the other inputs were the same within their error for 12 and for 60.
ATTACKS_EACH = 30
#: Draws of attacks that ratios are learned from, each with trees of its own; their mean is taken. Another seed of the
#: fit then matters less: four had 86.5% of three users' held-out triggers right (CIFAR-10, btc2412, repeat 1), the
#: worst 82.4, where with one draw of 70 trees they had 79.5 and 68.8 (docs/development/soft-decoder.md).
N_FORESTS = 3
#: Most simulated attacks the reading of the label is chosen on.
MOST_CHECKS = 4000
#: Fewest simulated attacks of a kind that is compared for itself.
LEAST_KIND = 40
#: Log odds by which a threshold is above the gap that it is set on: a gap must not pass it by rounding.
ROUNDING = 1e-6
#: Fewest inputs of one kind that are taken for planted, and their least share of all. Naive Bayes on digits, IID, had
#: one pattern on 7 of 599 honest inputs; 2% planted cost a designed code 1.4 points, the default code nothing
#: (docs/development/soft-decoder.md has both, and the honest case that each condition here is for).
LEAST_PLANTED, LEAST_SHARE = 5, 0.02
#: Share of the inputs on which models outside a pattern must be right. Of models that are right on 30 to 44% (CIFAR-10
#: of 8 x 8 pixels, 96 ensembles), three of six stood alone with a class on up to 128 of 5,000 clean inputs.
RELIABLE = 2 / 3
#: Fewest classes, and fewest models inside and outside a pattern. With three outside (code d) honest models on tables
#: of three classes stood alone with up to 4% of the inputs, with two classes up to 29%, on other codes up to 9%.
LEAST_CLASSES, LEAST_MODELS = 3, 4
#: How many times as many inputs must have a pattern as have any smaller number, half or more, of the models outside it
#: wrong: clean inputs that are hard for these come in all degrees. And as many as have any pattern that neither holds
#: it nor lies in it: where users know unlike things, others stand alone with something, too.
STANDING_OUT, ALONE = 1.5, 3
#: Least variety of what models outside say on inputs whose users are named, as a share of that of all other labels:
#: inputs of one class or two may be hard for them. Planted at random it is 0.9 and more.
VARIED = 0.65


@dataclass(frozen=True)
class Material:
    """Clean validation inputs and how to attack and to weigh them.

    Attributes
    ----------
    inputs : ndarray, shape (N, m) or (N, m, c)
        Votes or scores.
    votes : ndarray of int64, shape (N, m)
    labels : ndarray of int64, shape (N,)
    folds : ndarray of int64, shape (N,)
        Fold of each input, 0..`N_FOLDS` - 1.
    n_classes : int
    success : Success
        How often the simulated triggers work.
    quiet : float
        Share of the clean inputs, those least like attacks, that have a say in the label.
    overwrite : callable
        Inputs of simulated attacks.
    weigh : callable
        ModelEvidence of inputs made from the given validation rows, by maps that never saw those rows.
    """

    inputs: NDArray[Any]
    votes: NDArray[np.int64]
    labels: NDArray[np.int64]
    folds: NDArray[np.int64]
    n_classes: int
    success: Success
    quiet: float
    overwrite: Callable[[SimulatedAttacks], NDArray[Any]]
    weigh: Callable[[NDArray[Any], NDArray[np.int64]], ModelEvidence]


@dataclass(frozen=True)
class PlantedInputs:
    """Inputs of one label that only the models of some users gave.

    Attributes
    ----------
    rows : ndarray of int64, shape (R,)
        Which of the inputs.
    target : int
        Their label.
    users : tuple of tuple of int
        The sets of users who feed just these models: one of them, or several sets that the code does not tell apart.
        Empty where the inputs may be clean ones of a class or two that are hard for all other models.

    Examples
    --------
    >>> PlantedInputs(np.array([3, 8]), 1, ((0, 5),)).target
    1
    """

    rows: NDArray[np.int64]
    target: int
    users: tuple[Users, ...]


def find_planted(
    votes: ArrayLike,
    labels: ArrayLike,
    code: Code,
    max_attackers: int,
    class_counts: ArrayLike,
    n_classes: int,
) -> tuple[PlantedInputs, ...]:
    r"""Find labelled inputs that show an attack which their own labels agree with.

    From an input with a trigger, labelled with the trigger's target t, a fit learns that such votes are clean and t is
    right. But its votes give it away. All models that the attackers reach say t and no other does: the models that say
    the label are a hit pattern, the same on every such input. On clean inputs other models err each time.

    Inputs count as planted where at least `LEAST_PLANTED` of them, `LEAST_SHARE` of all and half of those on which as
    many models say t have the same pattern of at most k users. Then those go, too, on which one model more or
    less does.

    Nothing is found where the models outside may be the ones to blame. They must have seen t, which models do not say
    on its clean inputs otherwise (`ClassShares`), and be right on `RELIABLE` of the inputs. The pattern, all of them
    wrong, must be `STANDING_OUT` times as frequent as any number of them from half on, and `ALONE` times as frequent as
    any pattern that crosses it. And they must differ in two models at least from every pattern of k users: else these
    could attack clean inputs of t, and others look guilty. Where inputs have two labels in all, nothing is found: all
    models that err say the same.

    Threat model: *deterministic*, triggers that work in nearly all models they reach. Nothing is proved: who plants
    fewer inputs, or triggers that often fail, is not found, and who chooses which models obey (updates) can make others
    look guilty. What no validation data can undo is Proposition 43 of docs/theory.md.

    Parameters
    ----------
    votes : array_like of int, shape (N, m)
    labels : array_like of int, shape (N,)
        As they were handed in.
    code : Code
    max_attackers : int
        k.
    class_counts : array_like of int, shape (n, c)
        Samples of every class that each user handed in.
    n_classes : int
        Number of classes c.

    Returns
    -------
    tuple of PlantedInputs
        The largest first.

    Examples
    --------
    >>> code = Code(np.repeat(np.eye(3, dtype=int), 4, axis=0))  # four models a user
    >>> labels = np.arange(96) % 3
    >>> votes = np.tile(labels[:, None], code.n_models)
    >>> stamped = np.flatnonzero(labels != 1)[:8]  # labelled 1, as the first user's models say
    >>> votes[stamped, :4] = labels[stamped] = 1
    >>> [found] = find_planted(votes, labels, code, 1, [[50, 50, 50]] * 3, n_classes=3)
    >>> found.rows.size, found.target, found.users
    (8, 1, ((0,),))
    """
    shares = ClassShares.count(code, class_counts, n_classes)
    sets = list_explanations(code, np.append(0.0, np.full(max_attackers, 1 / max(max_attackers, 1)))).sets
    checked = check_votes(votes, code.n_models, n_classes)
    truth = check_labels(labels, len(checked), n_classes)
    says_label = checked == truth[:, None]
    found: list[PlantedInputs] = []
    if np.unique(truth).size < LEAST_CLASSES:
        return ()
    counted = _count_patterns(says_label, truth, sets)
    for one in counted:
        if one.count < max(LEAST_PLANTED, LEAST_SHARE * len(truth)):
            continue
        rows, outside = np.flatnonzero(truth == one.target), ~one.inside
        says = says_label[rows]
        alike = (says.sum(axis=1) == one.inside.sum()).sum()
        rival = max((other.count for other in counted if other.crosses(one)), default=0)
        blamed = np.bitwise_count(sets.words ^ pack_words(outside[None])).sum(axis=1).min() <= 1
        trusted = shares.seen[outside, one.target].all() and says_label[:, outside].mean() >= RELIABLE
        alone = one.count >= max(alike / 2, ALONE * rival) and _stands_out(says, one.inside)
        if alone and trusted and not blamed:
            off = (says != one.inside).sum(axis=1)
            named = _measure_variety(checked[np.ix_(rows[off == 0], outside)], truth, one.target, n_classes) >= VARIED
            users = _list_users(sets, one.place) if named else ()
            found.append(PlantedInputs(rows[off <= 1], one.target, users))
    return tuple(sorted(found, key=lambda one: -one.rows.size))


@dataclass(frozen=True)
class _PatternCount:
    """How many inputs of one label the models of a hit pattern, and no other, give that label."""

    target: int
    inside: NDArray[np.bool_]
    count: int
    place: int

    def crosses(self, other: "_PatternCount") -> bool:
        """Tell whether neither pattern lies in the other."""
        return bool((self.inside & ~other.inside).any() and (other.inside & ~self.inside).any())


def _count_patterns(says_label: NDArray[np.bool_], truth: NDArray[np.int64], sets: AttackerSets) -> list[_PatternCount]:
    """Count the hit patterns that models which say the label have, where there are enough models on both sides."""
    places = {word.tobytes(): place for place, word in reversed(list(enumerate(sets.words)))}
    listed = []
    for target in np.unique(truth):
        words, counts = np.unique(pack_words(says_label[truth == target]), axis=0, return_counts=True)
        for word, inside, count in zip(words, unpack_words(words, says_label.shape[1]), counts, strict=True):
            place = places.get(word.tobytes())
            if place is not None and min(inside.sum(), (~inside).sum()) >= LEAST_MODELS:
                listed.append(_PatternCount(int(target), inside, int(count), place))
    return listed


def _stands_out(says_label: NDArray[np.bool_], inside: NDArray[np.bool_]) -> bool:
    """Tell whether inputs to which all models inside give the label, and no other, are a sort apart."""
    outside = ~inside
    wrong = (~says_label[np.ix_(says_label[:, inside].all(axis=1), outside)]).sum(axis=1)
    number = np.bincount(wrong, minlength=int(outside.sum()) + 1)
    return bool(number[-1] >= STANDING_OUT * number[len(number) // 2 : -1].max())


def _measure_variety(votes: NDArray[np.int64], truth: NDArray[np.int64], target: int, n_classes: int) -> float:
    """How likely two inputs get unlike labels of most models, for such a chance among inputs of all other labels."""
    said = np.bincount([np.bincount(row, minlength=n_classes).argmax() for row in votes], minlength=n_classes)
    others = np.bincount(truth[truth != target], minlength=n_classes)

    def unlike(count: NDArray[np.int64]) -> float:
        total = int(count.sum())
        return 1 - float((count * (count - 1)).sum()) / max(1, total * (total - 1))

    return unlike(said) / max(unlike(others), 1e-9)


def _list_users(sets: AttackerSets, pattern: int) -> tuple[Users, ...]:
    listed = sets.users[sets.starts[pattern] : sets.starts[pattern + 1]]
    return tuple(tuple(int(user) for user in one if user >= 0) for one in listed)


def tune(
    material: Material,
    paper: BayesDecoder,
    explanations: Explanations,
    families: tuple[Family, ...],
    n_simulated: int,
    false_alarm_rate: float,
    generator: np.random.Generator,
) -> Tuned:
    """Learn the ratios from simulated attacks, then set the alarm on clean inputs, the label on them and fresh attacks.

    Alarm and label are set on what ratios say that never saw the input, one pair for each fold.
    """
    n_inputs, labels = material.labels.size, material.labels
    check_settings(false_alarm_rate, n_simulated, n_inputs)

    def attack(size: int) -> SimulatedAttacks:
        rows = generator.permutation(np.arange(size) % n_inputs)
        prior = np.exp(explanations.log_weights)
        known = (labels, rows, explanations.patterns, prior, material.n_classes)
        return draw_attacks(*known, families, material.success, generator)

    # 1. RatioModels of each fold, without it, and of everything; the mean of those from several draws of attacks.
    n_simulated = min(n_simulated, ATTACKS_EACH * n_inputs)
    clean = material.weigh(material.inputs, np.arange(n_inputs))

    def learn(attacks: SimulatedAttacks) -> list[RatioModels]:
        attacked = material.weigh(material.overwrite(attacks), attacks.rows)
        whole = TrainingSet(clean, labels, attacked, attacks.patterns, attacks.targets)
        folds = material.folds
        without = [whole.take(folds != fold, folds[attacks.rows] != fold) for fold in range(N_FOLDS)]
        return learn_ratios([*without, whole], explanations, generator)

    forests = [learn(attack(n_simulated)) for _ in range(N_FORESTS)]
    *held_out, ratios = [average_ratios(each) for each in zip(*forests, strict=True)]

    # 2. What they say of the clean inputs and of fresh attacks on them.
    of_clean = _sum_held_out(clean, material.folds, explanations, held_out)
    attacks = attack(min(n_simulated, MOST_CHECKS, ATTACKS_EACH * n_inputs // 2))
    made = material.overwrite(attacks)
    attacked = material.weigh(made, attacks.rows)
    of_attacked = _sum_held_out(attacked, material.folds[attacks.rows], explanations, held_out)
    strata = sort_attacks(attacks, explanations, attacked)

    # 3. The alarm.
    gaps = quieten(of_clean.gap, material.votes)
    threshold = choose_threshold(gaps, false_alarm_rate)

    # 4. The label, on clean inputs and each kind of attack.
    def gather(sums: Sums, votes: NDArray[np.int64], truth: NDArray[np.int64], rows: NDArray[np.int64]) -> Part:
        mine, by_votes = sums.take(rows), paper.decode(votes[rows]).label_probability
        return Part(list_opinions(mine, by_votes, votes[rows]), mine.gap, truth[rows])

    quiet = np.flatnonzero(gaps <= np.quantile(gaps, material.quiet))
    parts = [gather(of_clean, material.votes, labels, quiet)]
    parts += [gather(of_attacked, attacked.votes, labels[attacks.rows], np.flatnonzero(stratum)) for stratum in strata]
    return Tuned(ratios, threshold, fit_pool(parts))


def quieten(gaps: NDArray[np.float64], votes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give inputs on which all models agree the least gap there is: they are no alarms, whatever is said of them."""
    return np.where(have_agreed(votes), gaps.min(), gaps)


def _sum_held_out(
    evidence: ModelEvidence, folds: NDArray[np.int64], explanations: Explanations, held_out: list[RatioModels]
) -> Sums:
    """Sum over explanations by the ratios that did not see the input's fold, without the table."""
    n_classes = evidence.log_posteriors.shape[2]
    attacked, clean = np.empty((len(evidence), n_classes)), np.empty((len(evidence), n_classes))
    for fold, ratios in enumerate(held_out):
        rows = np.flatnonzero(folds == fold)
        sums = sum_labels(evidence.take(rows), explanations, ratios)
        attacked[rows], clean[rows] = sums.attacked, sums.clean
    return Sums(attacked, clean, np.empty((0, 0, 0)))


def sort_attacks(
    attacks: SimulatedAttacks, explanations: Explanations, evidence: ModelEvidence
) -> list[NDArray[np.bool_]]:
    """Kinds of attacks, for each group of hit models: triggers that fail somewhere, others by how sure they are.

    How sure the hit models are of the target is the attacker's choice, and it takes the strength that serves it best:
    so every quarter of the strengths (mean log-probability of the target) is compared for itself. Kinds with fewer than
    `LEAST_KIND` attacks are left out.
    """
    groups = explanations.groups[attacks.patterns]
    fails = (explanations.patterns[attacks.patterns] & ~attacks.hits).any(axis=1)
    of_target = evidence.log_posteriors[np.arange(len(attacks)), :, attacks.targets]
    sureness = (of_target * attacks.hits).sum(axis=1) / attacks.hits.sum(axis=1)
    kinds = []
    for group in np.unique(groups):
        kinds.append(fails & (groups == group))
        rows = np.flatnonzero(~fails & (groups == group))
        parts = np.array_split(rows[np.argsort(sureness[rows], kind="stable")], 4)
        kinds += [np.isin(np.arange(len(attacks)), part) for part in parts]
    return [kind for kind in kinds if kind.sum() >= LEAST_KIND]


def check_settings(false_alarm_rate: float, n_simulated: int, n_inputs: int) -> None:
    """Refuse rates outside 0..1 and too little data."""
    if not 0 < false_alarm_rate < 1:
        raise InputError(f"false_alarm_rate must be between 0 and 1, got {false_alarm_rate}")
    if n_simulated < 2:
        raise InputError(f"n_simulated must be at least 2, got {n_simulated}")
    if n_inputs < LEAST_INPUTS:
        raise InputError(f"{n_inputs} validation inputs are too few to fit a decoder; give at least {LEAST_INPUTS}")
