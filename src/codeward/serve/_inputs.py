"""Bodies to images: JSON, .npy, PNG, JPEG and multipart, checked before anything is made of them; never unpickled."""

import io
import json
import warnings
from email.message import Message
from itertools import chain
from typing import Any

import numpy as np
from fastapi import HTTPException
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from codeward.serve._access import Limits, refuse

Shape = tuple[int, int, int]
Images = NDArray[np.float32]

JSON, NPY, PNG, JPEG = "application/json", "application/x-npy", "image/png", "image/jpeg"
MULTIPART = "multipart/form-data"
#: What files are by the ends of their names.
ENDINGS = {".csv": "text/csv", ".json": JSON, ".txt": "text/plain", ".png": PNG, ".jpg": JPEG, ".jpeg": JPEG}
#: A part that does not say what it is.
TEXT_PART = "text/plain"
#: Content types of encoded images, and what Pillow calls their formats.
IMAGE_TYPES = {PNG: "PNG", JPEG: "JPEG"}
#: Longest side of nesting in JSON: inputs, channels, rows, columns.
_DEPTH = 4
#: Modes of images that are read; deeper ones would lose bits silently.
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
#: Pixels of an image that is to be scaled.
_MOST_PIXELS = 25_000_000


def read_images(body: bytes, content_type: str, shape: Shape, limits: Limits, convert: bool = False) -> Images:
    """Turn a request's body into images on the 0..1 scale, shape (N, C, H, W), at least one.

    Parameters
    ----------
    body : bytes
    content_type : str
        ``application/json``: ``{"images": [...], "scale": 255}``; ``application/x-npy``: uint8 (0..255) or float
        (0..1); ``image/png`` and ``image/jpeg``: one image; ``multipart/form-data``: PNG and JPEG files.
    shape : tuple of int
        Channels, height, width the models expect.
    limits : Limits
    convert : bool
        Scale PNG and JPEG of another size, and make colours grey where the models read grey, instead of refusing them.

    Raises
    ------
    HTTPException
        400 for a body that cannot be read, 413 for too many inputs, 415 for another content type, 422 for images the
        models do not take.
    """
    kind = split_type(content_type)[0]
    if kind not in (JSON, NPY, *IMAGE_TYPES, MULTIPART):
        raise refuse(415, f"content type must be one of {', '.join((JSON, NPY, *IMAGE_TYPES, MULTIPART))}")
    if not body:
        raise refuse(400, "the body is empty")
    if kind == MULTIPART:
        parts = split_parts(body, content_type, limits)
        found = np.stack([_read_picture(part, shape, convert, f"{name}: ") for name, _, part in parts])
    elif kind in IMAGE_TYPES:
        found = _read_picture(body, shape, convert)
    else:
        found = _read_json(body) if kind == JSON else _read_npy(body)
    images = _fit(found, shape, limits)
    if not (np.isfinite(images).all() and images.min() >= 0 and images.max() <= 1):
        raise refuse(422, "pixel values must be finite and within the scale: 0..255, or 0..1 for floats and scale 1")
    return images


def split_type(content_type: str) -> tuple[str, dict[str, str]]:
    """Return a content type in lower case, and its parameters."""
    told = Message()
    told["content-type"] = content_type.replace("\n", " ").replace("\r", " ")[:1000]
    kind = content_type.partition(";")[0].strip().lower()
    return kind, {name.lower(): value for name, value in (told.get_params(failobj=[]) or [])[1:]}


def split_parts(body: bytes, content_type: str, limits: Limits) -> list[tuple[str, str, bytes]]:
    """Return name, content type and content of the files of a ``multipart/form-data`` body, at least one."""
    boundary = split_type(content_type)[1].get("boundary", "")
    if not boundary or len(boundary) > 200 or not boundary.isascii():
        raise refuse(400, "multipart/form-data without a boundary")
    mark = b"--" + boundary.encode()
    pieces = (b"\r\n" + body).split(b"\r\n" + mark, limits.batch + 2)
    if len(pieces) > limits.batch + 2:
        raise refuse(413, f"more than {limits.batch} inputs in one request")
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise refuse(400, "the body is not readable as multipart/form-data")
    parts = []
    for number, piece in enumerate(pieces[1:-1], 1):
        head, found, content = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        if not found or len(head) > 4096:
            raise refuse(400, f"part {number} is not readable as multipart/form-data")
        told = {"content-type": TEXT_PART}
        for line in head.decode("latin-1").split("\r\n"):
            name, _, value = line.partition(":")
            told[name.strip().lower()] = value
        kind, file = split_type(told["content-type"])[0], told.get("content-disposition", "")
        # Browsers and curl call a CSV file many things; its name says more.
        kind = next((known for ending, known in ENDINGS.items() if f'{ending}"' in file.lower()), kind)
        parts.append((f"part {number}", kind, content))
    return parts


def load_json(body: bytes) -> Any:
    """Parse JSON, without NaN and infinities; HTTPException 400 where it is none."""
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refuse(400, "the body is not readable as JSON") from error


def write_png(image: Images) -> bytes:
    """Return an image (C, H, W), 0..1, of one or three channels as PNG; rounded to 8 bits."""
    pixels = np.rint(image * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _fit(values: Images, shape: Shape, limits: Limits) -> Images:
    """Check the shape and bring it to (N, C, H, W)."""
    channels, height, width = shape
    found = values.shape
    if found == shape or (channels == 1 and found == (height, width)):
        values = values.reshape(1, *shape)
    elif found[1:] == shape or (channels == 1 and found[1:] == (height, width)):
        values = values.reshape(-1, *shape)
    else:
        plain = f", ({height}, {width}), (N, {height}, {width})" if channels == 1 else ""
        raise refuse(422, f"images of shape {found}; expected {shape}, (N, {channels}, {height}, {width}){plain}")
    if len(values) > limits.batch:
        raise refuse(413, f"{len(values)} inputs; at most {limits.batch} in one request")
    if not len(values):
        raise refuse(422, "there are no inputs")
    return values


def _read_json(body: bytes) -> Images:
    content = load_json(body)
    if not isinstance(content, dict) or "images" not in content or not content.keys() <= {"images", "scale"}:
        raise refuse(422, 'expected an object {"images": [...], "scale": 255 or 1}')
    scale = content.get("scale", 255)
    if type(scale) is not int or scale not in (1, 255):
        raise refuse(422, "scale must be 255 or 1")
    # 8-bit pixels go the same way in every format, so that the same picture is the same input.
    return (_flatten(content["images"]).astype(np.float32) / np.float32(scale)).astype(np.float32)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _flatten(value: Any) -> NDArray[np.float64]:
    """Turn nested lists of numbers into an array.

    By hand, because ``np.array`` would read strings and None as numbers, and would pad one long string to all places.
    """
    level: list[Any] = [value]
    shape: list[int] = []
    while type(level[0]) is list:
        size = len(level[0])
        if len(shape) == _DEPTH or size == 0 or any(type(part) is not list or len(part) != size for part in level):
            raise refuse(422, f"images must be nested lists of equal lengths, at most {_DEPTH} deep and not empty")
        shape.append(size)
        level = list(chain.from_iterable(level))
    if not shape or not set(map(type, level)) <= {int, float}:
        raise refuse(422, "images must be nested lists of numbers")
    try:
        return np.array(level, dtype=np.float64).reshape(shape)
    except OverflowError as error:
        raise refuse(422, "a pixel value is too large") from error


def _read_npy(body: bytes) -> Images:
    values = read_arrays(body, _DEPTH)
    if values.dtype == np.uint8:
        return values.astype(np.float32) / np.float32(255)
    with np.errstate(over="ignore", invalid="ignore"):  # a float64 past float32 becomes infinite, and is refused
        return values.astype(np.float32)


def read_arrays(body: bytes, depth: int) -> NDArray[Any]:
    """Return the array of an ``.npy`` body, uint8 or float, of at most ``depth`` dimensions."""
    stream = io.BytesIO(body)
    try:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError("unknown version")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        found, fortran, dtype = read_header(stream)
    # numpy reads the header as Python text, with a tokenizer of its own: a hostile one fails in any number of ways.
    except Exception as error:
        raise refuse(400, "the body is not readable as .npy") from error
    if dtype.hasobject or dtype.fields or dtype.subdtype or not (dtype == np.uint8 or dtype.kind == "f"):
        raise refuse(422, "the array must be uint8 (0..255) or float (0..1)")
    # Nothing is allocated on the word of a header: its size must be that of the bytes that are there.
    content = memoryview(body)[stream.tell() :]
    count = 1
    for size in found:
        count *= size
    if len(found) > depth or any(size < 0 for size in found) or count * dtype.itemsize != len(content):
        raise refuse(422, f"the header announces shape {found[:8]}, the body does not hold it")
    return np.frombuffer(content, dtype=dtype).reshape(found, order="F" if fortran else "C")


def _read_picture(body: bytes, shape: Shape, convert: bool, what: str = "") -> Images:
    channels, height, width = shape
    if channels not in (1, 3):
        raise refuse(415, f"the models take images of {channels} channels; PNG and JPEG have 1 or 3")
    more = "; convert=true scales it, which may destroy a trigger"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = Image.open(io.BytesIO(body), formats=list(IMAGE_TYPES.values()))
        # Size and mode come from the header; nothing is decompressed before they fit, so there is no bomb to open.
        name, size = picture.format, picture.size
        if size != (width, height) and not convert:
            raise refuse(422, f"{what}{name} of {size[0]} x {size[1]} pixels; expected {width} x {height}{more}")
        if size[0] * size[1] > max(_MOST_PIXELS, width * height):
            raise refuse(422, f"{what}{name} of {size[0]} x {size[1]} pixels; far too many")
        if picture.mode not in _MODES:
            raise refuse(422, f"{what}{name} of mode {picture.mode}; expected 8 bits a channel")
        if getattr(picture, "n_frames", 1) != 1:
            raise refuse(422, f"{what}{name} with several frames; send one image")
        if channels == 1 and not convert and picture.mode in ("P", "RGB", "RGBA"):
            colours = np.asarray(picture.convert("RGB"))
            if (colours != colours[:, :, :1]).any():
                raise refuse(422, f"{what}{name} in colour; the models read grey; convert=true makes it grey")
        if channels == 3 and not convert and picture.mode in ("1", "L", "LA"):
            raise refuse(422, f"{what}{name} in grey; the models read colours; convert=true takes it for them")
        plain = picture.convert("L" if channels == 1 else "RGB")
        if size != (width, height):
            plain = plain.resize((width, height), Image.Resampling.BOX)  # as training scales images
        pixels = np.asarray(plain, dtype=np.uint8)
    except Image.DecompressionBombError as error:
        raise refuse(422, f"{what}image of far too many pixels; expected {width} x {height}") from error
    except HTTPException:
        raise
    # A damaged picture can trip the library anywhere between its own errors and those of zlib and struct.
    except Exception as error:
        raise refuse(400, f"{what or 'the body '}is not readable as PNG or JPEG".replace(": is", " is")) from error
    planes = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return planes.astype(np.float32) / np.float32(255)
