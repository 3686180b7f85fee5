"""Everything that is settled before a model is trained on one's own data: columns, classes, code, model, roles."""

import csv
import io
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._figures import show_percent
from codeward._files import read_text
from codeward.codes import Code
from codeward.data import USERS, InputTable, Schema, UserData, arrange_inputs, count_classes, load_user_data
from codeward.estimators._code_choice import CodeChoice, choose_code, hash_code
from codeward.estimators._family import estimate_seconds
from codeward.estimators._model_choice import ModelChoice, choose_heads, choose_model
from codeward.estimators._roles import Roles, align, assign_roles, digest_data
from codeward.runs import TrainConfig

#: Columns of a kind that a plan names.
_LISTED = 8
#: What linear models owe a warning to.
EXTRAPOLATION = (
    "linear models extrapolate: values outside of the training data can move even sub-models that no attacker reached; "
    "choose trees (--model boosting), or declare ranges in --schema, to which values are clipped"
)


@dataclass(frozen=True)
class GuardedPlan:
    """Everything that is settled before a model is trained.

    Attributes
    ----------
    config : TrainConfig
    data : UserData
    roles : Roles
    choice : CodeChoice
    model : ModelChoice
    trusted, test : UserData or None
        What the operator handed in beside the users' data.

    Examples
    --------
    >>> rows = {"x": [0.0, 1.0] * 20, "y": ["no", "yes"] * 20, "user": [f"u{place // 8}" for place in range(40)]}
    >>> config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, train={"model": "logistic"})
    >>> plan_training(config, rows).movable
    []
    """

    config: TrainConfig
    data: UserData
    roles: Roles
    choice: CodeChoice
    model: ModelChoice
    trusted: UserData | None = None
    test: UserData | None = None

    def count_classes(self, code: Code) -> list[list[int]] | None:
        """Count the training samples of every class of the users whom a code still has, shape (n, c).

        None where users keep their samples.
        """
        labels, names = self.data.labels, self.data.user_names
        if not labels.size:
            return None
        left = (self.roles.training[names.index(code.user_name(user))] for user in range(code.n_users))
        return count_classes((labels[own] for own in left), self.data.n_classes)

    @property
    def movable(self) -> list[str]:
        """What reaches all rows and users could move all the same: nothing is certified then."""
        data, k = self.data, self.choice.n_attackers
        found = []
        if data.firm is not None and data.firm < k:
            found.append(
                f"{'the size of images was' if data.schema.kind == 'image' else 'the kinds of columns were'} read off "
                f"the users' data, and {data.firm + 1} of them could have changed that; declare it with --schema, "
                "which `codeward data schema` writes"
            )
        if self.model.family != "tables" and not self._classes_are_fixed():
            found.append(
                f"the classes were read off the users' data, and the {self.model.family} of all rows have an output for"
                " each; declare them with --schema, or give --trusted"
            )
        empty = [
            row
            for row in self.choice.code.matrix
            if not any(self.roles.training[user].size for user in np.flatnonzero(row))
        ]
        if empty and not self._classes_are_fixed():
            found.append(
                f"{len(empty)} sub-models have no samples and say the first class, which was read off the users' data; "
                "declare the classes with --schema, or ask for fewer --parts"
            )
        return found

    @property
    def extrapolates(self) -> bool:
        """Whether values beyond the training data move models that nobody attacked: linear ones, without ranges."""
        numbers = [column for column in self.data.schema.columns if column.kind == "numeric"]
        return self.model.is_linear and any(column.range is None for column in numbers)

    def _name_model(self) -> str:
        size = 1 if self.model.settings is None else self.model.settings.committee
        return self.model.name if size == 1 else f"{size} networks {self.model.name}"

    def _say_time(self) -> str:
        seconds = estimate_seconds(self)
        if seconds < 90:
            return f"about {max(1, float(f'{seconds:.0g}')):.0f} s"
        return f"about {float(f'{seconds / 60:.1g}'):.0f} min" if seconds < 5400 else f"about {seconds / 3600:.0f} h"

    def _classes_are_fixed(self) -> bool:
        """Tell whether classes are declared, or shown by so many users that k more or fewer change nothing."""
        data, k = self.data, self.choice.n_attackers
        if data.schema.classes is not None:
            return True
        holders = [np.unique(data.users[data.labels == label]).size for label in range(data.n_classes)]
        return min(holders) > 2 * k

    def describe(self) -> list[str]:
        """Say what will be done, in lines."""
        data, code = self.data, self.choice.code
        sizes = np.array([part.size for part in data.parts])
        who = "parts by hash (no users known)" if data.hashed else "users"
        lines = [
            *data.notes,
            f"{len(data):,} samples, {data.n_classes} classes, {data.n_users} {who}: "
            f"{sizes.min()} to {sizes.max()} samples each, median {int(np.median(sizes))}",
            *_describe_columns(data),
            *self.choice.reasons,
            f"each sub-model ({self._name_model()}) learns from {code.row_weight} "
            f"user{'s' * (code.row_weight != 1)} or more",
            f"training takes {self._say_time()} here",
        ]
        if self.extrapolates:
            lines.append(EXTRAPOLATION)
        if data.hashed:
            lines.append(
                "without users the guarantee is against k poisoned samples, not k users, and nobody is named; "
                "give --user COL if a column says who handed a sample in"
            )
        largest = int(sizes.argmax())
        if not data.hashed and sizes[largest] > sizes.sum() / 2:
            lines.append(
                f"user {data.user_names[largest]} has {show_percent(sizes[largest] / sizes.sum())} of all samples: "
                "sub-models without it learn from little; if it is several parties, make it several users"
            )
        return lines


def _describe_columns(data: UserData) -> list[str]:
    """Say how the columns of a table are read, and which of them hardly repeat: ids, dates, sentences."""
    if not isinstance(data.inputs, InputTable):
        return []
    kinds = {"numeric": "numbers", "categorical": "categories", "text": "text"}
    told = []
    for kind, word in kinds.items():
        names = [column.name for column in data.schema.columns if column.kind == kind]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        told += [f"{word} {', '.join(names[:_LISTED])}{more}"] if names else []
    lines = [f"columns: {'; '.join(told)}"]
    for column in data.schema.columns:
        values = [value for value in data.inputs.columns[column.name] if column.kind == "categorical" and value]
        if len(values) < 20 or (distinct := len(set(values))) <= len(values) / 2:
            continue
        said = f"column {column.name} has {distinct:,} different values, learned as names: "
        if np.median([len(value.split()) for value in values]) >= 4:
            lines.append(said + f"--text {column.name} reads its words")
        else:
            lines.append(said + f"make a date or the like a number, or leave it out with --ignore {column.name}")
    return lines


def plan_training(
    config: TrainConfig,
    source: Any = None,
    trusted: Any = None,
    test: Any = None,
    model: Any = None,
    schema: Schema | None = None,
    code: CodeChoice | None = None,
) -> GuardedPlan:
    """Read the data and settle everything that all sub-models share: columns, classes, code, model, roles of samples.

    Isolation: code, order of columns and margin come from the users' names, the options and trusted samples; kinds of
    columns from a schema, trusted samples or a majority of users; encoders and imputers are in each sub-model's own
    pipeline. What users could move all the same is in `GuardedPlan.movable`.

    Parameters
    ----------
    config : TrainConfig
        Its ``train`` section names files; sources given here take their place.
    source, trusted, test : optional
        As for `codeward.data.load_user_data`.
    model : optional
        As for `choose_model`; by default ``config.train.model``.
    schema : Schema, optional
        Columns, kinds and classes as declared.
    code : CodeChoice, optional
        A code that is there already.

    Examples
    --------
    >>> rows = {"x": [0.0, 1.0] * 20, "y": ["no", "yes"] * 20, "user": [f"u{place // 8}" for place in range(40)]}
    >>> config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, train={"model": "logistic"})
    >>> print(plan_training(config, rows).describe()[2])
    40 samples, 2 classes, 5 users: 8 to 8 samples each, median 8
    """
    told = config.train
    if schema is None and told.columns:
        schema = Schema.load(told.columns)
    given = trusted if trusted is not None else told.trusted
    operators = None
    if given is not None:
        # Trusted samples fix columns and classes; users may then hand in what they like.
        ignore = tuple({*USERS, told.user or "", *told.ignore} - set(() if schema is None else schema.names))
        operators = load_user_data(
            given, told.label, "none", schema=schema, text=told.text, data_dir=config.data_dir, ignore=ignore
        )
        if schema is None:
            schema = replace(operators.schema, origin="trusted", user=told.user)
        if schema.classes is None:
            schema = replace(schema, classes=operators.class_names)
    place = source if source is not None else told.data
    data = load_user_data(place, schema=schema, data_dir=config.data_dir, **told.reading)
    schema = data.schema
    operators = None if operators is None else align(operators, data, "trusted")
    held = test if test is not None else told.test
    checked = data.test
    if held is not None:
        checked = load_user_data(held, told.label or schema.label, "none", schema=replace(schema, user=None))
    checked = None if checked is None else align(checked, data, "test")
    chosen = choose_family(config, schema, data.n_classes, model)
    if chosen.family == "heads" and schema.kind == "features":
        for what, given in (("data", data), ("trusted", operators), ("test", checked)):
            _check_vectors(given, what)
    plan = settle_plan(config, data, operators, checked, chosen, code)
    plan.roles.check(plan.choice.n_attackers)
    return plan


def _check_vectors(given: UserData | None, what: str) -> None:
    """Refuse vectors with holes, which heads cannot fill, by their place in the file."""
    if given is None or not isinstance(given.inputs, np.ndarray):
        return
    holes = np.flatnonzero(~np.isfinite(given.inputs).all(axis=1))
    if holes.size:
        whose = "" if given.hashed else f" (user {given.user_names[given.users[holes[0]]]})"
        raise InputError(f"{what}: row {holes[0]}{whose} holds NaN, infinity or numbers too large; features have none")


def choose_family(config: TrainConfig, schema: Schema, n_classes: int, model: Any = None) -> ModelChoice:
    """Return what a configuration asks for: heads on a backbone, or a model."""
    told, committee = config.train, config.training.committee
    if told.backbone is not None:
        chosen = choose_heads(told.backbone, told.ridge, schema)
    else:
        chosen = choose_model(model if model is not None else told.model, schema, n_classes)
    if committee is None:
        return chosen
    if chosen.settings is None and committee > 1:
        raise InputError(f"--committee: only networks have seeds to differ in; the model is {chosen.name}")
    return replace(chosen, settings=chosen.settings and replace(chosen.settings, committee=committee))


def settle_plan(
    config: TrainConfig,
    data: UserData,
    trusted: UserData | None,
    test: UserData | None,
    model: ModelChoice,
    code: CodeChoice | None = None,
    held_out: float | None = None,
) -> GuardedPlan:
    """Settle code and roles for data that were read, and write down what all of them are.

    Where a code is given and names its users, they come in its order. ``held_out`` is the share of every user's samples
    that is held out where it is not the configuration's, which allows no 0.
    """
    told = config.train
    if code is not None and code.code.users is not None and code.code.users != data.user_names:
        data = _reorder(data, code.code.users)
    fraction = told.test_fraction if held_out is None else held_out
    roles = assign_roles(data, trusted, test, fraction, config.seed)
    if code is None:
        code = _choose_code(config, data, roles, model)
    marks = {"data_digest": digest_data(data)}
    marks |= {} if trusted is None else {"trusted_digest": digest_data(trusted)}
    marks |= {} if test is None else {"test_digest": digest_data(test)}
    section = config.code.model_copy(
        update={"attackers": code.n_attackers}
        | ({"margin": code.margin} if code.guarantee != "given" else {})
        | ({"guarantee": code.guarantee} if code.guarantee not in ("partition", "given") else {})
    )
    settled_config = config.model_copy(
        update={
            "train": told.model_copy(update=marks),
            "users": data.n_users,
            "code": section,
            "dataset": config.dataset if config.dataset != "digits" or told.data == "digits" else "own data",
            "decoder": config.decoder.model_copy(
                update={"max_attackers": min(max(code.n_attackers, 1), data.n_users)}
                | ({} if "name" in config.decoder.model_fields_set else {"name": "calibrated"})
            ),
        }
    )
    return GuardedPlan(settled_config, data, roles, code, model, trusted, test)


def _reorder(data: UserData, users: tuple[str, ...]) -> UserData:
    """Return the data with the users in the order of a code's columns."""
    if sorted(users) != sorted(data.user_names):
        raise InputError("the users in the data are not those of the code; was the folder, or the file, edited?")
    place = {name: column for column, name in enumerate(users)}
    columns = np.array([place[name] for name in data.user_names], dtype=np.int64)
    return replace(data, users=columns[data.users], user_names=users)


def _choose_code(config: TrainConfig, data: UserData, roles: Roles, model: ModelChoice) -> CodeChoice:
    asked = config.code
    set_by_hand = asked.model_fields_set
    fixed = "margin" in set_by_hand
    k = asked.attackers if "attackers" in set_by_hand else None
    if data.hashed:
        return hash_code(data.n_users, data.user_names, k or 1)
    return choose_code(
        data.user_names,
        k,
        asked.guarantee if "guarantee" in set_by_hand else None,
        asked.margin if fixed else None,
        asked.utilization,
        _estimate_error(roles, data.schema, model, config.seed)
        if roles.trusted and "margin" not in set_by_hand
        else None,
        _read_weights(config.train.weights, data.user_names),
        min(asked.time_limit, 5.0),
    )


def _estimate_error(roles: Roles, schema: Schema, model: ModelChoice, seed: int) -> float | None:
    """Fit one model on half of the trusted samples and count its errors on the other half."""
    if model.estimator is None or len(roles.validation) < 20:
        return None
    from sklearn.base import clone

    rows, labels = arrange_inputs(roles.validation.inputs, schema), roles.validation.labels
    order = np.random.default_rng([seed, 3]).permutation(len(labels))
    half = len(labels) // 2
    first, second = order[:half], order[half:]
    if np.unique(labels[first]).size < 2:
        return None
    said = clone(model.estimator).fit(rows[first], labels[first].astype(str)).predict(rows[second])
    return float((said != labels[second].astype(str)).mean())


def _read_weights(file: str | None, users: tuple[str, ...]) -> NDArray[np.float64] | None:
    """Read declared sizes of users; amounts of data are not taken: who hands in more would move the columns of all."""
    if file is None:
        return None
    found = load_weights(file)
    missing = [user for user in users if user not in found]
    if missing:
        raise InputError(f"{file}: no weight for user {missing[0]!r}; every user needs a line user,weight")
    return np.array([found[user] for user in users], dtype=np.float64)


def load_weights(file: str) -> dict[str, float]:
    """Read a CSV of user and weight."""
    rows = list(csv.DictReader(io.StringIO(read_text(file))))
    try:
        return {str(row["user"]).strip(): float(row["weight"]) for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: expected columns user and weight, a number each ({str(error)[:60]})") from error
