"""A Flower grid on which a reply counts only if the user who was asked signed it."""

import math
import time
from collections.abc import Iterable
from logging import WARNING

from flwr.app import Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from codeward.federated.consortium._roster import Member, Roster
from codeward.federated.consortium._signatures import add_challenge, check_content


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
            nonce = add_challenge(message.content)
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
                replies.append(self._judge(reply, name, *self._asked.pop(name)))
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

    def _judge(self, reply: Message, name: str, asked: Metadata, member: Member, nonce: bytes) -> Message:
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
