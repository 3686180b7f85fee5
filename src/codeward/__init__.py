"""Provable backdoor defense for collaborative learning.

``codeward`` trains m sub-models, each on the subset of users that one row of a *code* selects, and reads the m votes
on an input as a received word: it detects a triggered input, recovers the label, names the users who planted the
trigger, and says what is guaranteed.

Names below are imported on first use, so that ``import codeward`` stays cheap and never pulls in torch.
"""

from typing import TYPE_CHECKING

from codeward._importing import attach
from codeward._version import __version__

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

__getattr__, __dir__ = attach(__name__)
