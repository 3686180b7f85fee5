"""Backbones by name, by function, by file; and their features kept by content."""

import hashlib
import importlib
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import read_bytes, read_npz, write_atomic
from codeward._progress import Progress, silent
from codeward.data import InputTable, Schema
from codeward.training.backbones._hashed_features import NOBODY, TRUSTED, Backbone, HashedTable, HashedText
from codeward.training.backbones._pretrained import EFFICIENTNETS, MIRROR, EfficientNetLite, MiniLM
from codeward.training.backbones._stroke_features import StrokeFeatures
from codeward.training.heads import GridFeatures, check_steps, round_to_grid

_LOG = logging.getLogger("codeward.backbones")
#: Inputs between two steps of a progress bar.
_BLOCK = 2000

#: What each name is, for lists and help.
BACKBONES: dict[str, str] = {
    "strokes": "small grey images, made upright: oriented strokes, random waves; nobody to trust",
    "gradients": "the same without making them upright; nobody to trust",
    "scattering": "small grey images, upright: scattering transform, slower; nobody to trust",
    "hashed-text": "texts: hashed words and pieces of words; nobody to trust",
    "hashed-table": "tables: hashed categories, fixed bins; nobody to trust",
    "efficientnet-lite0": "images: ImageNet network, 224 pixels; trusted, frozen",
    "efficientnet-lite2": "images: ImageNet network, 260 pixels; trusted, frozen",
    "efficientnet-lite2-mirror": "the same, averaged with the mirror image, twice the cost; trusted, frozen",
    "features": "vectors of numbers, as they are, at most of norm one; nobody to trust",
    "minilm": "texts: all-MiniLM-L6-v2, the first 256 tokens; trusted, frozen",
}


#: Steps of the grid by which features of an input may differ with the size of the batch: the order of a sum, no more.
_ROUNDING = 4


@dataclass(frozen=True)
class FunctionBackbone:
    """A function from inputs to features: of one's own, whose writer is trusted; or none at all, vectors as they are.

    Attributes
    ----------
    name : str
        ``package.module:function``.
    function : callable
        Takes N inputs, returns an array of shape (N, d).
    width : int
    digest : str
        Hash of the name and the source of the function; what it calls is not in it.
    trust : str

    Examples
    --------
    >>> make_backbone("features", sample=np.zeros((1, 3))).transform(np.eye(3)[:1]).to_floats()
    array([[1., 0., 0.]], dtype=float32)
    """

    name: str
    function: Callable[[Any], Any]
    width: int
    digest: str
    trust: str = TRUSTED

    def transform(self, inputs: Any) -> GridFeatures:
        """Return the features, rounded to the grid; rows of norm above one are scaled down."""
        features = round_to_grid(self.function(inputs), self.width)
        if len(features) != len(inputs):
            raise InputError(f"{self.name}: {len(features)} rows of features for {len(inputs)} inputs")
        if len(features) > 1 and self.trust != NOBODY:
            first = inputs.take(np.arange(1)) if isinstance(inputs, InputTable) else inputs[:1]
            alone = round_to_grid(self.function(first), self.width).steps.astype(np.int64)
            if np.abs(alone - features.steps[:1]).max(initial=0) > _ROUNDING:
                raise InputError(
                    f"{self.name}: the features of an input change with the inputs beside it, so that every user would "
                    "reach all models; compute each input by itself, with constants that are no user's"
                )
        return features


@dataclass(frozen=True)
class OnnxBackbone:
    """A network of one's own as an ONNX file: one input of images, one output of features, scaled to norm one.

    Whoever made the file is trusted; its hash is part of every guarantee.

    Attributes
    ----------
    path : str
    sha256 : str
        Of the file, as it was when the backbone was made.
    n_features : int

    Examples
    --------
    >>> OnnxBackbone("net.onnx", "0" * 64, 512).width
    512
    """

    path: str
    sha256: str
    n_features: int

    @classmethod
    def open(cls, path: str) -> "OnnxBackbone":
        """Open a file: read, hashed, and asked for its width."""
        content = read_bytes(path)
        session = _open_onnx(content, path)
        shape: Sequence[Any] = session.get_outputs()[0].shape
        if len(session.get_inputs()) != 1 or len(shape) != 2 or not isinstance(shape[1], int):
            raise InputError(f"{path}: expected one input and one output of shape (N, features), got {list(shape)}")
        return cls(path, hashlib.sha256(content).hexdigest(), int(shape[1]))

    @property
    def name(self) -> str:
        """Name on the command line: the path."""
        return self.path

    @property
    def trust(self) -> str:
        """Who must be trusted: whoever made the file."""
        return TRUSTED

    @property
    def width(self) -> int:
        """Number of features."""
        return self.n_features

    @property
    def digest(self) -> str:
        """Hash of the file."""
        return self.sha256

    def transform(self, inputs: Any) -> GridFeatures:
        """Return the features of inputs: images as floats of 0 to 1, anything else as it is."""
        content = read_bytes(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise InputError(f"{self.path}: its hash differs from {self.sha256[:16]}, which the heads were fitted on")
        session = _open_onnx(content, self.path)
        given = np.asarray(inputs)
        floats = (given / np.float32(255) if given.dtype == np.uint8 else given).astype(np.float32)
        parts = [np.zeros((0, self.width), np.int16)]
        for start in range(0, len(floats), 64):
            try:
                (features,) = session.run(None, {session.get_inputs()[0].name: floats[start : start + 64]})
            except Exception as error:  # onnxruntime has no common base for inputs that do not fit
                why = " ".join(str(error).split())[-120:]
                raise InputError(f"{self.path}: does not take inputs of shape {floats.shape[1:]} ({why})") from error
            norms = np.linalg.norm(features, axis=1, keepdims=True)
            parts.append(round_to_grid(features / np.where(norms > 0, norms, 1), self.width).steps)
        return GridFeatures(np.concatenate(parts))


def _open_onnx(content: bytes, path: str) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise InputError("onnxruntime is not installed; pip install 'codeward[onnx]' brings it") from error
    try:
        return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no common base for what a damaged file raises
        raise InputError(f"{path}: not readable as ONNX ({' '.join(str(error).split())[:80]})") from error


def make_backbone(name: str, schema: Schema | None = None, sample: Any = None, device: str = "cpu") -> Backbone:
    """Return a backbone: by name (`BACKBONES`), as ``package.module:function``, or an ``.onnx`` file.

    Parameters
    ----------
    name : str
    schema : Schema, optional
        Of the inputs; ``hashed-table`` needs it.
    sample : optional
        One or more inputs, from which the width of a function's features is found; of the server, not of a user.
    device : {"cpu", "cuda"}
        Where a pretrained network computes.

    Examples
    --------
    >>> make_backbone("strokes").width
    2048
    >>> make_backbone("resnet")
    Traceback (most recent call last):
        ...
    codeward._errors.InputError: backbone 'resnet': choose strokes, gradients, scattering, hashed-text, hashed-table, \
efficientnet-lite0, efficientnet-lite2, efficientnet-lite2-mirror, features, minilm, \
package.module:function, or a .onnx file
    """
    if name.removesuffix(MIRROR) in EFFICIENTNETS:
        return EfficientNetLite(name, device=device)
    if device != "cpu":
        raise InputError(f"--device {device}: of EfficientNets only; {name} computes on the CPU")
    if name in ("strokes", "gradients", "scattering"):
        return StrokeFeatures(name)
    if name in ("hashed-text", "minilm"):
        return HashedText() if name == "hashed-text" else MiniLM()
    if name == "hashed-table":
        if schema is None:
            raise InputError("backbone hashed-table: needs the schema of the table")
        return HashedTable(schema)
    if name.endswith(".onnx"):
        return OnnxBackbone.open(name)
    if name == "features":
        if np.ndim(sample) != 2:
            raise InputError("backbone features: needs vectors of numbers; other inputs have backbones of their own")
        width = int(np.shape(sample)[1])
        digest = hashlib.sha256(f"features {width}".encode()).hexdigest()
        return FunctionBackbone(name, np.asarray, width, digest, NOBODY)
    module, colon, function = name.partition(":")
    if not colon or not module or not function.isidentifier():
        choices = ", ".join(BACKBONES)
        raise InputError(f"backbone {name!r}: choose {choices}, package.module:function, or a .onnx file")
    return _open_function(name, module, function, sample)


def _open_function(name: str, module: str, function: str, sample: Any) -> FunctionBackbone:
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"backbone {name!r}: cannot be imported ({' '.join(str(error).split())[:80]})") from error
    if sample is None or not callable(found):
        raise InputError(f"backbone {name!r}: needs a function and an input to find the width of its features")
    width = round_to_grid(found(sample)).width
    try:
        source = inspect.getsource(found)
    except (OSError, TypeError):
        source = ""
    digest = hashlib.sha256(f"function {name} {width} {source}".encode()).hexdigest()
    return FunctionBackbone(name, found, width, digest)


def digest_inputs(inputs: Any) -> str:
    """Return the hash of inputs: images, vectors, texts or a table.

    Examples
    --------
    >>> digest_inputs(["a", "b"]) == digest_inputs(["a", "b"]), digest_inputs(["ab"]) == digest_inputs(["a", "b"])
    (True, False)
    """
    hasher = hashlib.sha256()
    columns = inputs.columns.items() if isinstance(inputs, InputTable) else [("", inputs)]
    for name, values in columns:
        array = np.asarray(values)
        hasher.update(f"{name} {array.dtype.kind} {array.shape} ".encode())
        if array.dtype.kind in "OU":
            for text in array.ravel():
                raw = b"" if text is None else str(text).encode("utf-8", "surrogatepass")
                hasher.update(f"{-1 if text is None else len(raw)} ".encode() + raw)
        else:
            hasher.update(f"{array.dtype.str} ".encode() + np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def transform_cached(
    backbone: Backbone,
    inputs: Any,
    folder: Path | None,
    progress: Progress | None = None,
    parts: Sequence[NDArray[np.int64]] | None = None,
) -> tuple[GridFeatures, bool]:
    """Return the features of inputs and whether they were kept from before, under the hashes of inputs and backbone.

    Isolation: with ``parts``, the places of each user's inputs, every user alone is transformed. Networks and
    functions may give an input other last bits with other inputs beside it, so that who hands in more would reach the
    features of everybody. Inputs in no part get zeros.

    Examples
    --------
    >>> import tempfile
    >>> images = np.zeros((2, 1, 8, 8), np.uint8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = transform_cached(StrokeFeatures(width=8), images, Path(folder))
    ...     again = transform_cached(StrokeFeatures(width=8), images, Path(folder))
    >>> first[1], again[1], bool((first[0].steps == again[0].steps).all())
    (False, True, True)
    """
    groups = [np.arange(len(inputs))] if parts is None else list(parts)
    if folder is None:
        return _transform_groups(backbone, inputs, groups, progress), False
    mark = "" if parts is None else "-" + digest_inputs([str(own.tolist()) for own in groups])[:16]
    file = folder / f"{digest_inputs(inputs)[:32]}-{backbone.digest[:32]}{mark}.npz"
    if file.is_file():
        try:
            kept = read_npz(file, ("steps",), ("clipped",))
            steps = check_steps(kept["steps"], str(file))
            if steps.shape == (len(inputs), backbone.width):
                known = GridFeatures(steps, int(kept["clipped"].sum()) if "clipped" in kept else 0)
                tell_clipped(known)
                return known, True
        except InputError:
            pass  # damaged: made again
    features = _transform_groups(backbone, inputs, groups, progress)
    write_atomic(file, lambda out: np.savez(out, steps=features.steps, clipped=features.n_clipped))
    return features, False


def _transform_groups(
    backbone: Backbone, inputs: Any, groups: Sequence[NDArray[np.int64]], progress: Progress | None
) -> GridFeatures:
    """Transform some inputs of a group at a time, so that a bar can show how far it is."""
    bar, n_clipped = progress or silent(), 0
    steps = np.zeros((len(inputs), backbone.width), np.int16)
    for own in groups:
        for start in range(0, len(own), _BLOCK):
            index = own[start : start + _BLOCK]
            if isinstance(inputs, InputTable):
                block: Any = inputs.take(index)
            else:
                block = inputs[index] if hasattr(inputs, "shape") else [inputs[place] for place in index]
            found = backbone.transform(block)
            if found.width != backbone.width:
                raise InputError(f"backbone {backbone.name}: {found.width} features, announced {backbone.width}")
            steps[index] = found.steps
            n_clipped += found.n_clipped
            bar.advance(len(index))
    made = GridFeatures(steps, n_clipped)
    tell_clipped(made)
    return made


def tell_clipped(features: GridFeatures) -> None:
    """Say how many vectors were longer than one, once, in the log: a model of them is another than was perhaps meant.

    Examples
    --------
    >>> tell_clipped(round_to_grid([[0.6, 0.8]]))
    """
    if features.n_clipped:
        _LOG.warning(
            "%s of %s feature vectors are longer than one and were scaled down to it",
            f"{features.n_clipped:,}",
            f"{len(features):,}",
        )
