"""The decoders fitted on clean inputs: on class scores, and on hard votes where there are none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding._assumptions import DEFAULTS, ConfusionModel, check_labels, check_votes, estimate_confusion
from codeward.decoding._attacker_sets import AttackerSets
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import ALARM, Decoded, distinct_rows
from codeward.decoding._nearest import NearestDecoder
from codeward.decoding.soft._attack_draws import (
    FAMILIES,
    ON_SCORES,
    ON_VOTES,
    Family,
    overwrite_scores,
    overwrite_votes,
)
from codeward.decoding.soft._explanations import (
    Explanations,
    ModelEvidence,
    list_explanations,
    sum_explanations,
    weigh_votes,
)
from codeward.decoding.soft._fitting import (
    QUIET,
    ROUNDING,
    Material,
    PlantedInputs,
    check_settings,
    find_planted,
    quieten,
    tune,
)
from codeward.decoding.soft._learners import N_FOLDS, cross_calibrate
from codeward.decoding.soft._opinions import Tuned, choose_threshold, give_verdicts, split_chunks, sum_labels


class FittedDecoder:
    """What both have in common: the settings of the fit, and everything after the evidence of the models."""

    threshold: float = ALARM
    attack_rate: float = DEFAULTS.attack_rate
    code: Code
    attackers_prior: Sequence[float]
    false_alarm_rate: float
    n_simulated: int
    seed: int
    class_counts: ArrayLike | None
    explanations_: Explanations
    paper_: BayesDecoder
    tuned_: Tuned
    planted_: tuple[PlantedInputs, ...]

    def decode(self, observed: ArrayLike) -> Decoded:
        """Verdicts on N inputs: scores of shape (N, m, c), log-probabilities, or votes of shape (N, m).

        ``attack_probability`` is above 0.5 exactly where the alarm's threshold is passed, and 0 where all models agree.
        It grows with the evidence but is a score, not a frequency. Target, suspects and users are given an attack.
        """
        evidence, inverse = self._weigh(observed)
        by_votes = self.paper_.decode(evidence.votes).label_probability
        found = give_verdicts(evidence, self.explanations_, self.tuned_, by_votes)
        if self.nearest_ is not None:
            found = found.overruled(self.nearest_.settle(evidence.votes))
        return found.take(inverse).named(self.code.users)

    @cached_property
    def nearest_(self) -> NearestDecoder | None:
        """What the votes alone say, and what no fit may overrule; None for codes with too little margin."""
        n_classes = self.paper_.n_classes
        assert n_classes is not None
        return NearestDecoder.choose(self.code, len(self.attackers_prior) - 1, n_classes, self.class_counts)

    def predict(self, observed: ArrayLike) -> NDArray[np.int64]:
        """Labels of N inputs, shape (N,)."""
        return self.decode(observed).labels

    def log_odds(self, observed: ArrayLike) -> NDArray[np.float64]:
        """Log odds of an attack above the alarm's threshold, shape (N,)."""
        evidence, inverse = self._weigh(observed)
        return (sum_labels(evidence, self.explanations_, self.tuned_.ratios).gap - self.tuned_.threshold)[inverse]

    @property
    def sets_(self) -> AttackerSets:
        """Hit patterns with their prior, in the order of `log_likelihood`."""
        return self.explanations_.sets

    def log_likelihood(self, observed: ArrayLike) -> NDArray[np.float64]:
        """Log evidence of (pattern, target) against no attack, shape (N, P, c): to add up over inputs.

        Row p is pattern ``sets_.words[p]`` with prior ``sets_.weights[p]``. On the scale of `clean_log_likelihood`.
        """
        evidence, inverse = self._weigh(observed)
        tables = [
            sum_explanations(evidence.take(rows), self.explanations_, self.tuned_.ratios, every_target=True).table
            for rows in split_chunks(len(evidence), self.explanations_, evidence.log_posteriors.shape[2])
        ]
        return np.asarray((np.concatenate(tables) - self.explanations_.log_weights[:, None])[inverse])

    def clean_log_likelihood(self, observed: ArrayLike) -> NDArray[np.float64]:
        """Log evidence of no attack, shape (N,), on the scale of `log_likelihood`: all zero."""
        return np.zeros(self._weigh(observed)[1].size)

    def _leave_out(self, votes: NDArray[np.int64], labels: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
        """Return the rows to fit on: without what was planted, which can be told where class counts are known."""
        known = (votes, labels, self.code, len(self.attackers_prior) - 1)
        self.planted_ = () if self.class_counts is None else find_planted(*known, self.class_counts, n_classes)
        return np.setdiff1d(np.arange(labels.size), [row for found in self.planted_ for row in found.rows])

    def _tune(self, given: Material, families: tuple[Family, ...], generator: np.random.Generator) -> None:
        """Fit everything after the calibration, which sees a validation input through maps that never saw it."""
        confusion = estimate_confusion(given.votes, given.labels, given.n_classes)
        self.__dict__.pop("nearest_", None)
        self.paper_ = BayesDecoder(self.code, confusion, attackers_prior=self.attackers_prior)
        if self.nearest_ is None:
            # The last model an attack left alone looks like the only one another worked in, or that errs.
            given = replace(given, success=ON_VOTES)
            families = tuple(family for family in families if family != "imitated") or families
        settings = (self.n_simulated, self.false_alarm_rate, generator)
        self.tuned_ = tune(given, self.paper_, self.explanations_, families, *settings)
        # Inputs with equal votes pass the threshold together or not at all, and a large group may do so in the end that
        # did not in its fold: the fitted decoder itself may not flag too many of them either.
        evidence, inverse = self._weigh(given.inputs)
        gaps = quieten(sum_labels(evidence, self.explanations_, self.tuned_.ratios).gap[inverse], given.votes)
        own = choose_threshold(gaps, self.false_alarm_rate) + ROUNDING
        self.tuned_ = replace(self.tuned_, threshold=max(self.tuned_.threshold, own))

    def _weigh(self, observed: ArrayLike) -> tuple[ModelEvidence, NDArray[np.int64]]:
        """Evidence of distinct inputs, and where each input's is, shape (N,)."""
        raise NotImplementedError

    def _check_fitted(self) -> None:
        if not hasattr(self, "tuned_"):
            raise InputError("the decoder is not fitted: call fit with clean validation inputs and labels first")


@dataclass(eq=False, repr=False)
class DiscountedDecoder(FittedDecoder):
    r"""Bayes decoder on hard votes whose evidence is discounted for correlated errors.

    The paper multiplies the models' likelihoods as if their errors were independent; they share
    hard images, so it sees attacks where there are none. Here ratios learned from simulated attacks on validation votes
    weigh the explanations, and the models' evidence for a label carries an exponent; see `SoftDecoder` for the formula,
    of which this is the case where :math:`g_i` are the label posteriors given the vote, by the confusion matrices.

    Threat model: *deterministic*. Where `NearestDecoder` has a verdict (``nearest_``), that is the answer, with its
    certificate (Proposition 43 of docs/theory.md); about the others nothing is proved.

    Parameters
    ----------
    code : Code
    n_classes : int
    attackers_prior : sequence of float
        Q(0), Q(1), ..., Q(k) as in `BayesDecoder`; only the sizes 1..k are used, relative to each other.
    false_alarm_rate : float
        Share of clean inputs that may be flagged; kept on inputs like the validation ones, with 75% confidence (99.9%
        from 5,000 on).
    n_simulated : int
        Simulated attacks to fit on.
    seed : int
    class_counts : array_like of int, shape (n, c), optional
        Samples of every class that each user handed in: then ``nearest_`` leaves out attacks that
        clean inputs of a class pass for that few users hold, and the fit leaves out ``planted_``.

    Attributes
    ----------
    paper_ : BayesDecoder
        The paper's decoder with confusion matrices of the validation votes.
    explanations_ : Explanations
        Hit patterns with their prior.
    tuned_ : Tuned
        RatioModels, alarm threshold and reading of the label.
    planted_ : tuple of PlantedInputs
        Validation inputs that show an attack their labels agree with (`find_planted`): left out of the fit.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
    >>> labels = np.arange(60) % 2
    >>> votes = np.where(np.random.default_rng(0).random((60, 6)) < 0.1, 1 - labels[:, None], labels[:, None])
    >>> decoder = DiscountedDecoder(code, 2, attackers_prior=(0.5, 0.5), n_simulated=60).fit(votes, labels)
    >>> decoder.predict([[0] * 6, [1] * 6])
    array([0, 1])
    """

    needs: ClassVar[Literal["votes"]] = "votes"

    code: Code
    n_classes: int
    attackers_prior: Sequence[float] = DEFAULTS.attackers_prior
    false_alarm_rate: float = DEFAULTS.false_alarm_rate
    n_simulated: int = 4000
    seed: int = 0
    class_counts: ArrayLike | None = None

    def fit(self, votes: ArrayLike, labels: ArrayLike) -> "DiscountedDecoder":
        """Fit on clean validation votes (N, m) and labels (N,)."""
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        truth = check_labels(labels, checked.shape[0], self.n_classes)
        generator = np.random.default_rng(self.seed)
        self.explanations_ = list_explanations(self.code, np.asarray(self.attackers_prior, dtype=np.float64))
        kept = self._leave_out(checked, truth, self.n_classes)
        checked, truth = checked[kept], truth[kept]

        # Confusion matrices of each fold from the others, so that no input is judged by itself.
        folds = generator.permutation(np.arange(truth.size) % N_FOLDS)
        held_out = [
            ConfusionModel(estimate_confusion(checked[folds != fold], truth[folds != fold], self.n_classes))
            for fold in range(N_FOLDS)
        ]

        def weigh(made: NDArray[np.int64], rows: NDArray[np.int64]) -> ModelEvidence:
            likelihoods = np.empty((*made.shape, self.n_classes))
            for fold, model in enumerate(held_out):
                here = folds[rows] == fold
                likelihoods[here] = model.log_likelihood(made[here])
            return weigh_votes(likelihoods, made)

        known = (checked, checked, truth, folds, self.n_classes, ON_VOTES, 1.0)
        self._tune(Material(*known, partial(overwrite_votes, checked), weigh), ("sure",), generator)
        return self

    def _weigh(self, observed: ArrayLike) -> tuple[ModelEvidence, NDArray[np.int64]]:
        self._check_fitted()
        checked = check_votes(observed, self.code.n_models, self.n_classes)
        distinct, inverse = distinct_rows(checked, self.n_classes)
        return weigh_votes(self.paper_.vote_model_.log_likelihood(distinct), distinct), inverse


@dataclass(eq=False, repr=False)
class SoftDecoder(FittedDecoder):
    r"""Decoder on the class scores of the m sub-models, fitted on clean validation scores and simulated attacks.

    Each model's scores are calibrated to log-probabilities :math:`g_i`. An *explanation* is a hit pattern x with prior
    w(x) and a target t. Two likelihood ratios, estimated by gradient-boosted trees, look at the input in its light
    (`describe_candidate`: how sure the models inside and outside x are of t, what they say beside it):

    - the *alarm* learns how much better (x, t) explains the scores s than no attack does,
      :math:`e^{a(x,t)} = \Pr(s \mid x, t) / (c \Pr(s \mid clean))`;
    - *naming* learns which explanation of an attacked input is the true one,
      :math:`\Pr(x, t \mid s, attack) \propto w(x) e^{e(x,t)}`.

    An input is flagged when :math:`G = \log \sum_{x,t} w(x) e^{a(x,t)}`, the log likelihood ratio of an attack
    against none (the best test statistic there is, were a known exactly), passes a threshold set by the false-alarm
    rate. With :math:`\Pr(l \mid x, t)` the discounted product of the probabilities by all models but the hit ones that
    vote t,

    .. math::

        att(l) = G + \log \sum_{x,t} \Pr(x, t \mid s, attack) \Pr(l \mid x, t), \qquad
        no(l) = \log \mathrm{softmax}_l \frac{\sum_i g_i(l)}{1 + \rho (m - 1)},

    and :math:`\rho` discounts evidence the models share: their errors are correlated. The label is the argmax (ties to
    the smaller class) of a log-linear pool of five opinions, these two among them, the paper's decoder and the plain
    vote (`list_opinions`), whose weights depend on G and have the least cross-entropy on clean validation inputs and
    simulated attacks (`fit_pool`). Explanations are left out where less than a quarter of the hit models votes for the
    target.

    **What is guaranteed.** Where `NearestDecoder` has a verdict on the votes (``nearest_``), that is the label: so
    ``certify(votes, code, threat="deterministic", decoder=decoder.nearest_)`` holds for this decoder (Proposition 43 of
    docs/theory.md). Where it has none, and two users with a target each explain the votes far better than one target
    (`NearestDecoder.settle`), theirs is the label. No proof covers these and other answers: an attacker chooses the
    scores of the models it hits freely. What is measured is in ``docs/soft-decoder.md``. The threshold keeps the
    false-alarm rate with 75% confidence (99.9% from 5,000 inputs on) for clean inputs drawn like the validation ones,
    as far as ratios fitted without a third of these stand for those fitted on all. Threat model of the fit:
    *deterministic*, with triggers that may be softened, weak or fail, in all models alike or in each at its own rate.

    Parameters
    ----------
    code : Code
    attackers_prior : sequence of float
        Q(0), Q(1), ..., Q(k) as in `BayesDecoder`; only the sizes 1..k are used, relative to each other.
    false_alarm_rate : float
        Share of clean inputs that may be flagged.
    families : tuple of str
        Families of simulated triggers to fit on, of "imitated", "sure", "softened", "marginal", "weak".
    n_simulated : int
        Simulated attacks to fit on.
    seed : int
    class_counts : array_like of int, shape (n, c), optional
        Samples of every class that each user handed in: then ``nearest_`` leaves out attacks that
        clean inputs of a class pass for that few users hold, and the fit leaves out ``planted_``.

    Attributes
    ----------
    calibration_ : CrossCalibration
    explanations_ : Explanations
        Hit patterns with their prior.
    tuned_ : Tuned
        RatioModels, alarm threshold and reading of the label.
    paper_ : BayesDecoder
        The paper's decoder with confusion matrices of the validation votes.
    planted_ : tuple of PlantedInputs
        Validation inputs that show an attack their labels agree with (`find_planted`): left out of the fit.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> code = Code([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
    >>> labels = np.arange(60) % 2
    >>> sure = np.random.default_rng(0).normal(2, 1, (60, 6)) * (2 * labels[:, None] - 1)
    >>> scores = -np.logaddexp(0, np.stack([sure, -sure], axis=2))
    >>> decoder = SoftDecoder(code, attackers_prior=(0.5, 0.5), n_simulated=60).fit(scores, labels)
    >>> bool((decoder.predict(scores) == labels).mean() > 0.9)
    True
    """

    needs: ClassVar[Literal["scores"]] = "scores"

    code: Code
    attackers_prior: Sequence[float] = DEFAULTS.attackers_prior
    false_alarm_rate: float = DEFAULTS.false_alarm_rate
    families: tuple[Family, ...] = FAMILIES
    n_simulated: int = 8000
    seed: int = 0
    class_counts: ArrayLike | None = None

    def fit(self, scores: ArrayLike, labels: ArrayLike) -> "SoftDecoder":
        """Fit on clean validation scores (N, m, c), log-probabilities, and labels (N,). Never give it test data."""
        checked = check_scores(scores, self.code.n_models)
        n_inputs, _, self.n_classes_ = checked.shape
        truth = check_labels(labels, n_inputs, self.n_classes_)
        check_settings(self.false_alarm_rate, self.n_simulated, n_inputs)  # calibration divides by their number
        unknown = [family for family in self.families if family not in FAMILIES]
        if unknown or not self.families:
            raise InputError(f"families: choose from {', '.join(FAMILIES)}, got {self.families}")
        generator = np.random.default_rng(self.seed)
        self.explanations_ = list_explanations(self.code, np.asarray(self.attackers_prior, dtype=np.float64))
        kept = self._leave_out(checked.argmax(axis=2), truth, self.n_classes_)
        checked, truth = checked[kept], truth[kept]
        self.calibration_ = calibration = cross_calibrate(checked, truth, generator)

        def weigh(made: NDArray[np.float64], rows: NDArray[np.int64]) -> ModelEvidence:
            return ModelEvidence(calibration.apply_held_out(made, rows), made.argmax(axis=2))

        self.votes_, self.labels_ = checked.argmax(axis=2), truth
        self.__dict__.pop("fallback_", None)
        known = (checked, self.votes_, truth, calibration.folds, self.n_classes_, ON_SCORES, QUIET)
        made = partial(overwrite_scores, checked, truth, calibration.folds, generator=generator)
        self._tune(Material(*known, made, weigh), self.families, generator)
        return self

    @property
    def n_classes(self) -> int | None:
        """Number of classes c, known after the fit."""
        return getattr(self, "n_classes_", None)

    @cached_property
    def fallback_(self) -> DiscountedDecoder:
        """The decoder on votes, fitted on the same validation inputs when it is first needed."""
        self._check_fitted()
        settings = (self.attackers_prior, self.false_alarm_rate, self.n_simulated, self.seed, self.class_counts)
        return DiscountedDecoder(self.code, self.n_classes_, *settings).fit(self.votes_, self.labels_)

    def decode_votes(self, votes: ArrayLike) -> Decoded:
        """Verdicts on hard votes of shape (N, m), by the discounted decoder fitted on the same validation inputs."""
        return self.fallback_.decode(votes)

    def _weigh(self, observed: ArrayLike) -> tuple[ModelEvidence, NDArray[np.int64]]:
        self._check_fitted()
        checked = check_scores(observed, self.code.n_models, self.n_classes_)
        evidence = ModelEvidence(self.calibration_.whole.apply(checked), checked.argmax(axis=2))
        return evidence, np.arange(len(evidence))


def check_scores(scores: ArrayLike, n_models: int, n_classes: int | None = None) -> NDArray[np.float64]:
    """Validate log-probabilities, of which some may be minus infinity, and return them as float64, shape (N, m, c)."""
    raw = np.asarray(scores)
    if raw.ndim != 3 or raw.shape[2] < 2:
        raise InputError(f"scores: expected shape (inputs, models, classes) with two classes or more, got {raw.shape}")
    if raw.dtype.kind != "f":
        raise InputError(f"scores: expected log-probabilities (floats), got dtype {raw.dtype}")
    if raw.shape[1] != n_models:
        raise InputError(f"scores: {raw.shape[1]} models, but the code has {n_models} (rows)")
    if n_classes is not None and raw.shape[2] != n_classes:
        raise InputError(f"scores: {raw.shape[2]} classes, but the decoder was fitted on {n_classes}")
    values = raw.astype(np.float64)
    bad = np.isnan(values) | (values > 1e-2)
    if bad.any():
        place = np.argwhere(bad)[0].tolist()
        raise InputError(f"scores: entry {place} is {values[tuple(place)]!s}; log-probabilities are at most 0")
    totals = np.exp(values).sum(axis=2)
    if (np.abs(totals - 1) > 0.05).any():
        place = np.argwhere(np.abs(totals - 1) > 0.05)[0].tolist()
        raise InputError(
            f"scores: the probabilities at {place} sum to {totals[tuple(place)]:.4g}, not 1; give log-probabilities"
        )
    # -inf becomes a finite floor far below the calibration's own, so that differences stay defined.
    return np.maximum(values, -100.0)
