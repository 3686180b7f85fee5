"""Score files of DPA and Finite Aggregation.

Nothing is unpickled that could run code. DPA and Finite Aggregation write ``torch.save({'labels': labels, 'scores':
predictions}, 'evaluations/NAME.pth')`` with one row of c outputs per input and base model, and take the largest output
(the first one on a tie) as the vote. Note that both list the checkpoints with ``os.listdir``: the order of the m models
in a file is the order of that folder, not of the partitions. A certificate that depends on which model saw which
partition needs the order restored.
"""

import os
import zipfile
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codeward._errors import InputError, TooLargeError
from codeward._files import LARGEST_FILE, open_regular, write_atomic
from codeward.decoding._vote_files import VoteSet
from codeward.decoding._vote_models import check_labels, check_votes


def load_scores(path: str | os.PathLike[str]) -> VoteSet:
    """Read a score file (torch is imported here, with ``weights_only``: no code is unpickled).

    ``scores`` of shape (N, m, c) are outputs or one-hot votes, the vote being the largest (ties to the smaller class);
    of shape (N, m) they are the votes themselves. An array ``radius`` (N) is kept as what somebody claims.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "scores.pth"
    >>> save_scores(file, [[0, 1, 1]], [1], n_classes=2)
    >>> load_scores(file).votes
    array([[0, 1, 1]])
    """
    import torch

    with open_regular(path) as file:
        _check_packing(file, path)
        try:
            stored = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises several kinds for files it refuses to read
            raise InputError(f"{path}: not a score file that can be read without running code") from error
    if not isinstance(stored, dict) or not {"labels", "scores"} <= stored.keys():
        raise InputError(f"{path}: expected a dictionary with 'labels' and 'scores'")
    scores, labels = (_as_numbers(stored[name], f"{path}: {name}") for name in ("scores", "labels"))
    found = _as_votes(scores, labels, path)
    if "radius" not in stored:
        return found
    radius = _as_numbers(stored["radius"], f"{path}: radius")
    if radius.shape != labels.shape or (radius != np.rint(radius)).any():
        raise InputError(f"{path}: radius: expected {labels.size} whole numbers, got {radius.dtype} {radius.shape}")
    return replace(found, radius=radius.astype(np.int64))


def _as_votes(scores: NDArray[Any], labels: NDArray[Any], path: str | os.PathLike[str]) -> VoteSet:
    if scores.ndim == 2:
        votes = check_votes(scores)
        return VoteSet(votes, check_labels(labels, votes.shape[0]))
    if scores.ndim != 3 or scores.shape[2] == 0:
        raise InputError(f"{path}: scores: expected shape (inputs, models, classes), got {scores.shape}")
    if np.isnan(scores).any():
        raise InputError(f"{path}: scores hold NaN")
    votes = scores.argmax(axis=2).astype(np.int64)
    return VoteSet(votes, check_labels(labels, votes.shape[0], scores.shape[2]), None, scores)


def _check_packing(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    """Refuse archives that torch does not write: one whose members are packed could unpack to anything."""
    members: list[zipfile.ZipInfo] = []
    try:
        if zipfile.is_zipfile(file):
            members = zipfile.ZipFile(file).infolist()
    except Exception as error:  # whatever is wrong with its directory
        raise InputError(f"{path}: not a score file: its archive is damaged") from error
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise InputError(f"{path}: not a score file as torch writes it: packed")
    file.seek(0)


def _as_numbers(stored: Any, what: str) -> NDArray[Any]:
    """Turn what torch read into an array of numbers of a bearable size."""
    import torch

    try:
        tensor = torch.as_tensor(stored).detach()
        # Strides may make much of little: a view of one number can have any shape.
        if tensor.numel() * 8 > LARGEST_FILE:
            raise TooLargeError(f"{what}: shape {tuple(tensor.shape)} is too large to read at once")
        values = np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what}: expected a tensor of numbers") from error
    if values.dtype.kind not in "iuf":
        raise InputError(f"{what}: expected numbers, got dtype {values.dtype}")
    return values


def save_scores(
    path: str | os.PathLike[str],
    votes: ArrayLike,
    labels: ArrayLike,
    n_classes: int,
    scores: NDArray[np.floating] | None = None,
) -> None:
    """Write a score file their scripts read, atomically: the scores, or else one-hot votes, shape (N, m, c).

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "scores.pth"
    >>> save_scores(file, [[0, 1, 1]], [1], n_classes=2)
    >>> load_scores(file).scores.shape
    (1, 3, 2)
    """
    import torch

    checked = check_votes(votes, n_classes=n_classes)
    truth = check_labels(labels, checked.shape[0], n_classes)
    outputs = np.eye(n_classes, dtype=np.float32)[checked] if scores is None else np.asarray(scores, dtype=np.float32)
    if outputs.shape != (*checked.shape, n_classes):
        raise InputError(f"scores: expected shape {(*checked.shape, n_classes)}, got {outputs.shape}")
    content = {"labels": torch.from_numpy(truth.astype(np.int32)), "scores": torch.from_numpy(outputs)}
    write_atomic(path, lambda out: torch.save(content, out))
