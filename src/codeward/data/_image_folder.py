"""A folder of images: ``user/class/file``, or ``class/file`` with a ``users.csv`` that says whose each file is."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError, TooLargeError
from codeward._files import LARGEST_FILE, read_bytes
from codeward.data._column_files import read_table_file

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".pgm", ".ppm")
#: Files of one folder; bytes and pixels of one file; the longest side a model is given.
MAX_FILES, MAX_IMAGE_BYTES, MAX_PIXELS, MAX_SIDE = 2_000_000, 64 << 20, 25_000_000, 64
#: EXIF's orientation, and what undoes each, in the numbers of Pillow's `Image.Transpose`; above 4 sides are swapped.
_ORIENTATION, _TURNS = 0x0112, {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
#: Files of each user that are looked at to find the common size.
_LOOK_AT = 20


@dataclass(frozen=True)
class ImageFolder:
    """What a folder of images holds, before any pixel is read.

    Attributes
    ----------
    files : tuple of Path
        In sorted order.
    labels, users : tuple of str
        Class and user of each file; no users where neither folders nor a ``users.csv`` say them.
    others : tuple of Path
        Files of other kinds, which are passed over.
    """

    files: tuple[Path, ...]
    labels: tuple[str, ...]
    users: tuple[str, ...] | None
    others: tuple[Path, ...] = ()


def list_image_folder(folder: Path) -> ImageFolder:
    """Find the images of a folder; links are passed over, so that nothing outside it is read."""
    whose = _read_users(folder / "users.csv") if (folder / "users.csv").is_file() else None
    listed = sorted(_walk(folder))
    found = [file for file in listed if file.suffix.lower() in SUFFIXES]
    others = tuple(file for file in listed if file.suffix.lower() not in SUFFIXES and file.name != "users.csv")
    if not found:
        raise InputError(f"{folder}: no images ({', '.join(SUFFIXES)}); expected user/class/file, or class/file")
    depths = {len(file.relative_to(folder).parts) for file in found}
    if len(depths) > 1 or not depths <= {2, 3}:
        odd = next((file for file in found if len(file.relative_to(folder).parts) not in (2, 3)), found[0])
        raise InputError(
            f"{folder}: expected user/class/file or class/file everywhere; {odd.relative_to(folder)} is not"
        )
    depth = depths.pop()
    parts = [file.relative_to(folder).parts for file in found]
    labels = tuple(part[-2] for part in parts)
    if whose is None:
        return ImageFolder(tuple(found), labels, tuple(part[0] for part in parts) if depth == 3 else None, others)
    names = [file.relative_to(folder).as_posix() for file in found]
    if strays := [name for name in names if name not in whose]:
        raise InputError(
            f"{folder / 'users.csv'}: no user for {len(strays):,} of {len(names):,} images ({_list(strays)}); every "
            "file needs a line file,user: add it, or remove the image"
        )
    return ImageFolder(tuple(found), labels, tuple(whose[name] for name in names), others)


def choose_shape(images: ImageFolder) -> tuple[tuple[int, int, int], int]:
    """Return the size (channels, height, width) that most users' images have, and how many users cannot change it.

    One user is one voice: the size is common to all models. Images of another size are scaled to it. Sides are cut to
    `MAX_SIDE`, keeping proportions. Files that cannot be read have no say; `read_images` refuses them.
    """
    by_user: dict[str, list[Path]] = {}
    for file, user in zip(images.files, images.users or [""] * len(images.files), strict=True):
        if len(own := by_user.setdefault(user, [])) < _LOOK_AT:
            own.append(file)
    seen = [Counter(shape for file in own if (shape := _look(file)) is not None) for own in by_user.values()]
    voices = Counter(shapes.most_common(1)[0][0] for shapes in seen if shapes)
    if not voices:
        raise InputError(f"{images.files[0]}: not a readable image, nor any other that was looked at")
    # Most voices; among equals the largest, whatever the order of users.
    channels, height, width = max(voices, key=lambda shape: (voices[shape], shape))
    scale = min(1.0, MAX_SIDE / max(height, width))
    counts = [count for _, count in voices.most_common(2)]
    firm = max(0, (counts[0] - sum(counts[1:]) - 1) // 2)
    return (channels, max(1, round(height * scale)), max(1, round(width * scale))), firm


def read_images(images: ImageFolder, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Read all images in one size, shape (N, C, H, W); of those that cannot be read, all are counted."""
    channels, height, width = shape
    total = len(images.files) * channels * height * width
    if total > LARGEST_FILE:
        raise TooLargeError(f"{len(images.files):,} images of {height} x {width} take {total:,} bytes; too many")
    made = np.empty((len(images.files), channels, height, width), dtype=np.uint8)
    broken: list[tuple[str, InputError]] = []
    for place, file in enumerate(images.files):
        try:
            made[place] = read_image(read_bytes(file, MAX_IMAGE_BYTES), shape, str(file))
        except InputError as error:
            if not _is_broken(error):
                raise
            broken.append((str(file), error))
    if broken:
        others = f", also {_list([name for name, _ in broken[1:]])}" if broken[1:] else ""
        raise InputError(
            f"{broken[0][1]}{others}; {len(broken):,} of {len(images.files):,} images cannot be read: mend them, or "
            "remove them"
        ) from broken[0][1]
    return made


def _is_broken(error: InputError) -> bool:
    """Tell whether an error is of a file that is no image; a bomb or a missing package is another matter."""
    return not isinstance(error, TooLargeError) and not isinstance(error.__cause__, ModuleNotFoundError)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)


def read_image(content: bytes, shape: tuple[int, int, int], what: str) -> NDArray[np.uint8]:
    """Read an encoded image as uint8 (C, H, W), scaled to ``shape``; one that unpacks to too much is refused.

    It is read as a viewer shows it: turned as its EXIF orientation says, transparent parts on white, 16 bits as 8. Each
    is a function of this image alone.

    Examples
    --------
    >>> read_image(b"no image", (1, 8, 8), "upload")
    Traceback (most recent call last):
    codeward._errors.InputError: upload: not a readable image
    """
    channels, height, width = shape
    picture = _open(content, what)
    try:
        picture = _show(picture).convert("L" if channels == 1 else "RGB")
        if picture.size != (width, height):
            picture = picture.resize((width, height), 4)  # box: every pixel counts, also when it shrinks a lot
    except (OSError, ValueError, SyntaxError, MemoryError) as error:
        raise InputError(f"{what}: not a readable image ({' '.join(str(error).split())[:80]})") from error
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _open(content: bytes, what: str) -> Any:
    """Open an image without unpacking it; its announced size is checked first."""
    import io

    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise InputError(f"{what}: reading images needs Pillow; pip install 'codeward[serve]' brings it") from error
    try:
        picture = Image.open(io.BytesIO(content))
    except Exception as error:  # a broken file may raise anything, a bomb among it
        raise InputError(f"{what}: not a readable image") from error
    if picture.size[0] * picture.size[1] > MAX_PIXELS:
        raise TooLargeError(f"{what}: {picture.size[0]} x {picture.size[1]} pixels are too many")
    return picture


def _turn(picture: Any) -> int:
    """Return how the EXIF orientation turns an image, as a number of `_TURNS`; 0 for not at all."""
    try:
        said = picture.getexif().get(_ORIENTATION, 0)
    except Exception:  # a damaged note about an image is no reason to refuse it
        return 0
    return said if said in _TURNS else 0


def _show(picture: Any) -> Any:
    """Return an image as a viewer shows it."""
    from PIL import Image

    if turn := _turn(picture):
        picture = picture.transpose(_TURNS[turn])
    if picture.mode.startswith("I"):
        # 16 bits; Pillow would cut all that is above 255.
        return Image.fromarray((np.clip(np.asarray(picture), 0, 65_535) >> 8).astype(np.uint8))
    if "A" in picture.getbands() or "transparency" in picture.info:
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture.convert("RGBA"))
    return picture


def _look(file: Path) -> tuple[int, int, int] | None:
    """Return channels, height and width that an image announces; None where it is none."""
    try:
        picture = _open(read_bytes(file, MAX_IMAGE_BYTES), str(file))
    except InputError as error:
        if not _is_broken(error):
            raise
        return None
    width, height = picture.size[::-1] if _turn(picture) > 4 else picture.size
    return 1 if picture.mode in ("1", "L", "F", "LA") or picture.mode.startswith("I") else 3, height, width


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and not Path(place, name).is_symlink()]
        for name in names:
            file = Path(place, name)
            if not name.startswith(".") and not file.is_symlink():
                found.append(file)
        if len(found) > MAX_FILES:
            raise TooLargeError(f"{folder}: more than {MAX_FILES:,} files")
    return found


def _read_users(file: Path) -> dict[str, str]:
    columns = read_table_file(file)
    if not {"file", "user"} <= columns.keys():
        raise InputError(f"{file}: expected columns file and user, found {', '.join(columns)[:80]}")
    return {str(name).strip(): str(user).strip() for name, user in zip(columns["file"], columns["user"], strict=True)}
