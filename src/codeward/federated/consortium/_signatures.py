"""Replies signed with the user's own key, each for one question asked once.

Flower's SuperNode authentication proves who *connects*: every request carries a signed timestamp, and a node reads
only its own messages. It does not bind what is *said*: in 1.41 the body is not signed, and the SuperLink stores a
pushed reply under the sender named inside it, checking only that the question it answers went to that sender. A member
that learned the identifier of a question put to another could answer in its place. A code's guarantee counts users, so
codeward closes this itself, without relying on how Flower routes messages:

1. each question carries a fresh random nonce (which also makes its identifier impossible to guess);
2. the reply is signed by the user's key over that nonce and a digest of all it contains;
3. the server verifies with the key its roster gives for the user it asked, and forgets the nonce: a reply counts once.
"""

import hashlib
import os
import secrets

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from codeward._errors import InputError
from codeward.federated.consortium._keys import read_private_key, sign, verify

CHALLENGE = "codeward.challenge"
SIGNATURE = "codeward.signature"
KEY_FILE = "key-file"
_NONCE_BYTES = 32
# Keeps a signature made here from ever being one of Flower's timestamps, or of anything else the key signs.
_DOMAIN = b"codeward signed reply 1"


def add_challenge(content: RecordDict) -> bytes:
    """Put a fresh nonce into the content of a question and return it."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    content[CHALLENGE] = ConfigRecord({"nonce": nonce})
    return nonce


def sign_content(content: RecordDict, nonce: bytes, key: ec.EllipticCurvePrivateKey) -> None:
    """Add to ``content`` a signature over everything already in it and over ``nonce``."""
    content[SIGNATURE] = ConfigRecord({"signature": sign(key, _statement(content, nonce))})


def check_content(content: RecordDict, nonce: bytes, key: ec.EllipticCurvePublicKey) -> bool:
    """Take the signature out of ``content``; return whether it is the owner of ``key``'s, over the rest and ``nonce``.

    Never raises for what a client put there: anything that is not a valid signature is False.
    """
    record = content.pop(SIGNATURE, None)
    signature = record.get("signature") if isinstance(record, ConfigRecord) else None
    return isinstance(signature, bytes) and verify(key, _statement(content, nonce), signature)


def sign_reply(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Sign the reply of a ClientApp with the user's key (a Flower *mod*).

    The key is read from the file that the user's own command names (``--node-config 'key-file="..."'``); nothing the
    server sends chooses it. A question without nonce is not answered.
    """
    path = context.node_config.get(KEY_FILE)
    if not isinstance(path, str):
        raise InputError(f"start the SuperNode with --node-config '{KEY_FILE}=\"FILE\"' (the private key of this user)")
    key = read_private_key(os.path.expanduser(path))
    challenge = message.content.pop(CHALLENGE, None)
    nonce = challenge.get("nonce") if isinstance(challenge, ConfigRecord) else None
    if not isinstance(nonce, bytes) or len(nonce) != _NONCE_BYTES:
        raise InputError("the server's message carries no nonce: it does not run the consortium's server app")
    reply = call_next(message, context)
    if reply.has_content():
        sign_content(reply.content, nonce, key)
    return reply


def _statement(content: RecordDict, nonce: bytes) -> bytes:
    """Return the bytes that are signed: domain, nonce, and the digest of all records but the signature."""
    return b"\0".join([_DOMAIN, nonce.hex().encode(), _digest(content)])


def _digest(content: RecordDict) -> bytes:
    """Return SHA-256 over names, types and values of all records, every part preceded by its length.

    The order of names does not count, so that it does not matter how they travelled.
    """
    total = hashlib.sha256()

    def feed(*parts: bytes) -> None:
        for part in parts:
            total.update(len(part).to_bytes(8, "big"))
            total.update(part)

    for name in sorted(content):
        record = content[name]
        feed(type(record).__name__.encode(), name.encode(), str(len(record)).encode())
        for key in sorted(record):
            if isinstance(record, ArrayRecord):
                array = record[key]
                feed(key.encode(), array.dtype.encode(), str(tuple(array.shape)).encode(), array.stype.encode())
                feed(array.data)
            else:
                value = record[key]
                feed(key.encode(), type(value).__name__.encode(), repr(value).encode())
    return total.digest()
