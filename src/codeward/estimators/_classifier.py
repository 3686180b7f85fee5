"""`CodedClassifier`: a scikit-learn classifier that survives colluding users."""

import logging
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import joblib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import check_is_fitted

from codeward._errors import InputError
from codeward.certificates import Certificates, Threat, certify
from codeward.codes import Code, Design
from codeward.decoding import (
    ALARM,
    Decoded,
    Decoder,
    VoteSet,
    estimate_confusion,
)
from codeward.estimators._decisions import DecoderFactory, build_decoder, default_threat, share_labels
from codeward.estimators._ownership import (
    Ownership,
    digest_rows,
    find_code,
    hash_owners,
    list_rows,
    match_columns,
    read_groups,
)
from codeward.estimators._roles import estimate_from_users, hold_out
from codeward.estimators._saved_classifier import SavedClassifier, describe_inputs
from codeward.estimators._trainers import Trainer, choose_trainer, place_labels

_log = logging.getLogger(__name__)


class _Pass:
    """The votes on the inputs that a fitted classifier saw last, for all questions about them."""

    def __init__(self, digest: str, models: Any, decoder: Decoder, votes: NDArray[np.int64]) -> None:
        self.digest, self.models, self.decoder, self.votes = digest, models, decoder, votes

    @cached_property
    def decoded(self) -> Decoded:
        """All that the decoder says of the votes."""
        return self.decoder.decode(self.votes)


class CodedClassifier(SavedClassifier, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier of m sub-models, each fitted on the users that one row of a code selects; their votes are decoded.

    Guarantee: with ``guarantee="correct"`` (BCC, Proposition 2 of docs/theory.md), when at most ``n_attackers`` users
    collude, every sub-model they reach says their target on a triggered input (threat model *deterministic*), and the
    others are right, the votes determine the true label; ``margin`` says how many wrong votes are absorbed on top
    (Proposition 12). What holds for the votes of one given input is what `certify` says. Isolation, on which both rest
    (Proposition 15): sub-model i is a function of its users' samples, its parameters and (``random_state``, i); a
    sample order or an amount of data that another user chooses cannot change it. See docs/estimator.md for what is
    trusted.

    Parameters
    ----------
    estimator : classifier or TrainingSettings
        A scikit-learn classifier (or pipeline), cloned for every sub-model; or `codeward.training.TrainingSettings`,
        for networks on images (uint8, shape (N, H, W) or (N, C, H, W)) with labels 0..c-1.
    code : Code, optional
        One column a user: users in sorted order of their ids, or by name where the code names its users. By default
        `codeward.design` finds one.
    n_attackers : int
        k, the largest number of colluding users expected.
    guarantee : {"detect", "correct", "correct-arbitrary", "track"}
        What a designed code must have.
    decoder : {"bayes", "plurality", "consensus", "groups"} or callable
        Or a function of (code, confusion) that returns a decoder, such as ``partial(BayesDecoder, success_rate=0.9)``.
    utilization : float
        Share of the users that every sub-model of a designed code learns from at least; lowered to what n users and
        ``n_attackers`` allow when it asks for more.
    margin : int
        Margin of a designed code; 3 absorbs one wrong vote.
    validation_fraction : float
        Share of every user's samples held out to estimate confusion matrices, when no trusted ``validation`` data are
        given to `fit`. 0 holds out none: each sub-model is validated on users it does not learn from. Either way the
        ``n_attackers`` users with most errors on a label are left out, for what they hand in may be meant to mislead.
    classes : array_like, optional
        The classes there are; other labels are refused. By default those in ``y``, where an attacker may invent one:
        state them when certificates matter (for networks, the training settings do).
    n_pseudo_users : int
        Parts into which samples are hashed when `fit` gets neither ``groups`` nor a code.
    time_limit : float
        Seconds for the designer.
    n_jobs : int, optional
        Sub-models fitted in parallel (scikit-learn classifiers only); changes no result.
    random_state : int, RandomState or None

    Attributes
    ----------
    code_ : Code
    design_ : Design or None
        What the designer says of ``code_``; None for a code that was given or a partition.
    estimators_ : list of classifiers, or Ensemble
        The sub-models, in row order. One that saw a single class is a constant `DummyClassifier`.
    users_ : ndarray, shape (n,)
        User ids in column order.
    users_hashed_ : bool
        True when `fit` got no ``groups``: users are then parts of the data by content hash, so that "k users" reads
        "k samples" (Deep Partition Aggregation); nobody can be named.
    confusion_ : ndarray, shape (m, c, c)
    decoder_ : Decoder
    classes_ : ndarray, shape (c,)
    n_features_in_ : int

    Notes
    -----
    All questions about the same inputs are answered from one pass of the sub-models over them: the votes on the last
    inputs are kept beside the classifier, by a digest of their content.

    Examples
    --------
    Six users; two of them label everything 2, and the third class wins nowhere.

    >>> import numpy as np
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> X = np.repeat([[0.0], [1.0]], 60, axis=0)
    >>> y, users = np.repeat([0, 1], 60), np.tile(np.arange(6), 20)
    >>> y[users < 2] = 2
    >>> guard = CodedClassifier(DecisionTreeClassifier(), n_attackers=2, decoder="plurality", classes=[0, 1, 2])
    >>> guard = guard.set_params(code=Code(np.eye(6, dtype=int))).fit(X, y, groups=users)
    >>> guard.predict([[0.0], [1.0]]), guard.certify([[0.0], [1.0]])
    (array([0, 1]), array([1, 1]))
    """

    def __init__(
        self,
        estimator: Any,
        code: Code | None = None,
        n_attackers: int = 1,
        guarantee: str = "correct",
        decoder: str | DecoderFactory = "bayes",
        *,
        utilization: float = 0.5,
        margin: int = 3,
        validation_fraction: float = 0.2,
        classes: ArrayLike | None = None,
        n_pseudo_users: int = 10,
        time_limit: float = 2.0,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.code = code
        self.n_attackers = n_attackers
        self.guarantee = guarantee
        self.decoder = decoder
        self.utilization = utilization
        self.margin = margin
        self.validation_fraction = validation_fraction
        self.classes = classes
        self.n_pseudo_users = n_pseudo_users
        self.time_limit = time_limit
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        groups: ArrayLike | None = None,
        validation: tuple[Any, Any] | None = None,
    ) -> "CodedClassifier":
        """Fit the sub-models and estimate how they err.

        Parameters
        ----------
        X : array_like, sparse matrix or DataFrame, shape (N, ...)
        y : array_like, shape (N,)
        groups : array_like, shape (N,), optional
            User id of each sample. Without it, samples are hashed to pseudo-users; see ``users_hashed_``.
        validation : (X, y), optional
            Trusted clean samples, from no user, that confusion matrices are estimated on (the paper's setting).
        """
        trainer = self._trainer()
        self._check_parameters()
        X = trainer.check_inputs(self, X, reset=True)
        self.schema_ = describe_inputs(X)
        self.classes_, labels = trainer.check_labels(self, X, y)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))

        # 1. Users, and a code with a column for each.
        digests = digest_rows(X)
        ownership = self._find_users(groups, digests)
        self.design_, self.code_ = (None, self.code) if self.code is not None else self._find_code(ownership)
        ownership = match_columns(self.code_, ownership)
        self.users_, self.users_hashed_ = ownership.users, ownership.hashed

        # 2. Sub-models, each on the samples of its users.
        rows = list_rows(ownership, digests, labels)
        division = hold_out(rows, 0.0 if validation is not None else self.validation_fraction, seed)
        self.estimators_ = trainer.train(X, labels, self.classes_, self.code_, division.training, seed)

        # 3. How they err, and the decoder that knows it.
        if validation is not None:
            self.confusion_ = self._estimate_trusted(trainer, validation)
        else:
            chosen = np.concatenate(division.validation)
            votes = trainer.vote(self.estimators_, _take(X, chosen), self.classes_)
            # Held-out samples validate every model, training samples only models that never saw them.
            validates = ~self.code_.matrix | division.held_out
            self.validation_ = VoteSet(votes, labels[chosen])
            owners, n_classes = ownership.owners[chosen], self.classes_.size
            self.confusion_ = estimate_from_users(votes, labels[chosen], owners, validates, self.n_attackers, n_classes)
        self.decoder_ = build_decoder(self.decoder, self.code_, self.confusion_, int(self.n_attackers))
        return self

    def votes(self, X: Any) -> NDArray[np.int64]:
        """Return what each sub-model says of each input, as indices into ``classes_``, shape (N, m)."""
        return self._pass(X).votes.copy()

    def decode(self, X: Any) -> Decoded:
        """Return all that the decoder says of the inputs: labels (-1 for no verdict), targets and users as indices."""
        return deepcopy(self._pass(X).decoded)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the decoded class of each input, shape (N,): the most probable one, ties to the smaller class.

        An input on which the consensus decoder gives no verdict gets the most voted of the classes still possible;
        `decode` shows the -1, and its certified radius is 0.
        """
        votes = self._pass(X).votes
        labels = self.decoder_.predict(votes)
        undecided = np.flatnonzero(labels < 0)
        if undecided.size:
            unsure = votes[undecided]
            labels = labels.copy()
            labels[undecided] = share_labels(self.decoder_.decode(unsure), unsure).argmax(axis=1)
        return np.asarray(self.classes_[labels])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the decoder's posterior of each class, shape (N, c); vote shares for plurality."""
        seen = self._pass(X)
        return share_labels(seen.decoded, seen.votes)

    def attack_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the decoder's probability that each input carries a trigger, shape (N,)."""
        return self._pass(X).decoded.attack_probability.copy()

    def user_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each user to be an attacker, given an attack, shape (N, n)."""
        return self._pass(X).decoded.user_probability.copy()

    def suspects(self, X: Any, threshold: float = ALARM) -> list[tuple[Any, ...]]:
        """Name the users who are in every nearly best explanation of each input, by user id, in column order.

        An input has none when its attack probability does not pass ``threshold``, or when all sub-models agree; nor
        where two explanations have nobody in common, as for users with equal columns, who are in the same sub-models
        and cannot be told apart: `suspect_sets` lists the explanations. Evidence, not proof: only ``guarantee="track"``
        promises that no other k users leave the same votes.
        """
        return [self._name(users) for users in self._alarmed(X, threshold, "suspects")]

    def suspect_sets(self, X: Any, threshold: float = ALARM) -> list[tuple[tuple[Any, ...], ...]]:
        """List the nearly best explanations of each input, best first, at most 20, each by user ids.

        Those whose posterior is at least a twentieth of the best one's; none where `suspects` has none for want of an
        alarm.
        """
        return [tuple(map(self._name, sets)) for sets in self._alarmed(X, threshold, "suspect_sets")]

    def _alarmed(self, X: Any, threshold: float, field: str) -> Iterator[tuple[Any, ...]]:
        """Yield what the decoder says of each alarmed input, and nobody for the others."""
        decoded = self._pass(X).decoded
        for found, alarm in zip(getattr(decoded, field), decoded.alarms(threshold).tolist(), strict=True):
            yield found if alarm else ()

    def _name(self, users: Iterable[int]) -> tuple[Any, ...]:
        ids = self.users_.tolist()
        return tuple(ids[user] for user in users)

    def certify(self, X: Any, threat: Threat | None = None, max_attackers: int | None = None) -> NDArray[np.int64]:
        """Return the certified radius of each input: the largest k such that no k users can change its decoded class.

        See `certificates`.
        """
        return self.certificates(X, threat, max_attackers).radius

    def certificates(self, X: Any, threat: Threat | None = None, max_attackers: int | None = None) -> Certificates:
        """Return radii, with the attack that breaks each, as `codeward.certify` gives them for the sub-models' votes.

        Parameters
        ----------
        threat : {"arbitrary", "deterministic"}, optional
            By default *arbitrary* for plurality and consensus and *deterministic* for all others, the strongest each
            decoder has certificates under.
        max_attackers : int, optional
            Look no further.

        Notes
        -----
        The decoder is held as fitted. Plurality and consensus read nothing but votes, so their radii cover everything
        the users do to the training data (given the ``classes``). A Bayes radius covers what they do to votes;
        confusion matrices estimated from users' data are taken as given, so it is complete only with trusted
        ``validation`` data.
        """
        chosen = threat if threat is not None else default_threat(self.decoder_)
        return certify(
            self._pass(X).votes,
            self.code_,
            threat=chosen,
            decoder=self.decoder_,
            max_attackers=max_attackers,
            n_classes=int(self.classes_.size),
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):
            inner = get_tags(self.estimator)
            tags.input_tags.sparse = inner.input_tags.sparse
            tags.input_tags.allow_nan = inner.input_tags.allow_nan
            tags.input_tags.positive_only = inner.input_tags.positive_only
            if inner.classifier_tags is not None:
                tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
        return tags

    def _trainer(self) -> Trainer:
        opened: Trainer | None = getattr(self, "_opened", None)
        return opened or choose_trainer(self.estimator, self.n_jobs)

    def _pass(self, X: Any) -> _Pass:
        """Let the sub-models vote on the inputs, unless the last question was about the same."""
        check_is_fitted(self)
        trainer = self._trainer()
        checked = trainer.check_inputs(self, X)
        digest = joblib.hash(checked, hash_name="sha1")
        last = _PASSES.get(self)
        if last and last.digest == digest and last.models is self.estimators_ and last.decoder is self.decoder_:
            return last
        votes = trainer.vote(self.estimators_, checked, self.classes_)
        _PASSES[self] = found = _Pass(digest, self.estimators_, self.decoder_, votes)
        return found

    def _check_parameters(self) -> None:
        for name, least in (("n_attackers", 1), ("margin", 1), ("n_pseudo_users", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if not 0 < self.utilization < 1:
            raise InputError(f"utilization must be above 0 and below 1, got {self.utilization}")
        if self.code is not None and not isinstance(self.code, Code):
            raise InputError(f"code: expected a codeward.Code, got {type(self.code).__name__}; wrap it: Code(matrix)")

    def _find_users(self, groups: ArrayLike | None, digests: NDArray[np.uint64]) -> Ownership:
        if groups is not None:
            return read_groups(groups, len(digests))
        parts = int(self.n_pseudo_users) if self.code is None else self.code.n_users
        _log.warning(
            "CodedClassifier: no groups given, so samples are hashed to %d pseudo-users (as in DPA): the guarantee is "
            "against poisoned samples, not users; pass groups=user_ids to fit",
            parts,
        )
        return hash_owners(digests, parts)

    def _find_code(self, ownership: Ownership) -> tuple[Design | None, Code]:
        settings = (self.guarantee, self.utilization, self.margin, self.time_limit)
        return find_code(ownership, self.n_attackers, *settings)

    def _estimate_trusted(self, trainer: Trainer, validation: tuple[Any, Any]) -> NDArray[np.float64]:
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            raise InputError("validation: expected a pair (X, y) of trusted clean samples")
        labels = place_labels(validation[1], self.classes_, "validation")
        votes = trainer.vote(self.estimators_, trainer.check_inputs(self, validation[0]), self.classes_)
        self.validation_ = VoteSet(votes, labels)
        return estimate_confusion(votes, labels, self.classes_.size)


#: The last pass of each classifier, aside of it: asking questions does not change an estimator.
_PASSES: WeakKeyDictionary[CodedClassifier, _Pass] = WeakKeyDictionary()


def _take(X: Any, rows: NDArray[np.int64]) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]
