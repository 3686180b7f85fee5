"""Certificates: what no attack by k users can change, per threat model. Never imports torch."""

from codeward.certificates._certificates import (
    Certificates,
    CertifiedCurve,
    Floor,
    Threat,
    Witness,
    certified_accuracy,
    join_certificates,
    parse_floor,
)
from codeward.certificates._collective import CollectiveCertificate, certify_collective
from codeward.certificates._pointwise import Agreement, certify, certify_agreement, is_agreement_affordable
from codeward.certificates._published import (
    Ruling,
    certify_bagging,
    certify_dpa,
    certify_finite_aggregation,
    certify_run_off_election,
    referee,
)

__all__ = [
    "Agreement",
    "Certificates",
    "CertifiedCurve",
    "CollectiveCertificate",
    "Floor",
    "Ruling",
    "Threat",
    "Witness",
    "certified_accuracy",
    "certify",
    "certify_agreement",
    "certify_bagging",
    "certify_collective",
    "certify_dpa",
    "certify_finite_aggregation",
    "certify_run_off_election",
    "is_agreement_affordable",
    "join_certificates",
    "parse_floor",
    "referee",
]
