"""scikit-learn estimators on top of codes, decoders and certificates. Imports torch only to train images."""

from codeward.estimators._classifier import CodedClassifier

__all__ = ["CodedClassifier"]
