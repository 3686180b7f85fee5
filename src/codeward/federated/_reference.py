"""Federated training in one process, without any engine: what every engine must equal, bit for bit."""

from collections.abc import Mapping, Sequence

from codeward._errors import InputError
from codeward._progress import show_progress
from codeward.data import Samples
from codeward.federated._federation import FederatedResult, Federation, FederationPlan
from codeward.federated._local import train_update
from codeward.federated._protocol import Update


def train_federated(
    users: Sequence[Samples],
    plan: FederationPlan,
    updates: Mapping[int, Update] | None = None,
    progress: bool = False,
    honest: Update = train_update,
) -> FederatedResult:
    """Train the sub-models of a code on data that stay with their users.

    Parameters
    ----------
    users : sequence of Samples
        Data of each user; only that user's update function sees them.
    plan : FederationPlan
    updates : mapping of int to callable, optional
        What some users do instead of `train_update`: attackers, and users that fall silent (None for a reply).
    progress : bool
        Show rounds on stderr.
    honest : callable
        What the others do; by default they train on the CPU.
    """
    if len(users) != plan.code.n_users:
        raise InputError(f"federation: {len(users)} users' data for a code with {plan.code.n_users} columns")
    federation = Federation(plan)
    special = dict(updates or {})
    total = plan.settings.rounds * plan.code.n_users
    with show_progress("federated", total, quiet=not progress) as bar:
        for number in range(1, plan.settings.rounds + 1):
            for user, assignment in federation.assign().items():
                reply = special.get(user, honest)(assignment, users[user])
                if reply is not None:
                    federation.accept(user, reply)
                bar.advance(1, f"replies, round {number}/{plan.settings.rounds}")
            federation.close()
    return federation.result()
