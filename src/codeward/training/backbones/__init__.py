"""What turns inputs into features before any user hands in anything."""

from codeward.training.backbones._backbone import Backbone

__all__ = ["Backbone"]
