"""`CodedClassifier`: a scikit-learn classifier that survives colluding users; the engine is that of ``train``."""

import logging
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import joblib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from codeward.certificates import Certificates, Threat, certify
from codeward.codes import Code
from codeward.data import read_inputs
from codeward.decoding import ALARM, Decoded, Decoder
from codeward.estimators._family import train_family
from codeward.estimators._fitted_folders import SavedClassifier
from codeward.estimators._planned_classifier import (
    DecoderFactory,
    PlannedClassifier,
    build_decoder,
    default_threat,
    find_ids,
    share_labels,
)
from codeward.estimators._roles import ask_models, vote_roles
from codeward.training import plan_models

_log = logging.getLogger(__name__)


class _Pass:
    """The votes on the inputs that a fitted classifier saw last, for all questions about them."""

    def __init__(self, digest: str, models: Any, decoder: Decoder, inputs: Any) -> None:
        self.digest, self.models, self.decoder = digest, models, decoder
        self.votes, scores = ask_models(models, inputs, getattr(decoder, "needs", "votes") != "votes")
        self.seen: Any = self.votes if scores is None else scores

    @property
    def heard(self) -> NDArray[np.int64]:
        """The votes as the decoder reads them: of class scores the largest each, which need not be what models say."""
        return np.asarray(self.seen if self.seen.ndim == 2 else self.seen.argmax(axis=2))

    @cached_property
    def decoded(self) -> Decoded:
        """All that the decoder says of the votes."""
        return self.decoder.decode(self.seen)


class CodedClassifier(SavedClassifier, PlannedClassifier, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
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
    estimator : classifier, TrainingSettings, str, callable or None
        A scikit-learn classifier (or pipeline), cloned for every sub-model; `codeward.training.TrainingSettings`, for
        networks on images (shape (N, H, W) or (N, C, H, W)) with labels 0..c-1; or as ``codeward train --model`` has
        it: a name, an import path, a function that makes one. None takes what suits the inputs.
    code : Code, optional
        One column a user: users in sorted order of their ids, or by name where the code names its users. By default
        `codeward.design` finds one.
    n_attackers : int
        k, the largest number of colluding users expected.
    guarantee : {"detect", "correct", "correct-arbitrary", "track"}
        What a designed code must have.
    decoder : {"bayes", "calibrated", "plurality", "consensus", "groups"} or callable
        *calibrated* is what ``codeward train`` serves with; it may read class scores. Or a function of (code,
        confusion) that returns a decoder, such as ``partial(BayesDecoder, success_rate=0.9)``.
    utilization : float
        Share of the users that every sub-model of a designed code learns from at least; lowered to what n users and
        ``n_attackers`` allow when it asks for more.
    margin : int
        Margin of a designed code; 3 absorbs one wrong vote.
    validation_fraction : float
        Share of every user's samples held out to estimate confusion matrices, when no trusted ``validation`` data are
        given to `fit`. 0 holds out none: each sub-model is validated on
        users it does not learn from, and the classifier cannot be saved. Either way the ``n_attackers`` users with most
        errors on a label are left out, for what they hand in may be meant to mislead.
    classes : array_like, optional
        The classes there are; other labels are refused. By default those in ``y``, where an attacker may invent one:
        state them when certificates matter (for networks, the training settings do).
    n_pseudo_users : int
        Parts into which samples are hashed when `fit` gets neither ``groups`` nor a code.
    time_limit : float
        Seconds for the designer.
    backbone : str, callable or Backbone, optional
        Ridge heads on its features take the place of ``estimator``: a name of `codeward.training.backbones.BACKBONES`,
        a function from inputs to features, or the path of an ``.onnx`` file. It never sees users' data; whoever
        trained it is trusted.
    ridge : float
        Of the heads; stated, never estimated.
    false_alarm_rate : float
        Of the calibrated decoder.
    n_jobs : int, optional
        Sub-models fitted in parallel (scikit-learn classifiers only); changes no result.
    random_state : int, RandomState or None

    Attributes
    ----------
    code_ : Code
    design_ : Design or None
        What the designer says of ``code_``; None for a code that was given or a partition.
    estimators_ : list of classifiers, Ensemble or HeadSet
        The sub-models, in row order; classifiers say names of classes. One that saw a single class, or that could not
        be fitted to its users' samples, is a constant `DummyClassifier`.
    users_ : ndarray, shape (n,)
        User ids in column order: sorted as names, whole numbers by size.
    users_hashed_ : bool
        True when `fit` got no ``groups``: users are then parts of the data by content hash, so that "k users" reads
        "k samples" (Deep Partition Aggregation); nobody can be named.
    confusion_ : ndarray, shape (m, c, c)
    decoder_ : Decoder
    classes_ : ndarray, shape (c,)
    schema_ : Schema
        Columns as they were read: of the kind that most users' values have.
    n_features_in_ : int

    Notes
    -----
    `fit` and ``codeward train`` are one engine: the same data, options and seed give the same models, byte for byte.
    Columns of a data frame that are no numbers are encoded inside each sub-model, by its own users' values; a pipeline
    gets the data frame and does it itself. Until it is pickled, a fitted classifier holds on to its training data, for
    `save`.

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
        estimator: Any = None,
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
        backbone: Any = None,
        ridge: float = 0.1,
        false_alarm_rate: float = 0.05,
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
        self.backbone = backbone
        self.ridge = ridge
        self.false_alarm_rate = false_alarm_rate
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        groups: ArrayLike | None = None,
        validation: tuple[Any, Any] | None = None,
        test: tuple[Any, Any] | None = None,
    ) -> "CodedClassifier":
        """Fit the sub-models and estimate how they err.

        Parameters
        ----------
        X : array_like, sparse matrix, DataFrame, images or texts, shape (N, ...)
        y : array_like, shape (N,)
        groups : array_like, shape (N,), optional
            User id of each sample. Without it, samples are hashed to pseudo-users; see ``users_hashed_``.
        validation : (X, y), optional
            Trusted clean samples, from no user, that confusion matrices are estimated on (the paper's setting).
        test : (X, y), optional
            Clean samples for the figures of `save`, which otherwise sets half of the ``validation`` or held-out samples
            aside to measure on.
        """
        self._check_parameters()
        data = self._read(X, y, groups)
        trusted, tested = self._read_more(validation, "validation", data), self._read_more(test, "test", data)
        self._plan = plan = self._settle(data, trusted, tested)
        code = plan.choice.code
        self._models = train_family(plan, plan_models(code, plan.config.seed), None, n_jobs=self.n_jobs)
        self.estimators_ = list(getattr(self._models, "models", ())) or self._models
        self.schema_, self.design_, self.code_ = data.schema, plan.choice.design, code
        ids = dict(zip(data.user_names, find_ids(data, groups), strict=True))
        self.users_, self.users_hashed_ = np.array([ids[name] for name in plan.data.user_names]), data.hashed
        fitting = replace(plan, roles=self._fit_roles(plan))
        scores = self.decoder == "calibrated"
        self.validation_ = vote_roles(fitting, self._models, code, ("validation",), scores)["validation"]
        assert self.validation_.confusion is not None
        self.confusion_ = self.validation_.confusion
        counts = fitting.count_classes(code)
        noise = (self.confusion_, int(self.n_attackers), self.validation_, self.false_alarm_rate, counts)
        self.decoder_ = build_decoder(self.decoder, code, *noise)
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
        seen = self._pass(X)
        labels = self.decoder_.predict(seen.seen)
        undecided = np.flatnonzero(labels < 0)
        if undecided.size:
            decoded = self.decoder_.decode(seen.seen[undecided])
            labels = labels.copy()
            labels[undecided] = share_labels(decoded, seen.votes[undecided]).argmax(axis=1)
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

    def alarms(self, X: Any, threshold: float | None = None) -> NDArray[np.bool_]:
        """Return which inputs raise an alarm, shape (N,): their attack probability is above the threshold.

        By default the decoder's: 0.5, or what keeps ``false_alarm_rate`` where it is calibrated. Never where all
        sub-models agree.
        """
        asked = getattr(self.decoder_, "threshold", ALARM) if threshold is None else threshold
        return self._pass(X).decoded.alarms(asked)

    def suspects(self, X: Any, threshold: float | None = None) -> list[tuple[Any, ...]]:
        """Name the users who are in every nearly best explanation of each input, by user id, in column order.

        An input has none when it raises no alarm (see `alarms`); nor where two explanations have nobody in common, as
        for users with equal columns, who are in the same sub-models and cannot be told apart: `suspect_sets` lists the
        explanations. Evidence, not proof: only ``guarantee="track"`` promises that no other k users leave the same
        votes.
        """
        return [self._name(users) for users in self._alarmed(X, threshold, "suspects")]

    def suspect_sets(self, X: Any, threshold: float | None = None) -> list[tuple[tuple[Any, ...], ...]]:
        """List the nearly best explanations of each input, best first, at most 20, each by user ids.

        Those whose posterior is at least a twentieth of the best one's; none where `suspects` has none for want of an
        alarm.
        """
        return [tuple(map(self._name, sets)) for sets in self._alarmed(X, threshold, "suspect_sets")]

    def _alarmed(self, X: Any, threshold: float | None, field: str) -> Iterator[tuple[Any, ...]]:
        """Yield what the decoder says of each alarmed input, and nobody for the others."""
        decoded = self._pass(X).decoded
        for found, alarm in zip(getattr(decoded, field), self.alarms(X, threshold).tolist(), strict=True):
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
        ``validation`` data. Of the calibrated decoder is certified what the votes alone determine (Proposition 43 of
        docs/theory.md), whatever it was fitted on: label -1 and radius 0 where they do not.
        """
        seen, chosen = self._pass(X), threat if threat is not None else default_threat(self.decoder_)
        nearest = getattr(self.decoder_, "nearest_", None)
        votes, decoder = (seen.votes, self.decoder_) if nearest is None else (seen.heard, nearest)
        return certify(
            votes,
            self.code_,
            threat=chosen,
            decoder=decoder,
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

    def __getstate__(self) -> dict[str, Any]:
        # Whoever gets the file gets the models, not the users' data.
        return {**super().__getstate__(), **({"_plan": None} if hasattr(self, "_plan") else {})}

    def _pass(self, X: Any) -> _Pass:
        """Let the sub-models vote on the inputs, unless the last question was about the same."""
        check_is_fitted(self)
        checked = self._check_inputs(X)
        digest = joblib.hash(checked, hash_name="sha1")
        last = _PASSES.get(self)
        if last and last.digest == digest and last.models is self._models and last.decoder is self.decoder_:
            return last
        inputs = read_inputs(checked, self.schema_)
        _PASSES[self] = found = _Pass(digest, self._models, self.decoder_, inputs)
        return found


#: The last pass of each classifier, aside of it: asking questions does not change an estimator.
_PASSES: WeakKeyDictionary[CodedClassifier, _Pass] = WeakKeyDictionary()
