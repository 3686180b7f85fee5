"""The promise of a backbone: a fixed function, known by its hash, that never sees users' data."""

from typing import Any, Protocol, runtime_checkable

from codeward.training.heads import GridFeatures

#: What a guarantee adds in words: weights that somebody trained, or a pure function of a seed.
TRUSTED, NOBODY = "trusted, frozen", "nobody to trust"


@runtime_checkable
class Backbone(Protocol):
    """A fixed function from inputs to features on the grid.

    Because it is the same whatever anybody hands in, isolation (Proposition 15 of docs/theory.md) holds for heads on
    it; what is added is trust in whoever trained its weights, where anybody did.

    Attributes
    ----------
    name : str
        How `codeward train --backbone` knows it.
    digest : str
        Hash of everything the function is made of.
    trust : str
        ``trusted, frozen`` or ``nobody to trust``.
    width : int
        Number of features d.

    Examples
    --------
    >>> from codeward.training.backbones import make_backbone
    >>> backbone = make_backbone("gradients")
    >>> isinstance(backbone, Backbone), backbone.trust, backbone.width
    (True, 'nobody to trust', 2048)
    """

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def digest(self) -> str:
        """Hash of the function."""

    @property
    def trust(self) -> str:
        """Who must be trusted."""

    @property
    def width(self) -> int:
        """Number of features."""

    def transform(self, inputs: Any) -> GridFeatures:
        """Return the features of inputs, each row a function of its own input."""
