"""From a node to a user: by the key the SuperLink authenticated, never by what a client says of itself."""

from collections.abc import Iterable
from logging import WARNING

from flwr.common.logger import log
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from codeward.federated.consortium._roster import Roster


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
