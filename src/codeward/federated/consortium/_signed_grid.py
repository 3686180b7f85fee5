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
import math
import os
import secrets
import time
from collections.abc import Iterable
from logging import WARNING

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from codeward._errors import InputError
from codeward.federated.consortium._roster import Member, Roster, read_private_key, sign, verify

CHALLENGE = "codeward.challenge"
SIGNATURE = "codeward.signature"
KEY_FILE = "key-file"
_NONCE_BYTES = 32
# Keeps a signature made here from ever being one of Flower's timestamps, or of anything else the key signs.
_DOMAIN = b"codeward signed reply 1"


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

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> sign_reply(SimpleNamespace(content=RecordDict()), SimpleNamespace(node_config={}), None)
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: start the SuperNode with --node-config 'key-file="FILE"' (the private key of this user)
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


class SignedGrid(Grid):
    """A `Grid` that asks each question with a nonce and passes on only replies signed for it by the user asked.

    A server loop written for any grid runs on it unchanged. In place of a reply without a valid signature the loop sees
    an error, logged with the user's name; what a reply says of its origin is replaced by what the question says. A
    message to a node of nobody is not sent.

    Threat model: arbitrary. Members may send any bytes, in anybody's name, and work together. Trusted are the roster,
    the server's machine, and that a user's private key is its own.

    Parameters
    ----------
    grid : Grid
        Flower's own, as the server app gets it.
    roster : Roster
    look_every : float
        Seconds between two looks for the reply to one question. A look is a request over TLS, to a SuperLink that has
        better things to do while users train for minutes.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> signed = SignedGrid(SimpleNamespace(get_node_ids=lambda: [7]), Roster((), n_users=1, code_digest=""))
    >>> signed.get_node_ids(), signed.pull_messages(["never asked"])
    ([7], [])
    """

    def __init__(self, grid: Grid, roster: Roster, look_every: float = 1.0) -> None:
        self.grid = grid
        self.roster = roster
        self.look_every = look_every
        self._members: dict[int, Member | None] = {}
        self._asked: dict[str, tuple[Metadata, Member, bytes]] = {}
        self._looked: dict[str, float] = {}

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        """Run information."""
        return self.grid.run

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the connected nodes, members' or not."""
        nodes = list(self.grid.get_nodes())
        # The SuperLink makes a node for a key and never gives it another: what is known stays true.
        for node in nodes:
            if node.node_id not in self._members:
                self._members[node.node_id] = self.roster.find(node.public_key)
        return nodes

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes, members' or not."""
        return self.grid.get_node_ids()

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message (deprecated by Flower in favour of the `Message` constructor)."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send each message, with its own nonce, to the member it is for."""
        sent: list[str] = []
        for message in messages:
            if message.metadata.dst_node_id not in self._members:
                self.get_nodes()
            member = self._members.get(message.metadata.dst_node_id)
            if member is None:
                log(WARNING, "message to node %s not sent: it is no member's", message.metadata.dst_node_id)
                continue
            # A shallow copy: one content may serve many messages, and every message needs its own nonce.
            message.content = message.content.copy()
            nonce = secrets.token_bytes(_NONCE_BYTES)
            message.content[CHALLENGE] = ConfigRecord({"nonce": nonce})
            # One by one: Flower leaves out the ids of messages it could not store.
            for name in self.grid.push_messages([message]):
                if name:
                    self._asked[name] = (message.metadata, member, nonce)
                    sent.append(name)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch the replies that are there; each is the asked user's own, or an error. A question is answered once."""
        now, replies = time.monotonic(), []
        due = (name for name in message_ids if now - self._looked.get(name, -math.inf) >= self.look_every)
        open_names = [name for name in due if name in self._asked]
        self._looked |= dict.fromkeys(open_names, now)
        for reply in self.grid.pull_messages(open_names) if open_names else []:
            name = reply.metadata.reply_to_message_id
            if name in self._asked:
                replies.append(self._verify_reply(reply, name, *self._asked.pop(name)))
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send, then poll until all have answered or ``timeout`` seconds have passed."""
        waiting = set(self.push_messages(messages))
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and (deadline is None or time.monotonic() < deadline):
            arrived = list(self.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            replies += arrived
            if waiting:
                time.sleep(self.look_every)
        return replies

    def _verify_reply(self, reply: Message, name: str, asked: Metadata, member: Member, nonce: bytes) -> Message:
        # All that follows from the question; nothing of it is the replier's word.
        metadata = Metadata(
            run_id=asked.run_id,
            message_id=reply.metadata.message_id,
            src_node_id=asked.dst_node_id,
            dst_node_id=asked.src_node_id,
            reply_to_message_id=name,
            group_id=asked.group_id,
            created_at=time.time(),
            ttl=asked.ttl,
            message_type=asked.message_type,
        )
        if reply.has_error():
            return make_message(metadata=metadata, error=reply.error)
        if check_content(reply.content, nonce, member.key):
            return make_message(metadata=metadata, content=reply.content)
        reason = "its reply is not signed by its key for this question"
        log(WARNING, "refused from user %s: %s", member.name, reason)
        return make_message(metadata=metadata, error=Error(ErrorCode.UNKNOWN, reason))


def bind_nodes(nodes: Iterable[NodeInfo], roster: Roster) -> dict[int, int]:
    """Return the user (column of the code) of every node whose key is in the roster.

    With ``--enable-supernode-auth`` a node exists only if the operator registered its public key, and it is online only
    if its owner signed with the private one; `NodeInfo.public_key` is that key as the SuperLink keeps it. Names,
    locations, node configuration and message content are not looked at. A node with a key of nobody is left out. Where
    two nodes hold one user's key (one key registered in two encodings), the lowest node id is kept.

    Parameters
    ----------
    nodes : iterable of NodeInfo
        ``grid.get_nodes()`` of the server app.
    roster : Roster

    Returns
    -------
    dict
        Node id to user, in the order of the users.

    Examples
    --------
    >>> from codeward.federated.consortium import Member
    >>> from codeward.federated.consortium._roster import make_key, public_line
    >>> keys = [public_line(make_key().public_key()) for _ in range(2)]
    >>> roster = Roster((Member(0, "ann", keys[0]),), n_users=1, code_digest="")
    >>> nodes = [NodeInfo(node_id=7, public_key=keys[1].encode()), NodeInfo(node_id=9, public_key=keys[0].encode())]
    >>> bind_nodes(nodes, roster)
    {9: 0}
    """
    first: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: node.node_id):
        member = roster.find(node.public_key)
        if member is not None:
            first.setdefault(member.user, node.node_id)
    return {node: user for user, node in sorted(first.items())}


class KeyBinding:
    """The binding of a consortium: a connected node is the user whose key it holds (see `bind_nodes`).

    Parameters
    ----------
    roster : Roster

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from codeward.federated.consortium._roster import make_key, public_line
    >>> key = public_line(make_key().public_key())
    >>> nodes = [NodeInfo(node_id=9, public_key=key.encode())]
    >>> KeyBinding(Roster((Member(0, "ann", key),), 1, "")).bind(SimpleNamespace(get_nodes=lambda: nodes))
    {9: 0}
    """

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self._strangers: set[int] = set()

    def bind(self, grid: Grid) -> dict[int, int]:
        """Return the user of each node that is connected now, by node id; others are logged once and left out."""
        nodes = list(grid.get_nodes())
        bound = bind_nodes(nodes, self.roster)
        for node in sorted({node.node_id for node in nodes} - set(bound) - self._strangers):
            log(WARNING, "node %s is bound to no user: its key is not in the roster, or there twice; ignored", node)
            self._strangers.add(node)
        return bound
