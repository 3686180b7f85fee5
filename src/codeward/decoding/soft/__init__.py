"""Decoders fitted on validation data: on class scores, and on hard votes with discounted evidence. Never torch."""

from codeward.decoding.soft._fitted_decoders import DiscountedDecoder, SoftDecoder
from codeward.decoding.soft._fitting import PlantedInputs, find_planted

__all__ = ["DiscountedDecoder", "PlantedInputs", "SoftDecoder", "find_planted"]
