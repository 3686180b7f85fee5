"""Decoders fitted on validation data: on class scores, and on hard votes with discounted evidence. Never torch."""

from codeward.decoding.soft._fitted_decoders import DiscountedDecoder, SoftDecoder

__all__ = ["DiscountedDecoder", "SoftDecoder"]
