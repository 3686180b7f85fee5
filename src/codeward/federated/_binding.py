"""Which node speaks for which user: decided by the server, never by what a client says of itself."""

from typing import Protocol

from flwr.serverapp import Grid


class NodeBinding(Protocol):
    """The server's mapping of connected nodes to columns of the code."""

    def bind(self, grid: Grid) -> dict[int, int]:
        """Return the user index of each node that is connected now, by node id.

        Called at the start of every round. A node that is bound to nobody is left out and gets no messages; two nodes
        never get the same user. The mapping must rest on what the server knows of a node (its registered key), not on
        anything a node sends.
        """


class OrderBinding:
    """Binding of a simulation, where all nodes are the server's own: nodes in order of their ids.

    Which simulated node plays which user does not matter, because nodes hold no data: the assignment names the user and
    the simulated client opens that user's file. Nodes are bound once, when all have arrived, and stay bound.

    Parameters
    ----------
    n_users : int
    """

    def __init__(self, n_users: int) -> None:
        self.n_users = n_users
        self.users_: dict[int, int] = {}

    def bind(self, grid: Grid) -> dict[int, int]:
        """Return the user of each node; nobody before all nodes are there."""
        nodes = sorted(grid.get_node_ids())
        if not self.users_ and len(nodes) >= self.n_users:
            self.users_ = {node: user for user, node in enumerate(nodes[: self.n_users])}
        present = set(nodes)
        return {node: user for node, user in self.users_.items() if node in present}
