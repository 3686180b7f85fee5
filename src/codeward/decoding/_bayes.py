"""The paper's Bayes decoder, over distinct hit patterns and distinct vote vectors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._cores import share_rows
from codeward._errors import InputError, TooLargeError
from codeward.codes import Code, count_attacker_sets
from codeward.decoding._assumptions import DEFAULTS, ConfusionModel, VoteModel, check_prior, check_rate, check_votes
from codeward.decoding._attacker_sets import AttackerSets, Masses, gather_attacker_sets, name_suspects
from codeward.decoding._decoded import ALARM, Decoded, distinct_rows, first_best, have_agreed
from codeward.decoding._posterior_kernels import sum_posterior, tabulate_joint
from codeward.decoding._pruned import BUDGET, PrunedPosterior

#: Attacker sets up to which ``method="auto"`` enumerates; beyond it prunes.
EXACT_SETS = 50_000
#: log(1 - S) for S = 1: a failed hit outweighs all other evidence, yet nothing is NaN where all explanations fail.
IMPOSSIBLE = -1e6
#: Floats a chunk of work may hold.
CHUNK = 4_000_000


@dataclass(eq=False, repr=False)
class BayesDecoder:
    r"""Posterior over (attack?, attackers x, target t, label l) given the m votes of an input.

    Implements the paper's section "Decoding" (derived in its appendix, "Probabilistic Decoding"):

    .. math::

        Pr(\text{attack} \mid y) = \frac{A \sum_{x,t,l} p(x,y,t,l)}
            {A \sum_{x,t,l} p(x,y,t,l) + (1-A)\, c \sum_l \prod_i C^{(i)}_{l y_i}}

    Threat model: *deterministic* (every hit model says the one target t with probability S, else votes as if clean). It
    is a probability statement under that model and the priors, not a certificate; `codeward.certify` gives those.
    As printed, Q includes 0 attackers: the empty set under "attack" explains votes exactly as "no attack" does, so with
    the defaults the attack probability of a clean-looking input does not fall below A Q(0) / (A Q(0) + 1 - A) = 0.2.
    How it is added up: Propositions 16 (patterns) and 17 (pruning, and what it leaves out) of docs/theory.md.

    Parameters
    ----------
    code : Code
    confusion : array_like of shape (m, c, c), or VoteModel
        Confusion matrices (see `estimate_confusion`), or any other clean-vote model.
    attack_rate : float
        A, prior probability of an attack, in 0..1.
    success_rate : float
        S, probability that a hit model says the target, in 0..1. S = 1 is taken as the limit from below.
    attackers_prior : sequence of float
        Q(0), Q(1), ..., Q(k): prior of the number of attackers.
    method : {"auto", "exact", "pruned"}
        "exact" sums over all patterns; "pruned" leaves out attacker sets of provably small mass and returns the bound
        (`Decoded.neglected`); "auto" is exact up to `EXACT_SETS` attacker sets.
    device : str, optional
        A torch device (such as "cuda") to sum on instead of the compiled CPU kernel; needs torch, exact method only.
    budget : int
        Pruned method: branches visited per vote vector, target and size; more of them narrow the bound.
    threshold : float
        Attack probability above which an input is an alarm.

    Notes
    -----
    The constructor stores; checks and tables are made at the first use. Ties (within one part in 1e9): label and target
    to the smaller class; of attackers all are listed, the fewest users first, then the lowest indices.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> confusion = [[[0.9, 0.1], [0.1, 0.9]]] * 6
    >>> decoder = BayesDecoder(code, confusion, attackers_prior=(0.5, 0.5))
    >>> found = decoder.decode([[0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1]])
    >>> found.labels, found.attack_probability.round(2)
    (array([0, 1]), array([0.9 , 0.45]))
    >>> found.best_set[0], found.suspect_sets[0], found.suspects[0]  # two models alone: perhaps nobody attacked
    ((2,), ((2,), ()), ())
    """

    needs: ClassVar[Literal["votes"]] = "votes"

    code: Code
    confusion: ArrayLike | VoteModel
    attack_rate: float = DEFAULTS.attack_rate
    success_rate: float = DEFAULTS.success_rate
    attackers_prior: Sequence[float] = DEFAULTS.attackers_prior
    method: Literal["auto", "exact", "pruned"] = "auto"
    device: str | None = None
    budget: int = BUDGET
    threshold: float = ALARM

    @cached_property
    def vote_model_(self) -> VoteModel:
        """The clean-vote model, checked against the code; the rates are checked here too."""
        given = self.confusion
        model = given if isinstance(given, VoteModel) else ConfusionModel(given)
        if model.n_models != self.code.n_models:
            raise InputError(f"confusion: {model.n_models} models, but the code has {self.code.n_models}")
        check_rate("attack_rate", self.attack_rate)
        check_rate("success_rate", self.success_rate)
        if self.method not in ("auto", "exact", "pruned"):
            raise InputError(f"method must be auto, exact or pruned, got {self.method!r}")
        return model

    @cached_property
    def prior_(self) -> NDArray[np.float64]:
        """Q(0..k), checked, shape (k + 1,)."""
        return check_prior(self.attackers_prior)

    @cached_property
    def sets_(self) -> AttackerSets:
        """Hit patterns with their prior; needs all attacker sets enumerated."""
        return gather_attacker_sets(self.code, self.prior_)

    @cached_property
    def pruned_(self) -> PrunedPosterior:
        """The pruned sum, for many users."""
        return PrunedPosterior(self.code, self.prior_, self.success_rate, self.failure_, budget=self.budget)

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return self.vote_model_.n_classes

    @property
    def failure_(self) -> float:
        """log(1 - S), `IMPOSSIBLE` for S = 1."""
        return log_failure(self.success_rate)

    @property
    def is_exact(self) -> bool:
        """Whether all attacker sets are enumerated (else the sum is pruned)."""
        if self.method != "auto":
            return self.method == "exact"
        return count_attacker_sets(self.code.n_users, self.prior_.size - 1) <= EXACT_SETS

    def decode(self, votes: ArrayLike) -> Decoded:
        """Decode votes of shape (N, m); see `Decoded`."""
        distinct, inverse = self._distinct(votes)
        parts = [self._decode_distinct(chunk) for chunk in self._chunks(distinct)]
        if not parts:
            parts = [self._decode_distinct(distinct)]
        return Decoded.concatenate(parts).take(inverse).named(self.code.users)

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,): `decode` without attackers."""
        distinct, inverse = self._distinct(votes)
        if not self.is_exact:
            return self.decode(distinct).labels[inverse]
        rate = self.attack_rate
        found = [first_best(self._sum(chunk, False).label_probability(rate)) for chunk in self._chunks(distinct)]
        return np.concatenate([*found, np.zeros(0, dtype=np.int64)])[inverse]

    def posterior(self, votes: ArrayLike) -> NDArray[np.float64]:
        """Log posterior of (pattern, target) given an attack, for votes of shape (N, m), shape (N, P, c).

        Row p is pattern ``sets_.words[p]``, whose most probable attacker set is ``sets_.best_sets[p]``.
        """
        joint = self.log_likelihood(votes) + np.log(self.sets_.weights)[None, :, None]
        top = joint.max(axis=(1, 2), keepdims=True)
        return np.asarray(joint - top - np.log(np.exp(joint - top).sum(axis=(1, 2), keepdims=True)))

    def log_likelihood(self, votes: ArrayLike) -> NDArray[np.float64]:
        """Log of Pr(votes | attack, pattern, target), labels uniform, shape (N, P, c): adds up over inputs."""
        distinct, inverse = self._distinct(votes)
        if not self.is_exact:
            raise TooLargeError("the evidence of every attacker set was asked for, but there are too many to enumerate")
        model = self.vote_model_
        joint = np.empty((distinct.shape[0], self.sets_.weights.size, model.n_classes))
        rates = (self.success_rate, self.failure_)
        tabulate_joint(distinct, model.log_likelihood(distinct), self.sets_.words, *rates, joint)
        return np.asarray((joint - np.log(model.n_classes))[inverse])

    def clean_log_likelihood(self, votes: ArrayLike) -> NDArray[np.float64]:
        """Log of Pr(votes | no attack), labels uniform, shape (N,)."""
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        total = self.vote_model_.log_likelihood(checked).sum(axis=1)
        top = total.max(axis=1)
        return np.asarray(top + np.log(np.exp(total - top[:, None]).mean(axis=1)))

    def _distinct(self, votes: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        checked = check_votes(votes, self.vote_model_.n_models, self.n_classes)
        return distinct_rows(checked, self.n_classes)

    def _chunks(self, votes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        width = self.code.n_models * self.n_classes + (self.sets_.weights.size if self.is_exact else self.code.n_users)
        step = max(1, CHUNK // width)
        for start in range(0, votes.shape[0], step):
            yield votes[start : start + step]

    def _sum(self, votes: NDArray[np.int64], with_patterns: bool) -> Masses:
        model, sets = self.vote_model_, self.sets_
        base = model.log_likelihood(votes)
        if self.device is not None:
            return sum_on_device(votes, base, sets, self.success_rate, self.failure_, self.device)
        n_inputs, n_classes = votes.shape[0], model.n_classes
        wide = (n_inputs, sets.weights.size) if with_patterns else (0, 0)
        by_class = np.empty((3, n_inputs, n_classes))
        masses = Masses(by_class[0], by_class[1], by_class[2], np.empty(wide), np.empty((n_inputs, 2)))
        rates = (self.success_rate, self.failure_)

        def work(rows: slice) -> None:
            part = [field[rows] for field in masses]
            sum_posterior(votes[rows], base[rows], sets.words, sets.hits, sets.weights, *rates, *part)

        share_rows(n_inputs, work)
        return masses

    def _decode_distinct(self, votes: NDArray[np.int64]) -> Decoded:
        if not self.is_exact:
            return self.pruned_.decode(votes, self.vote_model_.log_likelihood(votes), self.attack_rate)
        sets = self.sets_
        masses = self._sum(votes, True)
        by_label = masses.label_probability(self.attack_rate)
        by_pattern = masses.patterns / masses.patterns.sum(axis=1, keepdims=True)
        suspects = name_suspects(sets, by_pattern)
        return Decoded(
            first_best(by_label),
            masses.attack_probability(self.attack_rate),
            first_best(masses.targets),
            suspects.certain,
            np.minimum(np.asarray(by_pattern @ sets.members), 1.0),
            by_label,
            np.zeros(votes.shape[0]),
            suspects.sets,
            suspects.more,
            have_agreed(votes),
        )


def log_failure(success_rate: float) -> float:
    """Return log(1 - S), `IMPOSSIBLE` for S = 1."""
    return max(float(np.log1p(-success_rate)), IMPOSSIBLE) if success_rate < 1 else IMPOSSIBLE


#: Floats one block of the (inputs, patterns, targets, labels) array may hold.
BLOCK = 50_000_000


def sum_on_device(
    votes: NDArray[np.int64],
    base: NDArray[np.float64],
    sets: AttackerSets,
    success_rate: float,
    failure: float,
    device: str,
) -> Masses:
    """Compute the fields of `Masses` on ``device`` in double precision; arguments as in `sum_posterior`."""
    import torch

    n_inputs, _, n_classes = base.shape
    bits = torch.as_tensor(sets.bits, dtype=torch.float64, device=device)
    log_weights = torch.log(torch.as_tensor(sets.weights, device=device))
    classes = torch.arange(n_classes, device=device)
    step = max(1, BLOCK // (bits.shape[0] * n_classes**2))
    parts: list[list[NDArray[np.float64]]] = []
    for start in range(0, n_inputs, step):
        clean = torch.as_tensor(base[start : start + step], device=device)
        says = torch.as_tensor(votes[start : start + step], device=device)[:, :, None] == classes
        # delta_i(t, l) = log(S [t = y_i] + (1 - S) C) - log C: g_i(l) where the model says t, log(1 - S) elsewhere.
        if success_rate > 0:
            gain = torch.logaddexp(np.log(success_rate) - clean, torch.full_like(clean, failure))
        else:
            gain = torch.zeros_like(clean)
        delta = torch.where(says[:, :, :, None], gain[:, :, None, :], failure)
        total = clean.sum(dim=1)
        joint = torch.einsum("pm,umtl->uptl", bits, delta) + total[:, None, None, :] + log_weights[:, None, None]
        top = joint.amax(dim=(1, 2, 3))
        joint = torch.exp(joint - top[:, None, None, None])
        best = total.amax(dim=1)
        found = (
            joint.sum(dim=(1, 2)),
            joint.sum(dim=(1, 3)),
            torch.exp(total - best[:, None]),
            joint.sum(dim=(2, 3)),
            torch.stack([top, best], dim=1),
        )
        parts.append([part.cpu().numpy() for part in found])
    return Masses._make(np.concatenate(field) for field in zip(*parts, strict=True))
