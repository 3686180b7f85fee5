"""A user's data as one .npz file, read without any data set library: what a client opens on its own machine."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward._files import write_atomic
from codeward.data import Overlay, Samples


def save_samples(path: str | os.PathLike[str], samples: Samples) -> None:
    """Write samples: ``images`` (uint8, N x C x H x W), ``labels`` (int64), and overlays where there are any."""
    arrays: dict[str, NDArray[Any]] = {"images": samples.images, "labels": samples.labels}
    if samples.overlays:
        arrays["overlay_ids"] = samples.overlay_ids
        arrays["overlay_values"] = np.stack([overlay.values for overlay in samples.overlays])
        arrays["overlay_alpha"] = np.stack([overlay.alpha for overlay in samples.overlays])
    write_atomic(path, lambda out: np.savez(out, allow_pickle=False, **arrays))


def load_samples(path: str | os.PathLike[str]) -> Samples:
    """Read samples written by `save_samples`, or by anyone with arrays ``images`` and ``labels``."""
    file = Path(path)
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        overlays: tuple[Overlay, ...] = ()
        if "overlay_ids" in arrays:
            pairs = zip(arrays["overlay_values"], arrays["overlay_alpha"], strict=True)
            overlays = tuple(Overlay(values, alpha) for values, alpha in pairs)
        labels = arrays["labels"].astype(np.int64)
        if not overlays:
            return Samples(arrays["images"], labels)
        return Samples(arrays["images"], labels, overlays, arrays["overlay_ids"].astype(np.int32))
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{file}: expected an .npz with images (uint8, N x C x H x W) and labels: {error}") from error
