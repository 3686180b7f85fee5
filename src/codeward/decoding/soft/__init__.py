"""Decoders fitted on validation data: on class scores, and on hard votes with discounted evidence. Never torch."""

from codeward.decoding.soft._decoder import SoftDecoder
from codeward.decoding.soft._votes import DiscountedDecoder

__all__ = ["DiscountedDecoder", "SoftDecoder"]
