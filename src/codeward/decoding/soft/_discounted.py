"""The discounted decoder on hard votes: the fallback where scores are missing."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding._assumptions import DEFAULTS
from codeward.decoding._attacker_sets import AttackerSets
from codeward.decoding._bayes import BayesDecoder
from codeward.decoding._decoded import ALARM, Decoded, distinct_rows
from codeward.decoding._vote_models import ConfusionModel, check_labels, check_votes, estimate_confusion
from codeward.decoding.soft._calibration import N_FOLDS
from codeward.decoding.soft._explanations import ModelEvidence, list_explanations, weigh_votes
from codeward.decoding.soft._fitting import Material, tune
from codeward.decoding.soft._opinions import give_verdicts, split_chunks, sum_labels
from codeward.decoding.soft._ratios import sum_explanations
from codeward.decoding.soft._simulation import overwrite_votes


class DiscountedDecoder:
    r"""Bayes decoder on hard votes whose evidence is discounted for correlated errors.

    The paper multiplies the models' likelihoods as if their errors were independent; they share
    hard images, so it sees attacks where there are none. Here ratios learned from simulated attacks on validation votes
    weigh the explanations, and the models' evidence for a label carries an exponent; see `SoftDecoder` for the formula,
    of which this is the case where :math:`g_i` are the label posteriors given the vote, by the confusion matrices.

    Threat model: *deterministic*. Nothing is proved about its answers; `codeward.certify` proves things about
    plurality, consensus and Bayes decoders.

    Parameters
    ----------
    code : Code
    n_classes : int
    attackers_prior : sequence of float
        Q(0), Q(1), ..., Q(k) as in `BayesDecoder`; only the sizes 1..k are used, relative to each other.
    false_alarm_rate : float
        Share of clean inputs that may be flagged; kept with 99% confidence on inputs like the validation ones.
    n_simulated : int
        Simulated attacks to fit on.
    random_state : int

    Attributes
    ----------
    paper_ : BayesDecoder
        The paper's decoder with confusion matrices of the validation votes.
    explanations_ : Explanations
        Hit patterns with their prior.
    tuned_ : Tuned
        RatioModels, alarm threshold and reading of the label.
    """

    needs: Literal["votes"] = "votes"
    threshold: float = ALARM
    attack_rate: float = DEFAULTS.attack_rate

    def __init__(
        self,
        code: Code,
        n_classes: int,
        attackers_prior: Sequence[float] = DEFAULTS.attackers_prior,
        false_alarm_rate: float = DEFAULTS.false_alarm_rate,
        n_simulated: int = 4000,
        random_state: int = 0,
    ) -> None:
        self.code = code
        self.n_classes = n_classes
        self.attackers_prior = attackers_prior
        self.false_alarm_rate = false_alarm_rate
        self.n_simulated = n_simulated
        self.random_state = random_state

    def fit(self, votes: ArrayLike, labels: ArrayLike) -> "DiscountedDecoder":
        """Fit on clean validation votes (N, m) and labels (N,)."""
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        truth = check_labels(labels, checked.shape[0], self.n_classes)
        generator = np.random.default_rng(self.random_state)
        self.explanations_ = list_explanations(self.code, np.asarray(self.attackers_prior, dtype=np.float64))

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

        self.paper_ = BayesDecoder(
            self.code,
            estimate_confusion(checked, truth, self.n_classes),
            attackers_prior=self.attackers_prior,
        )
        material = Material(
            checked,
            checked,
            truth,
            folds,
            self.n_classes,
            lambda attacks: overwrite_votes(checked, attacks),
            weigh,
        )
        self.tuned_ = tune(
            material,
            self.code,
            self.paper_,
            self.explanations_,
            ("sure",),
            self.n_simulated,
            self.false_alarm_rate,
            generator,
        )
        return self

    def decode(self, votes: ArrayLike) -> Decoded:
        """Verdicts on votes of shape (N, m); an input is flagged where ``attack_probability`` is above 0.5."""
        evidence, inverse = self._weigh(votes)
        by_votes = self.paper_.decode(evidence.votes).label_probability
        return give_verdicts(evidence, self.explanations_, self.tuned_, by_votes).take(inverse)

    def predict(self, votes: ArrayLike) -> NDArray[np.int64]:
        """Labels of votes of shape (N, m), shape (N,)."""
        return self.decode(votes).labels

    def log_odds(self, votes: ArrayLike) -> NDArray[np.float64]:
        """Log odds of an attack above the alarm's threshold, for votes of shape (N, m), shape (N,)."""
        evidence, inverse = self._weigh(votes)
        return (sum_labels(evidence, self.explanations_, self.tuned_.ratios).gap - self.tuned_.threshold)[inverse]

    @property
    def sets_(self) -> AttackerSets:
        """Hit patterns with their prior, in the order of `log_likelihood`."""
        return self.explanations_.sets

    def log_likelihood(self, votes: ArrayLike) -> NDArray[np.float64]:
        """Log evidence of (pattern, target) against no attack, shape (N, P, c): to add up over inputs.

        Row p is pattern ``sets_.words[p]``; see `SoftDecoder.log_likelihood`.
        """
        evidence, inverse = self._weigh(votes)
        tables = [
            sum_explanations(evidence.take(rows), self.explanations_, self.tuned_.ratios, every_target=True).table
            for rows in split_chunks(len(evidence), self.explanations_, self.n_classes)
        ]
        return (np.concatenate(tables) - self.explanations_.log_weights[:, None])[inverse]

    def clean_log_likelihood(self, votes: ArrayLike) -> NDArray[np.float64]:
        """Log evidence of no attack, shape (N,), on the scale of `log_likelihood`: all zero."""
        return np.zeros(self._weigh(votes)[1].size)

    def _weigh(self, votes: ArrayLike) -> tuple[ModelEvidence, NDArray[np.int64]]:
        if not hasattr(self, "tuned_"):
            raise InputError("the decoder is not fitted: call fit with clean validation votes and labels first")
        checked = check_votes(votes, self.code.n_models, self.n_classes)
        distinct, inverse = distinct_rows(checked, self.n_classes)
        return weigh_votes(self.paper_.vote_model_.log_likelihood(distinct), distinct), inverse
