"""Certificates: what no attack by k users can change, per threat model. Never imports torch."""

from codeward.certify._certificates import Certificates, Threat, Witness, join_certificates
from codeward.certify._collective import CollectiveCertificate, certify_collective
from codeward.certify._curves import CertifiedCurve, certified_accuracy, plot_certified_accuracy
from codeward.certify._pointwise import certify
from codeward.certify._published import certify_bagging, certify_dpa, certify_finite_aggregation

__all__ = [
    "Certificates",
    "CertifiedCurve",
    "CollectiveCertificate",
    "Threat",
    "Witness",
    "certified_accuracy",
    "certify",
    "certify_bagging",
    "certify_collective",
    "certify_dpa",
    "certify_finite_aggregation",
    "join_certificates",
    "plot_certified_accuracy",
]
