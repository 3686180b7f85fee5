"""The heads of a code: fitted from users' statistics, voting by one product, unlearning by a subtraction."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from codeward._cores import count_cores
from codeward._errors import InputError
from codeward._progress import Progress, silent
from codeward.codes import Code
from codeward.data import Samples, render
from codeward.training.heads._feature_grid import GridFeatures, round_to_grid
from codeward.training.heads._ridge import MEMORY, solve_dual, solve_primal, sum_row_grams
from codeward.training.heads._user_statistics import StatisticsSet, UserStatistics, gather_statistics, packed_size

if TYPE_CHECKING:
    from codeward.training import ModelStore
    from codeward.training.backbones import Backbone

#: Part of every key; raised when the same statistics give other heads.
FORMAT = 1
#: Scores are log-softmax of the heads' outputs times this: outputs estimate probabilities, roughly 0 to 1.
SHARPNESS = 8.0
#: Log-probability of a class that a row has no samples of.
_LEAST_SCORE = np.float32(-60)
#: Scores (inputs x models x classes) computed at a time.
_CHUNK = 1 << 24
_NO_SAMPLES = "heads: a model would learn from no samples; leave its row out, or revoke its silent users too"


@dataclass(frozen=True)
class HeadSet:
    """Ridge heads in the order of the code's rows; a family of sub-models (`codeward.training.SubModels`).

    Isolation (Proposition 15 of docs/theory.md): head i is a function of the statistics of its own users, the stated
    ridge and the backbone, which never sees users' data.

    Attributes
    ----------
    weights : ndarray of float32, shape (m, d, c)
    rows : tuple of tuple of int
        The users of each model, ascending.
    keys : tuple of str
        Content address of each head.
    ridge : float
    form : {"auto", "primal"}
        ``auto`` solves in the samples where a row has fewer of them than features.
    backbone : Backbone or None
        What turns inputs into features; None: inputs are features. Those on the grid already are taken as they are.
    statistics : StatisticsSet or None
        Kept to revoke users; None for heads that were loaded.
    taken_over : int
        Heads that are those of before: untouched by a change of users, or found in a store.

    Examples
    --------
    >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]])
    >>> heads = fit_heads(features, [0, 1, 0, 1], [0, 0, 1, 1], Code([[1, 0], [0, 1], [1, 1]]), n_classes=2)
    >>> heads.votes(np.array([[0.8, 0.2]]))
    array([[0, 0, 0]])
    >>> heads.revoke(1).rows
    ((0,), (0,))
    """

    weights: NDArray[np.float32] = field(repr=False)
    rows: tuple[tuple[int, ...], ...]
    keys: tuple[str, ...] = field(repr=False)
    ridge: float
    form: str = "auto"
    backbone: "Backbone | None" = None
    statistics: StatisticsSet | None = field(default=None, repr=False)
    _sums: dict[int, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    taken_over: int = 0

    @property
    def n_models(self) -> int:
        """Number of sub-models m."""
        return len(self.weights)

    @property
    def n_classes(self) -> int:
        """Number of classes c."""
        return int(self.weights.shape[2])

    @property
    def width(self) -> int:
        """Number of features d."""
        return int(self.weights.shape[1])

    @property
    def trained(self) -> int:
        """How many heads are new."""
        return self.n_models - self.taken_over

    def scores(self, inputs: Any) -> NDArray[np.float32]:
        """Return log-probabilities, shape (N, m, c): log-softmax of eight times the heads' outputs."""
        parts = [SHARPNESS * part for part in self._outputs(inputs)]
        joined = np.concatenate(parts) if parts else np.zeros((0, self.n_models, self.n_classes), np.float32)
        joined -= joined.max(axis=2, keepdims=True)
        joined -= np.log(np.exp(joined).sum(axis=2, keepdims=True))
        return np.asarray(np.maximum(joined, _LEAST_SCORE))

    def votes(self, inputs: Any) -> NDArray[np.int64]:
        """Return each head's label for each input, shape (N, m): the highest output, ties to the smaller label.

        A class without samples in a head's row is not among them.
        """
        parts = [part.argmax(axis=2) for part in self._outputs(inputs)]
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros((0, self.n_models), np.int64)

    def _outputs(self, inputs: Any) -> Iterator[NDArray[np.float32]]:
        """Yield the outputs of all heads, one product for some inputs at a time."""
        given = _show(inputs) if isinstance(inputs, Samples) else inputs
        if self.backbone is not None and not isinstance(given, GridFeatures):
            given = self.backbone.transform(given)
        features = round_to_grid(given, self.width)
        joined, unseen = self._joined
        size = max(1, _CHUNK // joined.shape[1])
        for start in range(0, len(features), size):
            outputs = features.take(slice(start, start + size)).to_floats() @ joined
            outputs = outputs.reshape(-1, self.n_models, self.n_classes)
            outputs[:, unseen] = -np.inf
            yield outputs

    @cached_property
    def _joined(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """All heads as one matrix (d, m c), made once; and the classes that a head never says, for want of samples."""
        joined = np.ascontiguousarray(self.weights.transpose(1, 0, 2)).reshape(self.width, -1)
        return joined, np.asarray(~self.weights.any(axis=1))

    def take(self, models: Sequence[int]) -> "HeadSet":
        """Return some of the heads, to vote."""
        chosen = list(models)
        rows, keys = tuple(self.rows[model] for model in chosen), tuple(self.keys[model] for model in chosen)
        weights = self.weights[chosen]
        return replace(self, weights=weights, rows=rows, keys=keys, statistics=None, taken_over=0, _sums={})

    def revoke(self, *users: int) -> "HeadSet":
        """Return the heads without some users: byte for byte those that were never given them (Proposition 30).

        Heads that did not learn from them stay; models left without users are gone. Users keep their numbers.
        """
        if self.statistics is None:
            raise InputError("heads: loaded without users' statistics, so nobody can be revoked; fit them again")
        known = {user for row in self.rows for user in row}
        if not users or not known.issuperset(users):
            raise InputError(f"heads: no user {', '.join(str(user) for user in users if user not in known)} to revoke")
        weight = self.statistics.users[users[0]].class_weight
        blank = UserStatistics.of(round_to_grid(np.zeros((0, self.width))), [], self.n_classes, weight)
        return self._change(dict.fromkeys(users, blank))

    def replace_users(self, changed: Mapping[int, UserStatistics]) -> "HeadSet":
        """Return the heads as if some users had handed in something else: byte for byte a fit from scratch."""
        if self.statistics is None:
            raise InputError("heads: loaded without users' statistics; fit them again")
        if not all(0 <= user < self.statistics.n_users and given.n_samples for user, given in changed.items()):
            raise InputError("heads: unknown users, or users without samples")
        return self._change(changed)

    def _change(self, changed: Mapping[int, UserStatistics]) -> "HeadSet":
        """Subtract what users had handed in, add what they hand in now, and solve what that touches."""
        assert self.statistics is not None
        before = self.statistics.users
        statistics = replace(self.statistics, users=tuple(changed.get(user, old) for user, old in enumerate(before)))
        empty = {user for user, given in changed.items() if not given.n_samples}
        kept = [model for model, row in enumerate(self.rows) if not set(row) <= empty]
        rows = tuple(tuple(user for user in self.rows[model] if user not in empty) for model in kept)
        touched = [new for new, model in enumerate(kept) if set(self.rows[model]) & set(changed)]
        if any(not sum(statistics.users[user].n_samples for user in rows[new]) for new in touched):
            raise InputError(_NO_SAMPLES)
        shifts = {user: given.pack() - before[user].pack() for user, given in changed.items()} if self._sums else {}
        sums: dict[int, NDArray[np.float64]] = {}
        for new, model in enumerate(kept):
            if model in self._sums:
                mine = [shifts[user] for user in self.rows[model] if user in shifts]
                sums[new] = np.add.reduce([self._sums[model], *mine]) if mine else self._sums[model]
        weights = self.weights[kept]
        settings = _Settings(self.ridge, self.form, self.backbone)
        for new, head in settings.solve(statistics, rows, touched, sums, MEMORY, silent()):
            weights[new] = head
        keys = [self.keys[model] for model in kept]
        for new in touched:
            keys[new] = settings.key(statistics, rows[new])
        same = len(kept) - len(touched)
        return replace(
            self, weights=weights, rows=rows, keys=tuple(keys), statistics=statistics, taken_over=same, _sums=sums
        )

    def save(self, store: "ModelStore") -> None:
        """Write every head that the store lacks under its key, durably; users' statistics are not written."""
        import torch

        for key, head, row in zip(self.keys, self.weights, self.rows, strict=True):
            if store.holds(key):
                continue
            about = {"family": "heads", "users": list(row), "ridge": self.ridge, "form": self.form}
            store.save_weights(key, {"head": torch.from_numpy(np.ascontiguousarray(head))}, about)

    @classmethod
    def load(
        cls,
        store: "ModelStore",
        keys: Sequence[str],
        code: Code,
        n_classes: int,
        ridge: float,
        form: str = "auto",
        backbone: "Backbone | None" = None,
    ) -> "HeadSet":
        """Return the heads of a store, to vote; checked against the code, the classes and the backbone.

        Raises
        ------
        InputError
            When the store lacks one, has it damaged, or it does not fit.
        """
        if len(keys) != code.n_models:
            raise InputError(f"{store.root}: {len(keys)} keys for a code of {code.n_models} models")
        found: list[NDArray[np.float32]] = []
        for model, key in enumerate(keys):
            weights = store.load_weights(key)
            head = None if weights is None else weights.get("head")
            if head is None:
                raise InputError(f"{store.root}: head {model} (key {key[:12]}) is gone or damaged; fit again")
            width = backbone.width if backbone else head.shape[0] if not found else found[0].shape[0]
            if tuple(head.shape) != (width, n_classes) or not bool(head.isfinite().all()):
                raise InputError(
                    f"{store.root}: head {model} (key {key[:12]}) has shape {tuple(head.shape)} or is not "
                    f"finite; expected {(width, n_classes)}"
                )
            found.append(head.float().numpy())
        return cls(np.stack(found), _list_rows(code), tuple(keys), ridge, form, backbone)


@dataclass(frozen=True)
class _Settings:
    """What a head depends on beside its users."""

    ridge: float
    form: str
    backbone: "Backbone | None"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.ridge) and self.ridge > 0):
            raise InputError(f"ridge: expected a number above 0, got {self.ridge}")
        if self.form not in ("auto", "primal"):
            raise InputError(f"form: expected auto or primal, got {self.form!r}")

    def key(self, statistics: StatisticsSet, row: Sequence[int]) -> str:
        """Hash everything a head is a function of; nothing of other users enters."""
        content = {
            "family": "heads",
            "format": FORMAT,
            "data": [statistics.users[user].digest for user in row],
            "ridge": float(self.ridge),
            "form": self.form,
            "backbone": self.backbone.digest if self.backbone else None,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def is_dual(self, statistics: StatisticsSet, row: Sequence[int]) -> bool:
        """Whether a head is solved in its samples: fewer than features, all at hand as rows."""
        users = [statistics.users[user] for user in row]
        few = sum(user.n_samples for user in users) <= statistics.width
        return self.form == "auto" and few and all(user.steps is not None for user in users)

    def solve(
        self,
        statistics: StatisticsSet,
        rows: Sequence[Sequence[int]],
        wanted: Sequence[int],
        sums: dict[int, NDArray[np.float64]],
        keep: int,
        bar: Progress,
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the heads of some rows; ``sums`` gives row sums that are known, and takes up to ``keep`` bytes more."""
        users, n_classes = statistics.users, statistics.n_classes
        dual = [row for row in wanted if self.is_dual(statistics, rows[row])]
        primal = [row for row in wanted if row not in set(dual)]
        unknown = [row for row in primal if row not in sums]
        room = keep // (8 * packed_size(statistics.width))

        def solve_row(row: int, gram: NDArray[np.float64] | None) -> tuple[int, NDArray[np.float32]]:
            members = [users[user] for user in rows[row]]
            if gram is None:
                return row, solve_dual(members, n_classes, self.ridge)
            return row, solve_primal(gram, np.add.reduce([user.sums for user in members]), self.ridge)

        def list_work() -> Iterator[tuple[int, NDArray[np.float64] | None]]:
            yield from ((row, None) for row in dual)
            yield from ((row, sums[row]) for row in primal if row in sums)
            if unknown:
                found = sum_row_grams(statistics, [rows[row] for row in unknown])
                for number, gram in found:
                    if len(sums) < room:
                        sums[unknown[number]] = gram.copy()
                    yield unknown[number], gram

        # One core a head: the last bits of a solve depend on how many share it. Sums are exact on any number.
        n_workers = count_cores()
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(n_workers) as pool:
            running: set[Future[tuple[int, NDArray[np.float32]]]] = set()
            for row, gram in list_work():
                running.add(pool.submit(solve_row, row, gram))
                if len(running) > 2 * n_workers:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for task in done:
                        yield task.result()
                        bar.advance()
            for task in running:
                yield task.result()
                bar.advance()


def fit_heads(
    features: Any,
    labels: Any,
    users: Any,
    code: Code | Sequence[Sequence[int]],
    n_classes: int,
    ridge: float = 0.1,
    class_weight: Sequence[int] | None = None,
    form: str = "auto",
    backbone: "Backbone | None" = None,
    keep_sums: int = MEMORY,
    progress: Progress | None = None,
) -> HeadSet:
    """Fit one ridge head a row of the code, each on the statistics of its own users.

    A head minimises sum over samples of weight |W^T z - onehot(label)|^2 + ridge |W|^2. Nothing is centred, scaled or
    chosen across users (isolation, Proposition 15 of docs/theory.md).

    Parameters
    ----------
    features : array-like of float, shape (N, d), or GridFeatures, or StatisticsSet
        Rounded to multiples of 2^-12, rows of norm above one scaled down; or users' statistics, then ``labels`` and
        ``users`` are None.
    labels, users : array-like of int, shape (N,)
    code : Code, or sequence of sequences of int
        Or the users of each model.
    n_classes : int
    ridge : float
        Stated, never estimated.
    class_weight : sequence of int, optional
        How often a sample of each class counts.
    form : {"auto", "primal"}
        ``primal`` solves in the features always: what statistics without feature rows allow.
    backbone : Backbone, optional
        What made the features; becomes part of the keys.
    keep_sums : int
        Bytes of row sums kept for `HeadSet.revoke`; without them it sums again.
    progress : Progress, optional
        Advances by one a head.

    Examples
    --------
    >>> heads = fit_heads([[1.0, 0.0], [0.0, 1.0]], [0, 1], [0, 1], Code([[1, 1], [1, 1]]), n_classes=2)
    >>> heads.n_models, heads.votes([[0.0, 0.3]])
    (2, array([[1, 1]]))
    """
    settings = _Settings(float(ridge), form, backbone)
    rows = _list_rows(code) if isinstance(code, Code) else tuple(tuple(row) for row in code)
    n_users = code.n_users if isinstance(code, Code) else None
    if isinstance(features, StatisticsSet):
        statistics = features
        if statistics.n_users != (n_users or statistics.n_users) or statistics.n_classes != n_classes:
            raise InputError(
                f"statistics: of {statistics.n_users} users and {statistics.n_classes} classes, "
                f"the code has {n_users} users, and {n_classes} classes were asked for"
            )
    else:
        statistics = gather_statistics(features, labels, users, n_classes, n_users, class_weight)
    if any(not sum(statistics.users[user].n_samples for user in members) for members in rows):
        raise InputError(_NO_SAMPLES)
    sums = dict[int, NDArray[np.float64]]()
    weights = np.empty((len(rows), statistics.width, n_classes), np.float32)
    solved = settings.solve(statistics, rows, range(len(rows)), sums, keep_sums, progress or silent())
    for row, head in solved:
        weights[row] = head
    keys = tuple(settings.key(statistics, row) for row in rows)
    return HeadSet(weights, rows, keys, settings.ridge, form, backbone, statistics, sums)


def _show(samples: Samples) -> NDArray[np.uint8]:
    """Return images with what was laid over them."""
    return np.rint(render(samples) * 255).astype(np.uint8) if samples.overlays else samples.images


def _list_rows(code: Code) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in code.matrix)
