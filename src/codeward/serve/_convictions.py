"""What the incidents of a target say together: alarms and their scores, who attacks, and whether it could be chance."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import BayesDecoder, Decoder, VoteSet, count_apart, count_spare, estimate_confusion
from codeward.runs import observe
from codeward.serve._alarms import Alarms, bet_on_small, compute_p_values, cut_blocks, score_alarms, score_rows
from codeward.serve._incident_ledger import Ledger

#: Validation inputs a class that make confusion matrices, as long as a quarter of all is left to compare with.
FIT_PER_CLASS = 20
#: Incidents that are tried for a conviction in the best case.
MOST_NEEDED = 1000
#: A model obeys a trigger if it says the target on at least this share of the incidents.
OBEYS = 0.5
#: Two attack probabilities of the same decoder differ by less.
SAME_PROBABILITY = 1e-6


@dataclass(frozen=True)
class TargetEvidence:
    """What the incidents of one target say.

    Attributes
    ----------
    target : int
    incidents : int
        Distinct inputs with this target that raised an alarm.
    reference : int
        False alarms on clean inputs they are compared with.
    error_bound : float
        Bound on the chance of evidence this strong, at any time and for any target, when nobody attacks: 1 when there
        is none. See `Examiner` for what it assumes.
    alpha, certainty : float
        The limits for a conviction: ``error_bound <= alpha``, and a user's probability at least ``certainty``.
    sets : sequence of tuple of int
        Attacker sets, the most probable one of each hit pattern.
    posterior : ndarray of float64, shape (P,)
        Posterior of each pattern, all incidents of the target together; the empty set is "nobody".
    user_probability : ndarray of float64, shape (n,)
        Posterior that each user is an attacker.
    needed : int or None
        Incidents of one target that it takes to show an attack here, all of them true and above every false alarm;
        None where 1,000 would not do, as where there is no false alarm to compare with.
    apart : ndarray of int64, shape (n,), optional
        In how many more models than in the best explanation the trigger would have to fail for the incidents to be
        explained without each user (`count_apart`); without it the posterior alone decides.
    spare : int
        More than so many are needed for a conviction.

    Examples
    --------
    >>> import numpy as np
    >>> users = np.array([0.001, 0.999])
    >>> evidence = TargetEvidence(3, 12, 9, 0.004, 0.01, 0.99, [(), (0,), (1,)], np.array([0.0, 0.001, 0.999]), users)
    >>> (evidence.is_attack, evidence.suspects, evidence.convicted)
    (True, (1,), (1,))

    Were the trigger to fail in one more model, somebody else could be behind it:

    >>> from dataclasses import replace
    >>> replace(evidence, apart=np.array([0, 1]), spare=1).convicted
    ()
    """

    target: int
    incidents: int
    reference: int
    error_bound: float
    alpha: float
    certainty: float
    sets: Sequence[tuple[int, ...]]
    posterior: NDArray[np.float64]
    user_probability: NDArray[np.float64]
    needed: int | None = None
    apart: NDArray[np.int64] | None = None
    spare: int = 0

    @property
    def is_attack(self) -> bool:
        """Whether it is shown that not all of these incidents are false alarms."""
        return self.error_bound <= self.alpha

    @property
    def suspects(self) -> tuple[int, ...]:
        """Most probable attacker set; the first one listed on a tie (fewest users, then lowest indices)."""
        return self.sets[int(np.argmax(self.posterior))]

    @property
    def convicted(self) -> tuple[int, ...]:
        """Users named for good: an attack is shown, they are probable enough, and nothing is explained without them."""
        return tuple(user for user in self.likely if self.apart is None or self.apart[user] > self.spare)

    @property
    def likely(self) -> tuple[int, ...]:
        """Users whose probability is at least ``certainty``, where an attack is shown."""
        return tuple(np.flatnonzero(self.user_probability >= self.certainty).tolist()) if self.is_attack else ()

    def to_json(self, code: Code) -> dict[str, Any]:
        """Return plain JSON, users by name where the code has names."""
        order = np.argsort(-self.user_probability, kind="stable")
        likely = [int(user) for user in order if self.user_probability[user] >= 0.01]
        return {
            "target": self.target,
            "incidents": self.incidents,
            "reference_false_alarms": self.reference,
            "incidents_needed": self.needed,
            "attack_shown": self.is_attack,
            "error_bound": self.error_bound,
            "alpha": self.alpha,
            "certainty": self.certainty,
            "suspects": [code.user_name(user) for user in self.suspects],
            "suspects_probability": float(self.posterior.max()),
            "user_probability": {code.user_name(user): float(self.user_probability[user]) for user in likely},
            "convicted": [code.user_name(user) for user in self.convicted],
            "spare_models": self.spare,
            "models_apart": {} if self.apart is None else {code.user_name(u): int(self.apart[u]) for u in self.likely},
        }


class Examiner:
    r"""Weighs incidents: a posterior over attacker sets, gated by a test that there is an attack at all.

    *Who*: for a target t, with the decoder's prior and likelihoods (threat model *deterministic*),

    .. math:: Pr(x \mid y_1 .. y_q) \propto \frac{Q(|x|)}{\binom{n}{|x|}}
              \prod_u [(1 - \epsilon) Pr(y_u \mid x, t) + \epsilon Pr(y_u \mid \text{clean})]

    so that a false alarm among the incidents (probability :math:`\epsilon` each) does not rule out the true attackers.

    *Whether*: clean inputs that raise alarms look like some attack, the more so together, because models err together;
    the product alone would convict somebody. So the alarms of ``decoder_``, which the endpoint must use too, on clean
    inputs that it has *not* seen are the reference: the ``reference`` votes, or else a part of the validation votes
    that makes no confusion matrices. The incidents are tested against them: for target t an incident scores its
    likelihood ratio for t, or lowest of all when its target is another (`compute_p_values`, `bet_on_small`).

    Guarantee (Proposition 28 of docs/theory.md): if nobody attacks, and the inputs sent are exchangeable with those
    compared with (same models, same kind of inputs, distinct ones in random order), then the chance that anyone is ever
    convicted, for any target, however often one looks, and for any number of clean inputs, is at most ``alpha`` (the
    targets share it equally). It rests on no model of the votes, and takes SHA-256, which breaks ties, for random. An
    adversary who sends *crafted* clean inputs breaks the assumption, as does a change of the inputs' distribution.

    *Whom not*: the posterior takes for granted that a trigger works in every model it reaches; where it fails in some
    of them, the posterior can be sure of somebody else. So nobody is convicted without whom the incidents can be
    explained if the trigger fails in up to ``spare`` more models than in the best explanation (`count_apart`). As long
    as it fails in no more, and no more attack than the prior has, all who are convicted attack (Proposition 46). Where
    it does, or most incidents are false alarms, naming the wrong user is not bounded; measured in
    docs/development/convictions.md.

    Parameters
    ----------
    code : Code
    validation : VoteSet
        Clean votes with labels, of the models that serve.
    n_classes : int
    threshold : float
        An input is an incident when its attack probability is above it; the same as the endpoint's.
    alpha : float
        Bound on convicting anyone when nobody attacks.
    certainty : float
        Least posterior probability of a convicted user.
    false_alarms : float
        :math:`\epsilon`, share of incidents taken for false alarms, between 0 and 1.
    reference : VoteSet, optional
        Clean votes of the same models on inputs that are not among the validation inputs.
    served : Decoder, optional
        The decoder that raises the alarms of the endpoint, fitted on the validation inputs alone; ``decoder_`` by
        default. It picks the reference alarms too; votes are scored, and attackers weighed, by ``decoder_`` always.
    spare : int, optional
        Models in which a trigger may fail; by default what `count_spare` gives.
    **assumptions
        Of the decoder: ``attack_rate``, ``success_rate``, ``attackers_prior``.

    Examples
    --------
    Models that err together in 6% of the inputs, and twelve inputs triggered by user 13 of the code g:

    >>> import numpy as np
    >>> from codeward.codes import named_code
    >>> from codeward.decoding import VoteSet
    >>> rng, code = np.random.default_rng(6), named_code("g")
    >>> labels = rng.integers(0, 10, 1000)
    >>> wrong = rng.random((1000, 6)) < np.where(rng.random((1000, 1)) < 0.06, 0.6, 0.004)
    >>> votes = np.where(wrong, (labels[:, None] + 1) % 10, labels[:, None])
    >>> parts = [VoteSet(votes[part], labels[part]) for part in (slice(500), slice(500, None))]
    >>> examiner = Examiner(code, parts[0], 10, reference=parts[1], attackers_prior=(0.5, 0.5))
    >>> triggered = np.where(code.column(13), 3, (4 + np.arange(12) % 6)[:, None])
    >>> evidence = examiner.examine(triggered, [f"input {i}" for i in range(12)])
    >>> (evidence[3].convicted, evidence[3].error_bound < 0.01)
    ((13,), True)
    """

    def __init__(
        self,
        code: Code,
        validation: VoteSet,
        n_classes: int,
        threshold: float = 0.5,
        alpha: float = 0.01,
        certainty: float = 0.99,
        false_alarms: float = 0.1,
        reference: VoteSet | None = None,
        served: Decoder | None = None,
        spare: int | None = None,
        **assumptions: Any,
    ) -> None:
        self.code = code
        self.validation = validation
        self.n_classes = n_classes
        self.threshold = threshold
        self.alpha = alpha
        self.certainty = certainty
        self.false_alarms = false_alarms
        self.reference = reference
        self.served = served
        self.spare = spare
        self.assumptions = assumptions

    @cached_property
    def parts_(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the validation votes that make the confusion matrices, and rows that are compared with.

        With a reference all make matrices. Without one, half of them; if they are few up to three quarters, until there
        are `FIT_PER_CLASS` a class. The order is fixed and looks at nothing but the number of inputs.
        """
        if self.reference is not None:
            return np.arange(len(self.validation.votes)), np.arange(0)
        size = len(self.validation.votes)
        cut = max(size // 2, min(FIT_PER_CLASS * self.n_classes, size * 3 // 4))
        first, second = np.split(np.random.default_rng(0).permutation(size), [cut])
        return first, second

    @cached_property
    def decoder_(self) -> BayesDecoder:
        """The decoder, its confusion matrices from the first part of the validation votes."""
        for name in ("alpha", "certainty", "false_alarms"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} must be above 0 and below 1, got {getattr(self, name)}")
        if self.spare is not None and self.spare < 0:
            raise InputError(f"spare must be 0 or more, got {self.spare}")
        votes, labels = self.validation.votes, self.validation.labels
        if labels is None or len(votes) < 2:
            raise InputError("evidence: validation votes with labels are needed, two inputs at least")
        rows = self.parts_[0]
        confusion = estimate_confusion(votes[rows], labels[rows], self.n_classes)
        return BayesDecoder(self.code, confusion, **self.assumptions)

    @cached_property
    def reference_(self) -> Alarms:
        """Alarms on clean inputs that the decoder has not seen: false ones."""
        unseen = VoteSet(self.validation.votes[self.parts_[1]]) if self.reference is None else self.reference
        decoded = self.alarm_decoder_.decode(observe(self.alarm_decoder_, unseen))
        return score_alarms(self.decoder_, unseen.votes, decoded, self.threshold)

    @cached_property
    def needed_(self) -> int | None:
        """Incidents needed to show an attack: the best case of the test, see `TargetEvidence.needed`."""
        capital = bet_on_small(np.zeros(MOST_NEEDED), self.reference_.rows.size)
        shown = np.flatnonzero(capital >= np.log(self.n_classes / self.alpha))
        return int(shown[0]) + 1 if shown.size else None

    @cached_property
    def spare_(self) -> int:
        """Models in which a trigger may fail before somebody honest is convicted: ``spare``, or what costs nothing."""
        return count_spare(self.decoder_) if self.spare is None else self.spare

    @property
    def alarm_decoder_(self) -> Decoder:
        """The decoder whose alarms are weighed."""
        return self.decoder_ if self.served is None else self.served

    def raise_threshold(self, threshold: float) -> "Examiner":
        """Return the same examiner with another threshold."""
        limits = (self.alpha, self.certainty, self.false_alarms, self.reference, self.served, self.spare)
        return Examiner(self.code, self.validation, self.n_classes, threshold, *limits, **self.assumptions)

    def examine(
        self, votes: ArrayLike, digests: Sequence[str], targets: ArrayLike | None = None
    ) -> dict[int, TargetEvidence]:
        """Weigh incidents in order of arrival; return the evidence of every target among them, ascending.

        Parameters
        ----------
        votes : array_like of int, shape (q, m)
        digests : sequence of str, length q
            An input counts once, the first time; inputs below the threshold do not count.
        targets : array_like of int, length q, optional
            What the endpoint's decoder found, where votes alone do not tell: all inputs given are alarms then.
        """
        first = sorted({digest: place for place, digest in reversed(list(enumerate(digests)))}.values())
        given = np.asarray(votes).reshape(len(digests), -1) if len(digests) else np.zeros((0, self.code.n_models), int)
        kept = given[first]
        if targets is None:
            found = score_alarms(self.decoder_, kept, self.alarm_decoder_.decode(kept), self.threshold)
        else:
            found = score_rows(self.decoder_, kept, np.arange(len(kept)), np.asarray(targets, dtype=np.int64)[first])
        names = [digests[first[row]] for row in found.rows]
        return {
            target: self._weigh(target, kept[found.rows], found, names) for target in np.unique(found.targets).tolist()
        }

    def _weigh(self, target: int, votes: NDArray[np.int64], found: Alarms, names: Sequence[str]) -> TargetEvidence:
        # 1. Is it an attack? Scores of other targets rank below all scores of this one.
        reference = np.where(self.reference_.targets == target, self.reference_.scores, -np.inf)
        stream = np.where(found.targets == target, found.scores, -np.inf)
        theta = np.array([_draw(f"{self.code.digest} {target} {name}") for name in names])
        capital = bet_on_small(compute_p_values(reference, stream, theta), reference.size)
        bound = min(1.0, self.n_classes * float(np.exp(-capital.max(initial=0.0))))

        # 2. Whose? Log-likelihoods add up over the incidents of this target; equal vote vectors are weighed once.
        own, counts = np.unique(votes[found.targets == target], axis=0, return_counts=True)
        sets, share = self.decoder_.sets_, self.false_alarms
        joint = np.log(sets.weights)
        for block in cut_blocks(self.decoder_, len(own)):
            attacked = self.decoder_.log_likelihood(own[block])[:, :, target] + np.log1p(-share)
            clean = self.decoder_.clean_log_likelihood(own[block])[:, None] + np.log(share)
            joint = joint + counts[block] @ np.logaddexp(attacked, clean)
        posterior = np.exp(joint - joint.max())
        posterior /= posterior.sum()
        users = np.minimum(np.asarray(posterior @ sets.members), 1.0)

        # 3. Not without whom? Explanations in which the trigger fails in a few models count as well. Where most of the
        # inputs have one label, it may be what was planted, and the alarms mistake which of the two is the target.
        said = [counts @ (own == value) >= OBEYS * counts.sum() for value in np.unique(own).tolist()]
        apart = count_apart(sets, np.array([obeying for obeying in said if obeying.any()] or said[:1]))
        limits = (self.alpha, self.certainty)
        return TargetEvidence(
            target, int(counts.sum()), reference.size, bound, *limits, sets.best_sets, posterior, users, self.needed_,
            apart, self.spare_,
        )  # fmt: skip


def gather_evidence(ledger: Ledger, examiner: Examiner, run: str) -> dict[int, TargetEvidence]:
    """Weigh all incidents of a run in a ledger; return the evidence by target.

    Like is compared with like. Incidents of other runs or codes are left out (other models voted), and so are those
    whose recorded attack probability is not that of the examiner's decoder (another one picked them); where it reads
    class scores, which the ledger does not keep, the run's name stands for it. Where some
    were recorded under a higher threshold than the examiner's, only alarms above that one count, on both sides.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from codeward.codes import named_code
    >>> from codeward.decoding import VoteSet
    >>> from codeward.serve import Ledger
    >>> examiner = Examiner(named_code("g"), VoteSet(np.zeros((40, 6), int), np.zeros(40, int)), 10)
    >>> with tempfile.TemporaryDirectory() as folder, Ledger(f"{folder}/ledger.sqlite") as ledger:
    ...     gather_evidence(ledger, examiner, "my run")
    {}
    """
    recorded = ledger.threshold(run, examiner.code.digest)
    if recorded is not None and recorded > examiner.threshold:
        examiner = examiner.raise_threshold(recorded)
    shape, classes = examiner.code.n_models, range(examiner.n_classes)
    known = ledger.incidents(run=run, code_digest=examiner.code.digest)
    # Rows that somebody else wrote may say anything: what these models cannot have voted is no evidence.
    found = [entry for entry in known if len(entry.votes) == shape and all(vote in classes for vote in entry.votes)]
    if not found:
        return {}
    decoder = examiner.alarm_decoder_
    if decoder.needs == "scores":
        found = [entry for entry in found if entry.attack_probability > examiner.threshold and entry.target in classes]
        votes = np.array([incident.votes for incident in found], dtype=np.int64).reshape(len(found), shape)
        return examiner.examine(votes, [entry.digest for entry in found], [entry.target for entry in found])
    votes = np.array([incident.votes for incident in found])
    now = decoder.decode(votes).attack_probability
    then = np.array([incident.attack_probability for incident in found])
    kept = np.flatnonzero(np.abs(now - then) <= SAME_PROBABILITY)
    return examiner.examine(votes[kept], [found[row].digest for row in kept])


def _draw(text: str) -> float:
    """Return a number of 0..1 that is uniform as far as a hash is."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
