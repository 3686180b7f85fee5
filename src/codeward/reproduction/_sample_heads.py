"""Samples as users, heads instead of networks: a linear model a part, on features that no sample has shaped."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from codeward._errors import InputError
from codeward._files import read_npz
from codeward._progress import Progress, silent
from codeward.reproduction._sample_votes import BLOCK, KEY, SampleStudy, count_block, write_votes
from codeward.runs import describe_machine

if TYPE_CHECKING:
    from codeward.data import DatasetPair
    from codeward.training.heads import GridFeatures

#: Stated before the data are seen; chosen on 5,000 held-out training images (docs/heads.md). Others take `RIDGE`.
RIDGES, RIDGE = {("cifar10", 1000): 0.03, ("cifar10", 250): 0.1}, 0.1


@dataclass(frozen=True)
class FrozenFeatures:
    """Features of a data set, and what made them.

    Attributes
    ----------
    train, test : GridFeatures
    name, digest, trust : str
        Of the backbone.
    """

    train: "GridFeatures"
    test: "GridFeatures"
    name: str
    digest: str
    trust: str


def freeze_features(
    pair: "DatasetPair", backbone: str, folder: Path | None = None, progress: Progress | None = None
) -> FrozenFeatures:
    """Return the features of a data set by a backbone's name, kept by content; or those of a file made before.

    Parameters
    ----------
    pair : DatasetPair
    backbone : str
        As `codeward.training.backbones.make_backbone` takes it, or a file that ``codeward features`` wrote, here or
        where there was a GPU; its labels must be those of the data set.
    folder : Path, optional
        Where features are kept.
    progress : Progress, optional
        Advances by the inputs.

    Examples
    --------
    >>> from codeward.data import load_dataset
    >>> found = freeze_features(load_dataset("digits"), "gradients")
    >>> found.train.width, found.trust
    (2048, 'nobody to trust')
    """
    from codeward.training.backbones import TRUSTED, make_backbone, transform_cached
    from codeward.training.heads import round_to_grid

    bar = progress or silent()
    if not backbone.endswith(".npz"):
        made = make_backbone(backbone, sample=pair.train.images[:1])
        train, test = (transform_cached(made, part.images, folder, bar)[0] for part in (pair.train, pair.test))
        return FrozenFeatures(train, test, made.name, made.digest, made.trust)
    held = read_npz(backbone, ("X", "y", "X_test", "y_test", "backbone"), ("trust",), kinds="fU")
    for part, labels in ((pair.train, held["y"]), (pair.test, held["y_test"])):
        if labels.tolist() != [str(label) for label in part.labels]:
            raise InputError(f"{backbone}: its labels are not those of the data set; make features of the same one")
        bar.advance(len(part))
    name, _, digest = str(held["backbone"]).partition(" ")
    train = round_to_grid(held["X"])
    return FrozenFeatures(
        train, round_to_grid(held["X_test"], train.width), name, digest, str(held.get("trust", TRUSTED))
    )


def vote_heads(
    study: SampleStudy, pair: "DatasetPair", features: FrozenFeatures, progress: Progress | None = None
) -> None:
    """Fit one ridge head a model of the code over hashed parts, and write what the heads say of the test set.

    Parts are assigned by the hash of the samples themselves, not of their features, so that a sample reaches the same
    models whatever the backbone (Proposition 32 of docs/theory.md).

    Examples
    --------
    >>> import tempfile
    >>> from codeward.data import load_dataset
    >>> from codeward.reproduction import certify_samples
    >>> pair = load_dataset("digits")
    >>> study = SampleStudy(Path(tempfile.mkdtemp()), "digits", 5, "partition", backbone="gradients")
    >>> vote_heads(study, pair, freeze_features(pair, "gradients"))
    >>> study.load_votes()[0].shape, study.load_record()["backbone"]["trust"]
    ((539, 5), 'nobody to trust')
    """
    from codeward.data import hash_parts
    from codeward.training.heads import StatisticsSet, UserStatistics, fit_heads

    begin, bar = time.monotonic(), progress or silent()
    ridge = RIDGES.get((study.dataset, study.n_parts), RIDGE)
    parts = hash_parts(pair.train.images, study.code.n_users, KEY, pair.train.labels)
    statistics = [
        UserStatistics.of(features.train.take(part), pair.train.labels[part], pair.n_classes) for part in parts
    ]
    rows = [np.flatnonzero(row).tolist() for row in study.code.matrix]
    sizes = [sum(len(parts[part]) for part in row) for row in rows]
    # A model without a sample says label 0, always: a constant, so that the proof holds (Proposition 32).
    fitted = [model for model, size in enumerate(sizes) if size]
    heads = fit_heads(
        StatisticsSet(tuple(statistics)), None, None, [rows[model] for model in fitted], pair.n_classes, ridge,
        keep_sums=0, progress=bar,
    )  # fmt: skip
    place, found = {model: number for number, model in enumerate(fitted)}, []
    for start in range(0, len(rows), BLOCK):
        block = range(start, min(start + BLOCK, len(rows)))
        scores = np.full((len(pair.test), len(block), pair.n_classes), -np.inf, dtype=np.float32)
        scores[:, :, 0] = 0
        mine = [model for model in block if sizes[model]]
        if mine:
            chosen = heads.take([place[model] for model in mine])
            scores[:, [block.index(model) for model in mine]] = chosen.scores(features.test)
        found.append(count_block(study, scores))
        bar.advance(len(block))
    told = {
        "backbone": {"name": features.name, "digest": features.digest, "trust": features.trust},
        "ridge": ridge,
        "samples_a_model": [min(sizes), max(sizes)],
        "seconds": round(time.monotonic() - begin, 1),
        **describe_machine("cpu", None),
    }
    write_votes(study, pair, found, told)
