"""What a decoder keeps of a code's promise: attacks on inputs that every model left alone gets right."""

from dataclasses import dataclass

import numpy as np

from codeward._errors import InputError
from codeward._progress import Progress
from codeward.certificates._certificates import Threat, Witness
from codeward.certificates._pointwise import certify
from codeward.certificates._subjects import Predictor
from codeward.codes import Code, count_attacker_sets

#: Attacks up to which `is_agreement_affordable` says yes: some seconds of Bayes decoding.
AFFORDABLE = 100_000


@dataclass(frozen=True)
class Agreement:
    """How many attackers a decoder undoes as long as no model errs.

    Attributes
    ----------
    n_attackers : int
        Most users whose every attack leaves the right label, whatever label and target.
    searched : int
        Most users looked at; ``n_attackers`` equal to it is a lower bound.
    label : int or None
        The true label of an attack by one user more that is not undone; None where none was found.
    witness : Witness or None
        That attack. None beside a label: the decoder is wrong there without any attack.

    Examples
    --------
    >>> from codeward import Code, PluralityDecoder
    >>> kept = certify_agreement(Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), PluralityDecoder(), n_classes=2)
    >>> kept.n_attackers, kept.witness.attackers
    (1, (0, 1))
    """

    n_attackers: int
    searched: int
    label: int | None
    witness: Witness | None


def is_agreement_affordable(code: Code, n_classes: int, max_attackers: int) -> bool:
    """Say whether the attacks (attacker sets, labels, targets) that `certify_agreement` decodes are few.

    Examples
    --------
    >>> from codeward import Code
    >>> is_agreement_affordable(Code([[1, 0], [0, 1]]), n_classes=10, max_attackers=2)
    True
    """
    return count_attacker_sets(code.n_users, max_attackers) * n_classes * (n_classes - 1) <= AFFORDABLE


def certify_agreement(
    code: Code,
    decoder: Predictor,
    n_classes: int,
    *,
    threat: Threat = "deterministic",
    max_attackers: int | None = None,
    progress: Progress | None = None,
) -> Agreement:
    r"""Find the most attackers that a decoder undoes on inputs whose clean models all say the true label.

    A code *corrects* k attackers when some decoder can tell the label from such votes (`codeward.codes.inspect`). That
    does not mean that a given one does: `BayesDecoder` weighs an attack against errors of models by its prior and its
    confusion matrices, and where k attackers leave few models alone it may take the honest ones for wrong. This is the
    least certified radius of the c inputs on which all m models agree (Proposition 23 of docs/theory.md),

    .. math:: \min_l \mathrm{radius}(l, l, \ldots, l),

    exact under *deterministic*. Nothing is said of inputs on which a model errs; `certify` is for those.

    Parameters
    ----------
    code : Code
    decoder : decoder object
        With ``predict(votes)``.
    n_classes : int
        c, at least 2, the decoder's own where it has one: every class is a label and a target.
    threat : {"deterministic", "arbitrary"}
        As for `certify`.
    max_attackers : int, optional
        Search no further; by default as `certify` does.
    progress : Progress, optional
        Advanced by 1 in total.

    Examples
    --------
    >>> from codeward import Code, PluralityDecoder
    >>> kept = certify_agreement(Code([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), PluralityDecoder(), n_classes=2)
    >>> kept.n_attackers, kept.searched, kept.label, kept.witness.target
    (1, 3, 0, 1)
    """
    if n_classes < 2:
        raise InputError(f"n_classes must be at least 2, got {n_classes}")
    truth = np.arange(n_classes)
    votes = np.repeat(truth[:, None], code.n_models, axis=1)
    found = certify(
        votes,
        code,
        threat=threat,
        decoder=decoder,
        max_attackers=max_attackers,
        n_classes=n_classes,
        progress=progress,
    )
    # Where all models agree and the decoder says otherwise, it needs no attacker to be wrong.
    kept = np.where(found.labels == truth, found.radius, -1)
    worst = int(kept.argmin())
    if kept[worst] < 0:
        return Agreement(0, found.searched, worst, None)
    witness = found.witness(worst)
    return Agreement(int(kept[worst]), found.searched, None if witness is None else worst, witness)
