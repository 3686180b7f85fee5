"""Federated training in one process, without any engine: what every engine must equal, bit for bit."""

from collections.abc import Mapping, Sequence

from codeward._errors import InputError
from codeward._progress import show_progress
from codeward.data import Samples
from codeward.federated._federation import FederatedResult, Federation, FederationPlan
from codeward.federated._folder import FederationFolder
from codeward.federated._local import train_update
from codeward.federated._protocol import Update


def train_federated(
    users: Sequence[Samples],
    plan: FederationPlan,
    updates: Mapping[int, Update] | None = None,
    progress: bool = False,
    honest: Update = train_update,
    folder: FederationFolder | None = None,
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
    folder : FederationFolder, optional
        Keeps every finished round, so that a killed process goes on where it was; it ends with the same bytes.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from codeward.codes import Code
    >>> from codeward.data import load_dataset
    >>> from codeward.federated import FederatedSettings
    >>> from codeward.training import PRESETS
    >>> images = load_dataset("digits", None).train
    >>> users = [images.take(range(8)), images.take(range(8, 24))]
    >>> training = replace(PRESETS["digits"], architecture="mlp")
    >>> plan = FederationPlan(Code([[1, 1], [0, 1]]), training, FederatedSettings(rounds=2), (1, 8, 8), seed=0)
    >>> result = train_federated(users, plan)
    >>> [dict(report.counted) for report in result.rounds]
    [{0: (0,), 1: (0, 1)}, {0: (0,), 1: (0, 1)}]
    """
    if len(users) != plan.code.n_users:
        raise InputError(f"federation: {len(users)} users' data for a code with {plan.code.n_users} columns")
    if folder is not None:
        folder.save_plan(plan)
    federation = Federation(plan) if folder is None else folder.open_federation()
    special = dict(updates or {})
    numbers = range(federation.round + 1, plan.settings.rounds + 1)
    total = sum(len(federation.draw_users(number)) for number in numbers)
    with show_progress("federated", total, quiet=not progress) as bar:
        for number in numbers:
            for user, assignment in federation.assign().items():
                reply = special.get(user, honest)(assignment, users[user])
                if reply is not None:
                    federation.accept(user, reply)
                bar.advance(1, f"replies, round {number}/{plan.settings.rounds}")
            federation.close()
            if folder is not None:
                folder.add_round(federation, {})
    return federation.result()
