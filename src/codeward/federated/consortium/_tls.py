"""TLS of a consortium: its own certificate authority and one server certificate."""

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from codeward._errors import InputError
from codeward.federated.consortium._roster import make_key

# Clocks of users may run behind the server's: a certificate made a minute ago must already be valid for them.
_CLOCK_SLACK = datetime.timedelta(hours=1)
_MAX_DAYS = 3650
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


@dataclass(frozen=True)
class TlsCertificates:
    """A certificate authority and the server certificate it signed, all PEM.

    The server needs ``server_certificate`` and ``server_key``, users need ``authority`` alone. ``authority_key`` is
    needed only to sign the next server certificate and belongs on no machine of the federation.
    """

    authority: bytes
    authority_key: bytes
    server_certificate: bytes
    server_key: bytes


def check_host(host: str) -> str:
    """Return ``host`` if it is a DNS name or an IP address (no port, no scheme), else raise `InputError`."""
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        labels = host.split(".")
        # A last label of digits alone is a mistyped IPv4 address, not a name.
        if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
            raise InputError(f"host {host!r}: give a DNS name or an IP address, without scheme and port") from error
    return host


def make_certificates(hosts: Sequence[str], days: int) -> TlsCertificates:
    """Make an authority and a server certificate for ``hosts``, the second valid ``days`` days from now.

    The authority lasts ten years, so that it can sign the next server certificate without users noticing. It carries
    ``pathLen 0``: it can sign servers, never another authority. The loopback names are always added: the SuperLink
    listens on loopback, behind the gate.

    Parameters
    ----------
    hosts : sequence of str
        DNS names and IP addresses by which users reach the server.
    days : int
        1 to 3650.

    Examples
    --------
    >>> made = make_certificates(["fl.example.org"], days=365)
    >>> made.server_certificate.startswith(b"-----BEGIN CERTIFICATE-----")
    True
    """
    if not 1 <= days <= _MAX_DAYS:
        raise InputError(f"{days} days: a certificate may last 1 to {_MAX_DAYS} days")
    names = list(dict.fromkeys([*(check_host(host) for host in hosts), "localhost", "127.0.0.1", "::1"]))
    start = datetime.datetime.now(datetime.UTC) - _CLOCK_SLACK
    end, last = (start + _CLOCK_SLACK + datetime.timedelta(days=count) for count in (days, _MAX_DAYS))
    authority_key, server_key = make_key(), make_key()

    root = _begin("codeward consortium authority", "codeward consortium authority", authority_key, start, last)
    authority = (
        root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    leaf = _begin(names[0][:64], "codeward consortium authority", server_key, start, end)
    server = (
        leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(server_key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    return TlsCertificates(
        authority.public_bytes(pem), _secret(authority_key), server.public_bytes(pem), _secret(server_key)
    )


def _begin(
    subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, start: datetime.datetime, end: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(subject))
        .issuer_name(_common_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
