"""What turns inputs into features before any user hands in anything: fixed functions, known by their hashes."""

from codeward.training.backbones._hashed_features import NOBODY, TRUSTED, Backbone, HashedTable, HashedText
from codeward.training.backbones._named_backbones import (
    BACKBONES,
    FunctionBackbone,
    OnnxBackbone,
    digest_inputs,
    make_backbone,
    tell_clipped,
    transform_cached,
)
from codeward.training.backbones._pretrained import EfficientNetLite, MiniLM
from codeward.training.backbones._stroke_features import StrokeFeatures

__all__ = [
    "BACKBONES",
    "NOBODY",
    "TRUSTED",
    "Backbone",
    "EfficientNetLite",
    "FunctionBackbone",
    "HashedTable",
    "HashedText",
    "MiniLM",
    "OnnxBackbone",
    "StrokeFeatures",
    "digest_inputs",
    "make_backbone",
    "tell_clipped",
    "transform_cached",
]
