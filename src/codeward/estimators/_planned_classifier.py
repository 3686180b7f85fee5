"""What `CodedClassifier` was handed, as the engine of ``codeward train`` reads it, and the decoder that it implies."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, validate_data

from codeward._errors import InputError
from codeward.certificates import Threat
from codeward.codes import Code, count_attacker_sets, enumerate_patterns, find_margins
from codeward.data import UserData, load_user_data, name_values, read_inputs, sort_names
from codeward.decoding import Assumptions, ConsensusDecoder, Decoded, Decoder, PluralityDecoder, VoteSet, make_decoder
from codeward.estimators._code_choice import adopt_code
from codeward.estimators._guarded_plan import GuardedPlan, settle_plan
from codeward.estimators._model_choice import choose_heads, choose_model
from codeward.estimators._roles import Roles, assign_roles
from codeward.runs import TrainConfig

#: Builds a decoder from the code and the confusion matrices, such as ``partial(BayesDecoder, success_rate=0.9)``.
DecoderFactory = Callable[[Code, NDArray[np.float64]], Decoder]

#: Decoders by name; others are handed in as functions.
NAMES = ("calibrated", "bayes", "plurality", "consensus", "groups")

#: Attacker sets up to which the errors a code tolerates are worked out; past it none are allowed for.
_MAX_SETS = 5_000

_log = logging.getLogger(__name__)


class PlannedClassifier:
    """Turns the parameters of a classifier, and samples as scikit-learn has them, into a `GuardedPlan`."""

    estimator: Any
    code: Code | None
    n_attackers: int
    guarantee: str
    decoder: str | DecoderFactory
    utilization: float
    margin: int
    validation_fraction: float
    classes: ArrayLike | None
    n_pseudo_users: int
    time_limit: float
    backbone: Any
    ridge: float
    false_alarm_rate: float
    random_state: Any
    classes_: NDArray[Any]

    def _check_parameters(self) -> None:
        for name, least in (("n_attackers", 1), ("margin", 1), ("n_pseudo_users", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if not 0 < self.utilization < 1:
            raise InputError(f"utilization must be above 0 and below 1, got {self.utilization}")
        if not 0 <= self.validation_fraction < 1:
            raise InputError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction}")
        if self.code is not None and not isinstance(self.code, Code):
            raise InputError(f"code: expected a codeward.Code, got {type(self.code).__name__}; wrap it: Code(matrix)")
        if isinstance(self.estimator, type):
            raise InputError(
                f"estimator: {self.estimator.__name__} is a class; give an object of it, {self.estimator.__name__}()"
            )
        if self.backbone is not None and self.estimator is not None:
            raise InputError("backbone and estimator exclude each other: heads are linear models; leave estimator=None")
        if not callable(self.decoder) and self.decoder not in NAMES:
            raise InputError(
                f"decoder: expected {', '.join(NAMES)} or a function of (code, confusion), got {self.decoder!r}"
            )

    def _check_inputs(self, X: Any, reset: bool = False) -> Any:
        """Check inputs as scikit-learn does; data frames, images, texts and records are left for the schema."""
        if hasattr(X, "columns"):
            if reset or hasattr(self, "feature_names_in_"):
                validate_data(self, X, reset=reset, skip_check_array=True)
            return X.set_axis([str(name) for name in X.columns], axis=1) if hasattr(X, "set_axis") else X
        first = X[0] if isinstance(X, list | tuple | np.ndarray) and len(X) else None
        if isinstance(first, dict) and not reset:
            return X
        shape = np.shape(X) if isinstance(X, list | tuple | np.ndarray) else ()
        if isinstance(first, str) or (len(shape) in (3, 4) and 0 not in shape):
            if reset:
                self.n_features_in_ = int(np.prod(shape[1:]))
            return list(X) if isinstance(first, str) else np.asarray(X)
        tags = get_tags(self.estimator).input_tags if hasattr(self.estimator, "__sklearn_tags__") else None
        finite = True if tags is not None and not tags.allow_nan else "allow-nan"
        sparse = "csr" if tags is not None and tags.sparse else False
        return validate_data(self, X, reset=reset, dtype=np.float64, accept_sparse=sparse, ensure_all_finite=finite)

    def _read(self, X: Any, y: Any, groups: ArrayLike | None) -> UserData:
        """Read samples and users as `codeward.data.load_user_data` does, with the labels that scikit-learn allows."""
        checked = self._check_inputs(X, reset=True)
        if y is None:
            raise InputError(f"requires y to be passed, but the target y is None; {type(self).__name__} needs labels")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(checked, labels)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        stated = self.classes
        if stated is None and type(self.estimator).__name__ == "TrainingSettings":
            stated = range(self.estimator.n_classes)
        known = np.unique(labels if stated is None else column_or_1d(np.asarray(stated)))
        names = name_values(known)
        order = sort_names(names)
        if len(order) < len(known):
            raise InputError("y: two labels have the same name as text; give them names that differ")
        self.classes_ = known[[names.index(name) for name in order]]
        places = self._place(labels, "y")
        users = np.asarray(groups) if groups is not None else None
        parts = int(self.n_pseudo_users) if self.code is None else self.code.n_users
        if users is None:
            _log.warning(
                "CodedClassifier: no groups given, so samples are hashed to %d pseudo-users (as in DPA): the guarantee "
                "is against poisoned samples, not users; pass groups=user_ids to fit",
                parts,
            )
        data = load_user_data((checked, np.array(order)[places], users)[: 2 + (users is not None)], n_parts=parts)
        schema = replace(data.schema, classes=None if stated is None else order)
        return replace(data, labels=places, class_names=order, schema=schema)

    def _read_more(self, given: tuple[Any, Any] | None, what: str, data: UserData) -> UserData | None:
        if given is None:
            return None
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise InputError(f"{what}: expected a pair (X, y) of trusted clean samples")
        labels = self._place(column_or_1d(given[1]), what)
        inputs = read_inputs(self._check_inputs(given[0]), data.schema, what)
        nobody = np.zeros(len(labels), dtype=np.int64)
        return UserData(inputs, labels, nobody, data.class_names, ("nobody",), data.schema)

    def _place(self, labels: NDArray[Any], what: str) -> NDArray[np.int64]:
        """Return the place of each label among the classes; refuse one that is not there."""
        order = np.argsort(self.classes_)
        strange = np.flatnonzero(~np.isin(labels, self.classes_))
        if strange.size:
            shown = f"label {labels[strange[0]]!s} of sample {int(strange[0])}"
            raise InputError(f"{what}: {shown} is not one of the classes {self.classes_.tolist()}")
        return np.asarray(order[np.searchsorted(self.classes_[order], labels)], dtype=np.int64)

    def _settle(self, data: UserData, trusted: UserData | None, test: UserData | None) -> GuardedPlan:
        """Say to the engine of ``codeward train`` what the parameters ask for."""
        state = self.random_state
        whole = isinstance(state, int | np.integer) and not isinstance(state, bool)
        seed = int(state) if whole else int(check_random_state(state).randint(2**31 - 1))
        k, backbone = int(self.n_attackers), None
        if self.backbone is not None:
            model = choose_heads(self.backbone, self.ridge, data.schema)
            assert model.backbone is not None
            backbone = model.backbone.name
        else:
            model = choose_model(self.estimator, data.schema, data.n_classes, as_is=True)
        name = self.decoder if self.decoder in ("calibrated", "groups") else "bayes"
        told = {
            "dataset": "own data",
            "users": max(data.n_users, 2),
            "attack": {"attackers": [0]},
            "code": {"attackers": k, "guarantee": self.guarantee, "margin": self.margin, "time_limit": self.time_limit}
            | {"utilization": self.utilization},
            "decoder": {"name": name, "false_alarm_rate": self.false_alarm_rate, "max_attackers": 1},
            "seed": seed,
            "train": {
                "model": self.estimator if isinstance(self.estimator, str) else None,
                "backbone": backbone,
                "ridge": self.ridge,
                "parts": max(2, data.n_users),
            },
        }
        code = None if self.code is None else adopt_code(self.code, data.user_names, k, data.hashed)
        return settle_plan(TrainConfig.checked(told), data, trusted, test, model, code, self.validation_fraction)

    def _fit_roles(self, plan: GuardedPlan) -> Roles:
        """Let all that is held out, or trusted, fit the decoder: here nothing is measured."""
        fraction, seed = self.validation_fraction, plan.config.seed
        return assign_roles(plan.data, plan.trusted, plan.test, fraction, seed, measured=False)


def find_ids(data: UserData, groups: ArrayLike | None) -> list[Any]:
    """Return the id of each user of the data as it was handed in; numbers of parts where nobody is known."""
    if groups is None:
        return list(range(data.n_users))
    _, first = np.unique(data.users, return_index=True)
    return list(np.asarray(groups)[first])


def build_decoder(
    decoder: str | DecoderFactory,
    code: Code,
    confusion: NDArray[np.float64],
    n_attackers: int,
    validation: VoteSet | None = None,
    false_alarm_rate: float = 0.05,
    class_counts: Sequence[Sequence[int]] | None = None,
) -> Decoder:
    """Return the decoder that a name or a factory stands for.

    *calibrated* is what ``codeward train`` serves with: fitted to the votes (and class scores) on validation samples,
    with a threshold for the share of false alarms; the others need confusion matrices alone.
    *bayes* and *groups* take 0..n_attackers attackers as equally likely; *consensus* tolerates as many wrong clean
    votes as the code allows (`tolerated_errors`).
    """
    if callable(decoder):
        return decoder(code, confusion)
    if decoder not in NAMES:
        raise InputError(f"decoder: expected {', '.join(NAMES)} or a function of (code, confusion), got {decoder!r}")
    errors = tolerated_errors(code, n_attackers) if decoder == "consensus" else 0
    assumptions = Assumptions.uniform(min(n_attackers, code.n_users), n_attackers=n_attackers, n_errors=errors)
    if decoder == "calibrated":
        assumptions = replace(assumptions, false_alarm_rate=false_alarm_rate, class_counts=class_counts)
        return make_decoder(decoder, code, validation, assumptions, confusion.shape[1])
    return make_decoder(decoder, code, confusion, assumptions)


def tolerated_errors(code: Code, n_attackers: int) -> int:
    """Return floor((d - 1) / 2) for the code's arbitrary margin d at k attackers; 0 where d is too large to find.

    Every 2k-sum then has 2e + 1 zeros (Proposition 14 of docs/theory.md).
    """
    if count_attacker_sets(code.n_users, n_attackers) > _MAX_SETS:
        return 0
    arbitrary = find_margins(enumerate_patterns(code, n_attackers)).arbitrary
    return max(0, (arbitrary[min(n_attackers, len(arbitrary)) - 1] - 1) // 2)


def default_threat(decoder: Decoder) -> Threat:
    """Return the strongest threat model under which a decoder has certificates."""
    return "arbitrary" if type(decoder) in (PluralityDecoder, ConsensusDecoder) else "deterministic"


def share_labels(decoded: Decoded, votes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return label probabilities (N, c) that also rank the labels of inputs without verdict.

    There, the labels still explained share by their votes: a classifier has to say something, and the most votes among
    the labels that an attack leaves possible is the least arbitrary. Its certified radius is 0.
    """
    shares = decoded.label_probability.copy()
    for row in np.flatnonzero(decoded.labels < 0):
        counted = shares[row] * np.bincount(votes[row], minlength=shares.shape[1])
        shares[row] = counted / counted.sum() if counted.sum() > 0 else shares[row]
    return shares
