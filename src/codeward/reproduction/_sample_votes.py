"""Samples as users: models over parts that a hash assigns, and what they say of the test set.

A code over n parts is trained as any other, part j being user j. Kept are the votes, and for run-off elections how many
models with which vote prefer which class to which (`RunOffCounts`): scores of a thousand models would be gigabytes.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_npz, write_atomic, write_json
from codeward._npy import hash_arrays
from codeward._progress import Shown
from codeward.codes import Code, bagging_code, partition_code, shifted_hash_code
from codeward.decoding import RunOffCounts
from codeward.reproduction._packed_setting import PACKINGS
from codeward.reproduction._packing import pack_arrays
from codeward.runs import describe_machine, read_record_folder

if TYPE_CHECKING:
    from codeward.data import DatasetPair
    from codeward.training import Ensemble, TrainingSettings

#: Changes when a reader of older files would misread newer ones.
FORMAT = "codeward-samples/1"
#: Of the hash; public, since the guarantee needs no secret.
KEY = "codeward"
#: Arrays of a vote file, and what its digest covers.
_HASHED = ("votes", "labels", "joint")
#: Models whose votes are counted and written together.
BLOCK = 50
#: Models a part of ``boosted``, models a sample reaches of ``shifted-hash`` (its d).
BOOST, SPREADS = 3, {"shifted-hash": 4, "shifted-hash-16": 16}
#: Codes over parts, in words.
SAMPLE_CODES = {
    "partition": "partition (DPA)",
    "boosted": f"partition, {BOOST} models a part (boosted DPA)",
    "shifted-hash": "shifted hash, d = 4 (Finite Aggregation)",
    "shifted-hash-16": "shifted hash, d = 16 (Finite Aggregation)",
    "bagging": "random (bagging)",
    "designed": "lines of an affine plane",
}


@dataclass(frozen=True)
class SampleStudy:
    """One ensemble over hashed parts of a data set, and its files in a folder.

    Attributes
    ----------
    folder : Path
    dataset : str
    n_parts : int
        Every model learns from one sample in so many (``designed``: from one in its square root, about).
    code_name : str
        A key of `SAMPLE_CODES`.
    seed : int
        Of the models, and of codes that are drawn.
    backbone : str or None
        Heads on the features of this backbone instead of networks.
    committee : int
        Networks a model, whose probabilities are averaged.
    epochs : int or None
        Of every model, instead of the recipe's own number: codes of unlike many models at equal work.

    Examples
    --------
    >>> study = SampleStudy(Path("results/samples"), "cifar10", 50, "shifted-hash")
    >>> study.code.n_users, study.code.n_models, study.code.row_weight  # parts, models, parts a model
    (200, 200, 4)
    """

    folder: Path
    dataset: str
    n_parts: int
    code_name: str
    seed: int = 0
    backbone: str | None = None
    committee: int = 1
    epochs: int | None = None

    @property
    def name(self) -> str:
        """Name of the files, without endings."""
        again = f"-seed{self.seed}" if self.seed else ""
        kind = f"-{self.backbone}" if self.backbone else f"-committee{self.committee}" if self.committee > 1 else ""
        length = f"-epochs{self.epochs}" if self.epochs else ""
        return f"{self.dataset}-{self.n_parts}-{self.code_name}{kind}{length}{again}"

    @property
    def record_file(self) -> Path:
        """What the votes are, and what they certify."""
        return self.folder / f"{self.name}.json"

    @property
    def votes_file(self) -> Path:
        """Votes, labels, and counts for run-off elections."""
        return self.folder / f"{self.name}.npz"

    @cached_property
    def code(self) -> Code:
        """The code over hashed parts: its users are parts."""
        rng, n = np.random.default_rng(self.seed), self.n_parts
        if self.code_name in SPREADS:
            return shifted_hash_code(n, SPREADS[self.code_name], rng)
        if self.code_name == "bagging":
            spread = SPREADS["shifted-hash"]
            return bagging_code(n * spread, n * spread, spread, rng)
        if self.code_name == "boosted":
            return Code(np.repeat(np.eye(n, dtype=bool), BOOST, axis=0), construction=f"{BOOST} models a part")
        if self.code_name == "designed":
            return draw_lines(n)
        if self.code_name == "partition":
            return partition_code(n, n)
        raise InputError(f"--codes {self.code_name}: expected some of {', '.join(SAMPLE_CODES)}")

    @property
    def feeds_one(self) -> bool:
        """Whether every part feeds one model, so that counts say all that a run-off's certificate needs."""
        return bool((self.code.matrix.sum(axis=0) == 1).all())

    @property
    def orders_file(self) -> Path:
        """Classes in every model's order, best first; written where a part feeds several models."""
        return self.folder / f"{self.name}-orders.npz"

    def load_orders(self) -> NDArray[np.float32]:
        """Return scores (N, m, c) that order classes as every model does."""
        if not self.orders_file.is_file():
            raise InputError(f"{self.orders_file}: not there; a run-off over such a code needs it, so vote anew")
        orders = read_npz(self.orders_file, ("orders",), limit=1 << 30, kinds="u")["orders"]
        return -np.argsort(orders, axis=2).astype(np.float32)

    @property
    def is_voted(self) -> bool:
        """Whether the votes are there, whole."""
        return self.votes_file.is_file() and self.record_file.name in read_record_folder(self.folder)

    def load_record(self) -> dict[str, Any]:
        """Read the record; something else is refused."""
        record = read_record_folder(self.folder).get(self.record_file.name)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise InputError(f"{self.record_file}: no {FORMAT} record")
        return record

    def load_votes(self) -> tuple[NDArray[np.int64], NDArray[np.int64], RunOffCounts]:
        """Return votes (N, m), labels (N,), and the counts of run-off elections."""
        found = read_npz(self.votes_file, _HASHED, limit=1 << 30, kinds="u", packings=PACKINGS)
        labels = found["labels"].astype(np.int64)
        if hash_arrays(found, _HASHED) != self.load_record()["votes"]:
            raise InputError(f"{self.votes_file}: not the votes that {self.record_file.name} is about")
        votes = (found["votes"] + found["labels"]).T.astype(np.int64)  # modulo 256
        return votes, labels, unfold_counts(found["joint"], votes)


def draw_lines(n_parts: int) -> Code:
    """Return the lines of the affine plane of the largest prime order q with q^2 <= ``n_parts``; q^2 parts.

    Two parts are together on one line only, so that attackers hit few models twice.

    Examples
    --------
    >>> code = draw_lines(10)
    >>> code.n_models, code.n_users, code.row_weight
    (12, 9, 3)
    """
    primes = [q for q in range(2, int(n_parts**0.5) + 1) if all(q % p for p in range(2, int(q**0.5) + 1))]
    if not primes:
        raise InputError(f"--codes designed: {n_parts} parts are too few for a plane; use at least 4")
    q = primes[-1]
    x, y = np.divmod(np.arange(q * q), q)
    slanted = [(y - slope * x) % q == start for slope in range(q) for start in range(q)]
    return Code(np.stack([*slanted, *(x == start for start in range(q))]), construction=f"affine plane of order {q}")


def choose_sample_training(study: SampleStudy, pair: "DatasetPair") -> "TrainingSettings":
    """Return the modern recipe; what depends on an amount of data does on that of a model's own parts.

    The study may say how many epochs.

    Examples
    --------
    >>> from codeward.data import load_dataset
    >>> choose_sample_training(SampleStudy(Path("samples"), "digits", 5, "partition"), load_dataset("digits")).n_classes
    10
    """
    from codeward.training import choose_recipe

    base = choose_recipe(study.dataset)
    base = replace(base, n_classes=pair.n_classes, mean=tuple(pair.mean), std=tuple(pair.std))
    return replace(base, committee=study.committee, epochs=study.epochs or base.epochs)


def vote_samples(study: SampleStudy, pair: "DatasetPair", settings: "TrainingSettings", progress: Shown = None) -> None:
    """Train the models of a study and write what they say of the test set; goes on from the blocks that are there.

    Parameters
    ----------
    study : SampleStudy
    pair : DatasetPair
    settings : TrainingSettings
        Fixed before the data are seen: what depends on their amount may depend on a model's own parts only.
    progress : Progress or bool, optional

    Examples
    --------
    >>> import tempfile
    >>> from codeward.data import load_dataset
    >>> from codeward.reproduction import certify_samples
    >>> from codeward.training import TrainingSettings
    >>> study = SampleStudy(Path(tempfile.mkdtemp()), "digits", 5, "partition")
    >>> vote_samples(study, load_dataset("digits"), TrainingSettings(architecture="mlp", epochs=1))
    >>> study.load_votes()[0].shape, study.load_record()["samples_a_model"]  # five models; fewest and most samples
    ((539, 5), [237, 272])
    >>> sorted(certify_samples(study, ["plurality"])["certified"])
    ['plurality']
    """
    from codeward.data import hash_parts
    from codeward.training import plan_models, train_ensembles

    begin = time.monotonic()
    parts = hash_parts(pair.train.images, study.code.n_users, KEY, pair.train.labels)
    users = [pair.train.take(part) for part in parts]
    plans = plan_models(study.code, study.seed)
    blocks = [range(start, min(start + BLOCK, len(plans))) for start in range(0, len(plans), BLOCK)]
    scratch = study.folder / f".{study.name}"
    missing = [block for block in blocks if not _block_file(scratch, block).exists()]
    sizes = [sum(len(users[user]) for user in plan.users) for plan in plans]
    # A model without a sample says label 0, always: a constant, so that the proof holds (Proposition 32).
    trained = [[model for model in block if sizes[model]] for block in missing]
    devices = set()

    def finished(number: int, ensemble: "Ensemble") -> None:
        devices.add(str(ensemble.device))
        block = missing[number]
        scores = np.full((len(pair.test), len(block), pair.n_classes), -np.inf, dtype=np.float32)
        scores[:, :, 0] = 0
        known = ensemble.scores(pair.test)
        scores[:, [block.index(model) for model in trained[number]]] = np.where(np.isnan(known), -np.inf, known)
        kept = count_block(study, scores)
        write_atomic(_block_file(scratch, block), lambda out: np.savez(out, **kept))  # type: ignore[arg-type]

    train_ensembles(
        [(users, [plans[model] for model in chosen]) for chosen in trained],
        settings,
        seed=study.seed,
        progress=progress,
        finished=finished,
    )
    found = [read_npz(_block_file(scratch, block), ("votes", "joint"), limit=1 << 30, kinds="u") for block in blocks]
    device = devices.pop() if devices else "cpu"
    told = {"training": settings.to_json(), "samples_a_model": [min(sizes), max(sizes)]}
    machine = describe_machine(device, _name_gpu(device))
    write_votes(study, pair, found, told | {"seconds": round(time.monotonic() - begin, 1), **machine})
    for block in blocks:
        _block_file(scratch, block).unlink()
    scratch.rmdir()


def count_block(study: SampleStudy, scores: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Return what is kept of some models' scores (N, models, c): votes, joint counts, orders where they are needed."""
    joint = count_preferences(scores).astype(np.uint8 if study.code.n_models < 256 else np.uint16)
    kept = {"votes": scores.argmax(axis=2).T.astype(np.uint8), "joint": joint}
    if not study.feeds_one:
        kept["orders"] = np.argsort(-scores, axis=2, kind="stable").astype(np.uint8)
    return kept


def write_votes(
    study: SampleStudy, pair: "DatasetPair", found: Sequence[dict[str, NDArray[Any]]], told: dict[str, Any]
) -> None:
    """Write votes and joint counts, block after block of models, and the record: who they are of, what was ``told``."""
    labels = pair.test.labels.astype(np.uint8)
    joint = np.zeros(found[0]["joint"].shape, np.uint8 if study.code.n_models < 256 else np.uint16)
    for one in found:
        joint += one["joint"]
    arrays = {"votes": np.concatenate([one["votes"] for one in found]) - labels, "labels": labels, "joint": joint}
    if "orders" in found[0]:
        orders = np.concatenate([one["orders"] for one in found], axis=1)
        write_atomic(study.orders_file, lambda out: np.savez_compressed(out, orders=orders))
    data = pack_arrays(arrays)
    write_atomic(study.votes_file, lambda out: out.write(data))
    record = {
        "format": FORMAT,
        "dataset": study.dataset,
        "parts": study.n_parts,
        "code": {"name": study.code_name, "models": study.code.n_models, "hashed_parts": study.code.n_users},
        "code_digest": study.code.digest,
        "key": KEY,
        "seed": study.seed,
        "inputs": len(pair.test),
        "classes": pair.n_classes,
        "votes": hash_arrays(arrays, _HASHED),
        **({"given_epochs": study.epochs} if study.epochs else {}),
        **told,
        "certified": {},
    }
    write_json(study.record_file, record)


def list_sample_studies(folder: str | os.PathLike[str]) -> list[SampleStudy]:
    """Return the studies whose records are in a folder, by data set, parts and code."""
    found = []
    for record in read_record_folder(folder).values():
        if isinstance(record, dict) and record.get("format") == FORMAT:
            place = record["dataset"], record["parts"], record["code"]["name"], record["seed"]
            kind = record.get("backbone", {}).get("name"), count_networks(record), record.get("given_epochs")
            found.append(SampleStudy(Path(folder), *place, *kind))
    order = list(SAMPLE_CODES)

    def rank(one: SampleStudy) -> tuple[object, ...]:
        code = order.index(one.code_name)
        return one.dataset, one.n_parts, code, one.backbone or "", one.committee, one.epochs or 0, one.seed

    return sorted(found, key=rank)


def count_networks(record: Mapping[str, Any]) -> int:
    """Return the networks of a model of a recorded study."""
    return int(record.get("training", {}).get("committee", 1))


def count_preferences(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Count models by their vote and the class of each pair a < b they prefer, shape (N, c, c (c - 1) / 2).

    What `RunOffCounts.count` counts one by one, as one matrix product an input: a GPU that trains does not wait for it.
    Ties are for the smaller class. Counts are whole numbers, exact in float32.

    Examples
    --------
    >>> count_preferences(np.array([[[3, 1, 2], [0, 5, 4]]], np.float32))  # votes 0 and 1; pairs 01, 02, 12
    array([[[1., 1., 0.],
            [0., 0., 1.],
            [0., 0., 0.]]], dtype=float32)
    """
    c = scores.shape[2]
    low, high = np.triu_indices(c, 1)
    votes = (scores.argmax(axis=2)[:, None] == np.arange(c)[:, None]).astype(np.float32)
    return np.asarray(votes @ (scores[:, :, low] >= scores[:, :, high]).astype(np.float32))


def unfold_counts(folded: NDArray[Any], votes: NDArray[np.int64]) -> RunOffCounts:
    """Return the counts of run-off elections whose pairs a < b `count_preferences` counted, given the votes (N, m)."""
    n, c, pairs = folded.shape
    if pairs != c * (c - 1) // 2 or len(votes) != n:
        raise InputError(f"joint: shape {folded.shape} is not of pairs of {c} classes and {len(votes)} inputs")
    low, high = np.triu_indices(c, 1)
    first = (votes[:, :, None] == np.arange(c)).sum(axis=1)
    joint = np.zeros((n, c, c, c), dtype=np.int64)
    joint[:, :, low, high] = folded
    joint[:, :, high, low] = first[:, :, None] - joint[:, :, low, high]
    return RunOffCounts(first, joint.sum(axis=1), joint)


def _block_file(folder: Path, block: Sequence[int]) -> Path:
    return folder / f"{block[0]}.npz"


def _name_gpu(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch

    return str(torch.cuda.get_device_name())
