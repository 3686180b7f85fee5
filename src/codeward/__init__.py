"""Provable backdoor defense for collaborative learning.

``codeward`` trains m sub-models, each on the subset of users that one row of a *code* selects, and reads the m votes
on an input as a received word: it detects a triggered input, recovers the label, names the users who planted the
trigger, and says what is guaranteed.

Names below are imported on first use, so that ``import codeward`` stays cheap and never pulls in torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from codeward._version import __version__

_HOME = {
    "BayesDecoder": "codeward.decoding",
    "Code": "codeward.codes",
    "CodedClassifier": "codeward.estimators",
    "ConsensusDecoder": "codeward.decoding",
    "InputError": "codeward._errors",
    "PluralityDecoder": "codeward.decoding",
    "certify": "codeward.certificates",
    "design": "codeward.codes",
    "estimate_confusion": "codeward.decoding",
    "inspect": "codeward.codes",
    "make_decoder": "codeward.decoding",
}

__all__ = [
    "BayesDecoder",
    "Code",
    "CodedClassifier",
    "ConsensusDecoder",
    "InputError",
    "PluralityDecoder",
    "__version__",
    "certify",
    "design",
    "estimate_confusion",
    "inspect",
    "make_decoder",
]

if TYPE_CHECKING:
    from codeward._errors import InputError
    from codeward.certificates import certify
    from codeward.codes import Code, design, inspect
    from codeward.decoding import (
        BayesDecoder,
        ConsensusDecoder,
        PluralityDecoder,
        estimate_confusion,
        make_decoder,
    )
    from codeward.estimators import CodedClassifier


def __getattr__(name: str) -> Any:
    if name in _HOME:
        try:
            return getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "codeward").startswith("codeward"):
                raise
            hint = f"codeward.{name} needs {error.name}; pip install 'codeward[train]' brings it"
            raise ModuleNotFoundError(hint, name=error.name) from None
    raise AttributeError(f"module 'codeward' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
