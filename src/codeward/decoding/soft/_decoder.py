"""The decoder on calibrated class scores."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding._decoded import Decoded
from codeward.decoding._models import check_labels
from codeward.decoding.soft._calibration import cross_calibrate
from codeward.decoding.soft._evidence import SCORE_LAYOUT, Evidence, weigh_scores
from codeward.decoding.soft._fusion import list_explanations, log_sum, sum_explanations, weigh_labels
from codeward.decoding.soft._simulation import FAMILIES, Family, overwrite_scores
from codeward.decoding.soft._tuning import Material, tune
from codeward.decoding.soft._verdicts import give_verdicts, split_chunks
from codeward.decoding.soft._votes import DiscountedDecoder


class SoftDecoder:
    r"""Decoder on the class scores of the m sub-models, fitted on clean validation scores and simulated attacks.

    Each model's scores are calibrated to log-probabilities :math:`g_i`. A clean model speaks for label l with
    :math:`c_i(l) = \log((1-\epsilon)\,\mathrm{softmax}(T g_i)_l + \epsilon/c) + \log c`; a hit one for target t with
    :math:`r_{if}(t) = \rho_f(\mathrm{logit}\,e^{g_i(t)})`, :math:`\rho_f` not decreasing, one curve for models that
    vote t and one for those that do not, for each family f of triggers (sure ones; softened ones). With h the number
    of hit models of pattern x, w(x) its prior, :math:`\pi_f` and :math:`S_f` the weight and success rate of a family,

    .. math::

        att(l) = \log \sum_{x,t,f} w(x) \pi_f e^{\delta_h} / c \prod_{i \in x}
            \bigl(S_f e^{\eta_h r_{if}(t)} + (1 - S_f) e^{\beta_h c_i(l)}\bigr) \prod_{i \notin x} e^{\beta_h c_i(l)},
        \qquad no(l) = \beta_0 \sum_i c_i(l).

    The exponents :math:`\beta, \eta` discount evidence the models share (DESIGN.md, Decoder: errors are correlated).
    Targets that no model votes for are left out. An input is flagged when
    :math:`\log \sum_l e^{att(l)} - \log \sum_l e^{no(l)} + \kappa\, o` passes a threshold, set by the false-alarm
    rate; o are the log odds of the same decoder on the hard votes (`DiscountedDecoder`), which no softening of scores
    moves, and :math:`\kappa` is the weight that detects most of the simulated attacks of every kind. The label is the
    argmax (ties to the smaller class) of
    :math:`\log(e^{att(l) - \sigma} + e^{no(l)}) + \omega \log p_{paper}(l)`, the paper's decoder on the hard votes
    being a second opinion. The shift :math:`\sigma` and the weight :math:`\omega` are set apart from the threshold:
    they leave most room both to the plain vote on clean validation inputs and to the paper's decoder on every kind of
    simulated attack (``tuned_.room``).

    **What is guaranteed.** Nothing beyond what the votes' certificate (`codeward.certify`) says about other decoders:
    an attacker chooses the scores of the models it hits freely, and no proof covers this decoder's answer. What is
    measured is in ``docs/soft-decoder.md``. The threshold keeps the false-alarm rate with 99% confidence for clean
    inputs drawn like the validation ones, were the alarm's weight given; it is chosen on the same inputs. Threat model
    of the fit: *deterministic*, with triggers that may be softened or fail.

    Parameters
    ----------
    code : Code
    attackers_prior : sequence of float
        Q(0), Q(1), ..., Q(k) as in `BayesDecoder`; only the sizes 1..k are used, relative to each other.
    false_alarm_rate : float
        Share of clean inputs that may be flagged.
    families : tuple of str
        Families of simulated triggers to fit on, of "sure", "softened", "marginal".
    n_simulated : int
        Simulated attacks to fit on; half as many clean inputs are added.
    random_state : int

    Attributes
    ----------
    calibration_ : CrossCalibration
    explanations_ : Explanations
        Hit patterns with their prior.
    tuned_ : Tuned
        Fusion, alarm threshold and label shift.
    fallback_ : DiscountedDecoder
        Fitted on the votes of the same validation inputs; decodes where scores are missing.
    """

    def __init__(
        self,
        code: Code,
        attackers_prior: Sequence[float] = (0.25, 0.25, 0.25, 0.25),
        false_alarm_rate: float = 0.05,
        families: tuple[Family, ...] = FAMILIES,
        n_simulated: int = 1600,
        random_state: int = 0,
    ) -> None:
        self.code = code
        self.attackers_prior = attackers_prior
        self.false_alarm_rate = false_alarm_rate
        self.families = families
        self.n_simulated = n_simulated
        self.random_state = random_state

    def fit(self, scores: ArrayLike, labels: ArrayLike) -> "SoftDecoder":
        """Fit on clean validation scores (N, m, c), log-probabilities, and labels (N,). Never give it test data."""
        checked = check_scores(scores, self.code.n_models)
        n_inputs, _, self.n_classes_ = checked.shape
        truth = check_labels(labels, n_inputs, self.n_classes_)
        unknown = [family for family in self.families if family not in FAMILIES]
        if unknown or not self.families:
            raise InputError(f"families: choose from {', '.join(FAMILIES)}, got {self.families}")
        generator = np.random.default_rng(self.random_state)
        self.explanations_ = list_explanations(self.code, np.asarray(self.attackers_prior, dtype=np.float64))

        # Everything after the calibration sees a validation input through maps that never saw it.
        self.calibration_ = cross_calibrate(checked, truth, generator)

        def weigh(made: NDArray[np.float64], rows: NDArray[np.int64]) -> Evidence:
            return weigh_scores(self.calibration_.apply_held_out(made, rows), made.argmax(axis=2))

        votes = checked.argmax(axis=2)
        self.fallback_ = DiscountedDecoder(
            self.code, self.n_classes_, self.attackers_prior, self.false_alarm_rate, self.n_simulated, self.random_state
        ).fit(votes, truth)
        material = Material(
            checked,
            votes,
            truth,
            self.n_classes_,
            lambda attacks: overwrite_scores(checked, attacks, generator),
            self.fallback_.log_odds,
            weigh,
        )
        self.tuned_ = tune(
            material,
            self.code,
            self.fallback_.paper_,
            self.explanations_,
            SCORE_LAYOUT,
            2,
            self.families,
            self.n_simulated,
            self.false_alarm_rate,
            generator,
        )
        return self

    def decode(self, scores: ArrayLike | None = None, votes: ArrayLike | None = None) -> Decoded:
        """Verdicts on N inputs.

        Parameters
        ----------
        scores : array_like, shape (N, m, c), optional
            Log-probabilities.
        votes : array_like of int, shape (N, m), optional
            Used only when there are no scores: `decode_votes`.

        Returns
        -------
        Decoded
            ``attack_probability`` is above 0.5 exactly where the input is flagged. It grows with the evidence but is a
            score, not a frequency. Target, suspects and users are given an attack.
        """
        if scores is None:
            if votes is None:
                raise InputError("decode needs scores, or votes where there are none")
            return self.decode_votes(votes)
        evidence = self._weigh(scores)
        by_votes = self.fallback_.paper_.decode(evidence.votes).label_probability
        second = self.fallback_.log_odds(evidence.votes)
        return give_verdicts(evidence, self.explanations_, self.tuned_, by_votes, second)

    def decode_votes(self, votes: ArrayLike) -> Decoded:
        """Verdicts on hard votes of shape (N, m), by the discounted decoder fitted on the same validation inputs."""
        self._check_fitted()
        return self.fallback_.decode(votes)

    def predict(self, scores: ArrayLike) -> NDArray[np.int64]:
        """Labels of scores of shape (N, m, c), shape (N,)."""
        return self.decode(scores).labels

    def log_likelihood(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Discounted log evidence of (pattern, target), labels summed out, shape (N, P, c): to add up over inputs.

        Row p is pattern ``explanations_.patterns[p]`` with prior ``explanations_.log_weights[p]``, most probable
        attacker set ``explanations_.sets.best_sets[explanations_.rows[p]]``. On the scale of `clean_log_likelihood`.
        """
        evidence = self._weigh(scores)
        tables = [
            sum_explanations(evidence.take(rows), self.explanations_, self.tuned_.fusion, every_target=True).table
            for rows in split_chunks(len(evidence), self.explanations_, self.n_classes_)
        ]
        return np.asarray(np.concatenate(tables) - self.explanations_.log_weights[:, None])

    def clean_log_likelihood(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Discounted log evidence of no attack, labels summed out, shape (N,), on the scale of `log_likelihood`."""
        clean = weigh_labels(self._weigh(scores).log_posteriors, self.tuned_.fusion)
        return log_sum(self.tuned_.fusion.clean_discounts[0] * clean.sum(axis=1))

    def _weigh(self, scores: ArrayLike) -> Evidence:
        self._check_fitted()
        checked = check_scores(scores, self.code.n_models, self.n_classes_)
        return weigh_scores(self.calibration_.whole.apply(checked), checked.argmax(axis=2))

    def _check_fitted(self) -> None:
        if not hasattr(self, "tuned_"):
            raise InputError("the decoder is not fitted: call fit with clean validation scores and labels first")


def check_scores(scores: ArrayLike, n_models: int, n_classes: int | None = None) -> NDArray[np.float64]:
    """Validate log-probabilities and return them normalised as float64, shape (N, m, c).

    Zero probabilities (minus infinity) are allowed where another class of the model is finite.
    """
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
