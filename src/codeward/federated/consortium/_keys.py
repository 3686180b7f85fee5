"""Node keys: one elliptic-curve key pair per user, in the formats Flower's SuperNodes read."""

import base64
import hashlib
import os
import re
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from codeward._errors import InputError

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
# Names become folder names on every system: no separators, no dots, no leading dash that a command reads as a flag.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_CURVES = ("secp256r1", "secp384r1", "secp521r1")


def check_name(name: str) -> str:
    """Return ``name`` if it can be a user's name and folder, else raise `InputError`."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"user name {name!r}: use 1 to 63 letters, digits, '-' and '_', the first a letter or a digit "
            "(the name becomes a folder)"
        )
    return name


def make_key() -> ec.EllipticCurvePrivateKey:
    """Make a private key on NIST P-384, the curve Flower documents for SuperNode authentication."""
    return ec.generate_private_key(ec.SECP384R1())


def write_private(path: Path, content: bytes) -> None:
    """Write a secret that only its owner can read (mode 0600), from the first moment of its existence.

    The file is created with that mode and must not exist: a secret is never written over another, and never passes
    through a state in which others could open it.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    with os.fdopen(handle, "wb") as out:
        # The umask can only take rights away; say the mode once more so that it does not depend on it.
        os.fchmod(out.fileno(), PRIVATE_FILE)
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def private_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key in OpenSSH form, without pass phrase: ``--auth-supernode-private-key`` reads only that."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def public_line(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key as one OpenSSH line without comment: ``flwr supernode register`` reads that."""
    raw = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return raw.decode("ascii")


def read_private_key(path: str | os.PathLike[str]) -> ec.EllipticCurvePrivateKey:
    """Read a node's private key; refuse one that others on the machine may read, as ssh does."""
    file = Path(path)
    try:
        mode = file.stat().st_mode & 0o777
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: the private key cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise InputError(f"{file}: mode {mode:04o} lets others read the private key; run: chmod 600 {file}")
    try:
        key = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{file}: not an OpenSSH private key without pass phrase") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{file}: not an elliptic-curve key; make one with: ssh-keygen -t ecdsa -b 384")
    return key


def parse_public_key(text: str | bytes, source: str) -> ec.EllipticCurvePublicKey:
    """Read a public key: one OpenSSH line (as users hand it in) or PEM (as the SuperLink keeps it)."""
    raw = text.encode() if isinstance(text, str) else text
    try:
        if raw.startswith(b"-----BEGIN"):
            key = serialization.load_pem_public_key(raw)
        else:
            key = serialization.load_ssh_public_key(raw.strip())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{source}: not a public key (an OpenSSH line or PEM)") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise InputError(f"{source}: not a NIST elliptic-curve key; make one with: ssh-keygen -t ecdsa -b 384")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return OpenSSH's fingerprint, ``SHA256:`` and 43 base64 characters: what ``ssh-keygen -lf node.pub`` prints.

    It hashes the key itself, so that two encodings of one key cannot pass for two keys.
    """
    blob = base64.b64decode(public_line(key).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")


def sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """Return an ECDSA signature over SHA-256, as Flower's own node authentication makes it."""
    return key.sign(message, ec.ECDSA(hashes.SHA256()))


def verify(key: ec.EllipticCurvePublicKey, message: bytes, signature: bytes) -> bool:
    """Return whether ``signature`` is one of ``message`` by the owner of ``key``."""
    try:
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
