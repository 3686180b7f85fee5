"""Validation inputs that attackers planted: those with a trigger, labelled with its target."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward.codes import Code, pack_words, unpack_words
from codeward.decoding._attacker_sets import AttackerSets, Users, gather_attacker_sets
from codeward.decoding._nearest import ClassShares

#: Fewest inputs of one kind that are taken for planted, and their least share of all. Clean inputs of honest models
#: (12 users, four codes, IID and Dirichlet shares down to alpha = 0.1, right on 69 to 99%): one of 269 at most in 320
#: ensembles on digits, 7 of 5,000 in 96 on MNIST of 8 x 8 pixels.
LEAST, LEAST_SHARE = 5, 0.01
#: Share of the inputs on which models outside a pattern must be right. Of models that are right on 30 to 44% (CIFAR-10
#: of 8 x 8 pixels, 96 ensembles), three of six stood alone with a class on up to 128 of 5,000 clean inputs.
RELIABLE = 2 / 3
#: Fewest models inside and outside a pattern: a model or two that err alone look like any attack on them.
LEAST_MODELS = 3


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
    """

    rows: NDArray[np.int64]
    target: int
    users: tuple[Users, ...]


def find_planted(
    votes: NDArray[np.int64],
    labels: NDArray[np.int64],
    code: Code,
    max_attackers: int,
    class_counts: ArrayLike,
    n_classes: int,
) -> tuple[PlantedInputs, ...]:
    r"""Find labelled inputs that show an attack which their own labels agree with.

    From an input with a trigger, labelled with the trigger's target t, a fit learns that such votes are clean and t is
    right. But its votes give it away. All models that the attackers reach say t and no other does: the models that say
    the label are a hit pattern, the same on every such input. On clean inputs other models err each time.

    Inputs count as planted where at least `LEAST` of them, `LEAST_SHARE` of all and half of those on which as many
    models say t have the same pattern of at most k users. Then those go, too, on which one model more or less says t.
    Models that have not seen t say it on none of its clean inputs either; so all models outside the pattern must have
    seen t (`ClassShares`), and nothing is found where few users hold it. Nor where these models are right on less than
    `RELIABLE` of the inputs.

    Threat model: *deterministic*, triggers that work in nearly all models they reach. Nothing is proved: who plants
    fewer inputs, or triggers that often fail, is not found. What no validation data can undo is Proposition 43 of
    docs/theory.md.

    Parameters
    ----------
    votes : ndarray of int64, shape (N, m)
    labels : ndarray of int64, shape (N,)
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
    >>> code = Code([[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]])
    >>> votes = np.array([[0] * 6] * 40 + [[1] * 6] * 40 + [[1, 1, 1, 0, 0, 0]] * 8)
    >>> labels = np.repeat([0, 1], [40, 48])  # the last eight are labelled as the first user's models say
    >>> [found] = find_planted(votes, labels, code, 1, [[50, 50], [50, 50]], n_classes=2)
    >>> found.rows.size, found.target, found.users
    (8, 1, ((0,),))
    """
    shares = ClassShares.count(code, class_counts, n_classes)
    sets = gather_attacker_sets(code, np.append(0.0, np.ones(max_attackers)))
    says_label = votes == labels[:, None]
    found = []
    for target in np.unique(labels):
        rows = np.flatnonzero(labels == target)
        sizes, words = says_label[rows].sum(axis=1), pack_words(says_label[rows])
        for word, count in zip(*np.unique(words, axis=0, return_counts=True), strict=True):
            inside = unpack_words(word[None], code.n_models)[0]
            n_inside = int(inside.sum())
            enough = count >= max(LEAST, LEAST_SHARE * len(votes), (sizes == n_inside).sum() / 2)
            if not enough or min(n_inside, code.n_models - n_inside) < LEAST_MODELS:
                continue
            trusted = shares.seen[~inside, target].all() and says_label[:, ~inside].mean() >= RELIABLE
            pattern = np.flatnonzero((sets.words == word).all(axis=1))
            if trusted and pattern.size:
                off = np.bitwise_count(words ^ word).sum(axis=1)
                found.append(PlantedInputs(rows[off <= 1], int(target), _list_users(sets, int(pattern[0]))))
    return tuple(sorted(found, key=lambda one: -one.rows.size))


def _list_users(sets: AttackerSets, pattern: int) -> tuple[Users, ...]:
    listed = sets.users[sets.starts[pattern] : sets.starts[pattern + 1]]
    return tuple(tuple(int(user) for user in one if user >= 0) for one in listed)
