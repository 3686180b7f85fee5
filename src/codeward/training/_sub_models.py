"""What every family of sub-models can do, whatever it is made of: networks, scikit-learn models, heads."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class SubModels(Protocol):
    """The m fitted sub-models of a code, in the order of its rows; all that serving and certifying ask of them.

    Isolation (Proposition 15 of docs/theory.md) is the promise of whoever fits them: model i is a function of the data
    of its own users, stated settings and a seed.

    Attributes
    ----------
    n_models, n_classes : int
        m and c.

    Examples
    --------
    >>> class Constant:
    ...     n_models, n_classes = 3, 2
    ...     def votes(self, inputs): return np.ones((len(inputs), 3), np.int64)
    ...     def scores(self, inputs): return None
    >>> isinstance(Constant(), SubModels)
    True
    """

    @property
    def n_models(self) -> int:
        """Number of sub-models m."""

    @property
    def n_classes(self) -> int:
        """Number of classes c."""

    def votes(self, inputs: Any) -> NDArray[np.int64]:
        """Return each model's label for each input, shape (N, m); ties to the smaller label."""

    def scores(self, inputs: Any) -> NDArray[np.float32] | None:
        """Return log-probabilities of the classes, shape (N, m, c), or None where the models give labels only."""
