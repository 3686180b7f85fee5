"""Certificates: what no attack by k users can change, per threat model. Never imports torch.

The package is callable: ``codeward.certify(votes, code)`` is `certify`. The contract gives function and package one
name, and importing any of its modules binds ``codeward.certify`` to the package.
"""

import sys
from types import ModuleType
from typing import Any

from codeward.certify._agreement import Agreement, certify_agreement
from codeward.certify._certificates import Certificates, Threat, Witness, join_certificates
from codeward.certify._collective import CollectiveCertificate, certify_collective
from codeward.certify._curves import CertifiedCurve, certified_accuracy, plot_certified_accuracy
from codeward.certify._pointwise import certify
from codeward.certify._published import certify_bagging, certify_dpa, certify_finite_aggregation

__all__ = [
    "Agreement",
    "Certificates",
    "CertifiedCurve",
    "CollectiveCertificate",
    "Threat",
    "Witness",
    "certified_accuracy",
    "certify",
    "certify_agreement",
    "certify_bagging",
    "certify_collective",
    "certify_dpa",
    "certify_finite_aggregation",
    "join_certificates",
    "plot_certified_accuracy",
]


class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Certificates:
        """See `codeward.certify.certify`."""
        return certify(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
