"""Data sets, user splits, and the samples users hand in."""

from codeward.data._samples import Overlay, Samples

__all__ = ["Overlay", "Samples"]
