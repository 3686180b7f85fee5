"""Decoders fitted on validation data: on class scores, and on hard votes with discounted evidence. Never torch."""

from codeward.decoding.soft._discounted import DiscountedDecoder
from codeward.decoding.soft._soft import SoftDecoder

__all__ = ["DiscountedDecoder", "SoftDecoder"]
