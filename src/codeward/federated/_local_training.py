"""A user's own work: its data file, its local training, and whole federations of such users in one process."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_npz, write_atomic
from codeward._progress import Shown, show_progress
from codeward.data import Overlay, Samples
from codeward.federated._federation import FederatedResult, Federation, FederationPlan
from codeward.federated._federation_folder import FederationFolder
from codeward.federated._protocol import Arrays, Assignment, Reply, Update, answer
from codeward.training import train_from

_OVERLAYS = ("overlay_ids", "overlay_values", "overlay_alpha")
#: Bytes of a user's own data file, unpacked.
_LARGEST = 64 << 30


def train_update(assignment: Assignment, samples: Samples, device: str = "cpu") -> Reply:
    """Do what an honest user does: train every model it was given and send all of them back.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> from codeward.federated import FederatedSettings
    >>> from codeward.training import TrainingSettings
    >>> training, settings = TrainingSettings(architecture="mlp"), FederatedSettings()
    >>> assignment = Federation(FederationPlan(Code([[1], [1]]), training, settings, (1, 8, 8), 0)).assign()[0]
    >>> reply = train_update(assignment, Samples(np.zeros((4, 1, 8, 8), np.uint8), np.arange(4)))
    >>> list(reply.models), reply.envelope["samples"]
    (['0', '1'], 4)
    """
    trained = {model: train_model(assignment, model, samples, device) for model in assignment.models}
    return answer(assignment, len(samples), trained)


def train_model(assignment: Assignment, model: int, samples: Samples, device: str = "cpu") -> Arrays:
    """Train one model of an assignment on a user's samples, in float32, with one thread where it is a CPU.

    On a CPU the result is a function of the assignment's weights, seed and settings for this model and of the samples:
    same bytes in any process on the same kind of machine. The optimiser starts anew each round.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> from codeward.federated import FederatedSettings
    >>> from codeward.training import TrainingSettings
    >>> training, settings = TrainingSettings(architecture="mlp"), FederatedSettings()
    >>> assignment = Federation(FederationPlan(Code([[1]]), training, settings, (1, 8, 8), 0)).assign()[0]
    >>> trained = train_model(assignment, 0, Samples(np.zeros((4, 1, 8, 8), np.uint8), np.arange(4)))
    >>> list(trained) == list(assignment.models[0])
    True
    """
    # Tensors of its own: training must not write into what somebody else reads.
    start = {name: torch.tensor(array) for name, array in assignment.models[model].items()}
    trained = train_from(start, samples, assignment.training, assignment.seeds[model], device)
    return {name: value.numpy() for name, value in trained.items()}


def save_samples(path: str | os.PathLike[str], samples: Samples) -> None:
    """Write samples: ``images`` (uint8, N x C x H x W), ``labels`` (int64), and overlays where there are any.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_samples(f"{folder}/data.npz", Samples(np.zeros((2, 1, 8, 8), np.uint8), np.array([3, 5])))
    ...     len(load_samples(f"{folder}/data.npz"))
    2
    """
    arrays: dict[str, NDArray[Any]] = {"images": samples.images, "labels": samples.labels}
    if samples.overlays:
        arrays["overlay_ids"] = samples.overlay_ids
        arrays["overlay_values"] = np.stack([overlay.values for overlay in samples.overlays])
        arrays["overlay_alpha"] = np.stack([overlay.alpha for overlay in samples.overlays])
    write_atomic(path, lambda out: np.savez(out, allow_pickle=False, **arrays))


def load_samples(path: str | os.PathLike[str]) -> Samples:
    """Read samples written by `save_samples`, or by anyone with arrays ``images`` and ``labels``.

    Examples
    --------
    >>> import tempfile
    >>> samples = Samples(np.zeros((2, 1, 8, 8), np.uint8), np.array([3, 5]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_samples(f"{folder}/data.npz", samples)
    ...     load_samples(f"{folder}/data.npz").labels.tolist()
    [3, 5]
    """
    file = Path(path)
    try:
        arrays = read_npz(file, ("images", "labels"), _OVERLAYS, limit=_LARGEST)
    except InputError as error:
        reason = str(error).removeprefix(f"{file}: ")
        raise InputError(f"{file}: expected an .npz with images (uint8, N x C x H x W) and labels: {reason}") from error
    try:
        labels = arrays["labels"].astype(np.int64)
        if "overlay_ids" not in arrays:
            return Samples(arrays["images"], labels)
        pairs = zip(arrays["overlay_values"], arrays["overlay_alpha"], strict=True)
        overlays = tuple(Overlay(values, alpha) for values, alpha in pairs)
        return Samples(arrays["images"], labels, overlays, arrays["overlay_ids"].astype(np.int32))
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{file}: {error}") from error


def train_federated(
    users: Sequence[Samples],
    plan: FederationPlan,
    updates: Mapping[int, Update] | None = None,
    progress: Shown = None,
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
    progress : Progress or bool, optional
        Show rounds on stderr.
    honest : callable
        What the others do; by default they train on the CPU.
    folder : FederationFolder, optional
        Keeps every finished round, so that a killed process goes on where it was; it ends with the same bytes.

    Examples
    --------
    >>> from codeward.codes import Code
    >>> from codeward.federated import FederatedSettings
    >>> from codeward.training import TrainingSettings
    >>> users = [Samples(np.zeros((size, 1, 8, 8), np.uint8), np.arange(size)) for size in (4, 8)]
    >>> training, settings = TrainingSettings(architecture="mlp"), FederatedSettings(rounds=2)
    >>> plan = FederationPlan(Code([[1, 1], [0, 1]]), training, settings, (1, 8, 8), seed=0)
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
    with show_progress("federated", total, progress) as bar:
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
