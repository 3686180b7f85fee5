"""What the models take, and how a request's body becomes it: images, or records of a table, features and text."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.data import InputTable, Schema, read_csv_text, read_records
from codeward.serve._access import Limits, refuse
from codeward.serve._inputs import (
    IMAGE_TYPES,
    JSON,
    MULTIPART,
    NPY,
    Shape,
    load_json,
    read_arrays,
    read_images,
    split_parts,
    split_type,
)

CSV, TEXT = "text/csv", "text/plain"


class InputKind(Protocol):
    """One kind of inputs; an item is one input."""

    @property
    def kind(self) -> str:
        """``image``, ``table``, ``features`` or ``text``."""

    def read(self, body: bytes, content_type: str, limits: Limits, convert: bool) -> list[Any]:
        """Return the items of a body, at least one; HTTPException 4xx where it cannot be read."""

    def stack(self, items: Sequence[Any]) -> Any:
        """Return items as the models take them."""

    def digest(self, item: Any) -> str:
        """Return the SHA-256 of an input's content, in hex."""

    def blank(self) -> Any:
        """Return an item on which the models can be tried."""

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know."""

    def describe_body(self, most: int) -> dict[str, Any]:
        """Return the OpenAPI description of the body of ``POST /predict``."""


@dataclass(frozen=True)
class ImageKind:
    """Images on the 0..1 scale, float32 of one shape (C, H, W); ``pixels``: the models take them as uint8, 0..255."""

    shape: Shape
    pixels: bool = False
    kind: str = "image"

    def read(self, body: bytes, content_type: str, limits: Limits, convert: bool) -> list[Any]:
        """Return the images of a body."""
        return list(read_images(body, content_type, self.shape, limits, convert))

    def stack(self, items: Sequence[Any]) -> NDArray[Any]:
        """Return an array (N, C, H, W)."""
        images = np.stack(items)
        return np.rint(images * 255).astype(np.uint8) if self.pixels else images

    def digest(self, item: NDArray[np.float32]) -> str:
        """Return the digest of a picture: all formats agree."""
        pixels = np.rint(item * 255).astype(np.uint8)
        return hashlib.sha256(f"image {item.shape}\n".encode() + pixels.tobytes()).hexdigest()

    def blank(self) -> NDArray[np.float32]:
        """Return a black image."""
        return np.zeros(self.shape, dtype=np.float32)

    def describe(self) -> dict[str, Any]:
        """Return the size of the images."""
        return {"kind": self.kind, **dict(zip(("channels", "height", "width"), self.shape, strict=True))}

    def describe_body(self, most: int) -> dict[str, Any]:
        """Return the OpenAPI description of a body of images."""
        channels, height, width = self.shape

        def scaled(scale: int, required: list[str]) -> dict[str, Any]:
            numbers: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": scale}
            for size in (width, height, channels):
                numbers = {"type": "array", "minItems": size, "maxItems": size, "items": numbers}
            images = {"type": "array", "minItems": 1, "maxItems": most, "items": numbers}
            properties = {"images": images, "scale": {"type": "integer", "enum": [scale]}}
            return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}

        binary = {"schema": {"type": "string", "format": "binary"}}
        text = (
            f"Images of {channels} x {height} x {width}: JSON arrays of pixels 0..255 (0..1 with scale 1), a .npy "
            "array of uint8 (0..255) or float (0..1), one PNG or JPEG, or several as multipart/form-data."
        )
        content: dict[str, Any] = {
            JSON: {"schema": {"anyOf": [scaled(255, ["images"]), scaled(1, ["images", "scale"])]}}
        }
        content |= {NPY: binary} | dict.fromkeys(IMAGE_TYPES, binary) | {MULTIPART: _FILES}
        return {"requestBody": {"required": True, "description": text, "content": content}}


@dataclass(frozen=True)
class RecordKind:
    """Rows of a table, feature vectors or texts, as a schema has them; an item is a tuple of values."""

    schema: Schema

    @property
    def kind(self) -> str:
        """``table``, ``features`` or ``text``."""
        return self.schema.kind

    def read(self, body: bytes, content_type: str, limits: Limits, convert: bool) -> list[Any]:
        """Return the rows of a body; problems name record and column."""
        if not body:
            raise refuse(400, "the body is empty")
        kind = split_type(content_type)[0]
        if kind == MULTIPART:
            parts = split_parts(body, content_type, limits)
            return _bound([item for _, told, part in parts for item in self._read(part, told, limits)], limits)
        return _bound(self._read(body, kind, limits), limits)

    def _read(self, body: bytes, kind: str, limits: Limits) -> list[Any]:
        if self.kind == "features":
            return self._read_features(body, kind)
        if kind not in (JSON, CSV, TEXT) or (kind == TEXT and self.kind != "text"):
            raise refuse(415, f"content type must be one of {', '.join(self.types)}")
        try:
            if kind == CSV:
                return self._rows(read_csv_text(_decode(body), self.schema, "the CSV"))
            if kind == TEXT:
                records: list[Any] = [{self.schema.names[0]: _decode(body)}]
            else:
                records = self._find_records(load_json(body))
            if len(records) > limits.batch:
                raise refuse(413, f"{len(records)} inputs; at most {limits.batch} in one request")
            return self._rows(read_records(records, self.schema, "the records"))
        except InputError as error:
            raise refuse(422, str(error)) from error

    @property
    def types(self) -> tuple[str, ...]:
        """Content types that are read."""
        if self.kind == "features":
            return JSON, NPY
        return (JSON, CSV, TEXT, MULTIPART) if self.kind == "text" else (JSON, CSV, MULTIPART)

    def _find_records(self, content: Any) -> list[Any]:
        key = "texts" if isinstance(content, dict) and "texts" in content and self.kind == "text" else "records"
        if isinstance(content, dict) and content.keys() == {key}:
            content = content[key]
        elif isinstance(content, dict) and "records" not in content:
            content = [content]
        if not isinstance(content, list):
            raise refuse(422, 'expected {"records": [{"column": value, ...}, ...]}, a list of records, or one record')
        if key == "texts" or (self.kind == "text" and all(isinstance(text, str) for text in content)):
            content = [{self.schema.names[0]: text} for text in content]
        for number, record in enumerate(content, 1):
            for name, value in record.items() if isinstance(record, dict) else ():
                if isinstance(value, list | dict):
                    raise refuse(422, f"the records: row {number}, column {name[:40]!r}: expected one value")
        return list(content)

    def _read_features(self, body: bytes, kind: str) -> list[Any]:
        width = self.schema.columns[0].shape[0]
        if kind == NPY:
            values = read_arrays(body, 2)
        elif kind == JSON:
            content = load_json(body)
            rows = content.get("features") if isinstance(content, dict) else content
            if not isinstance(rows, list) or any(not isinstance(row, list) or len(row) != width for row in rows):
                raise refuse(422, f'expected {{"features": [[...], ...]}}, {width} numbers a row')
            if any(type(value) not in (int, float) for row in rows for value in row):
                raise refuse(422, "features must be numbers")
            try:
                values = np.array(rows, dtype=np.float64).reshape(len(rows), width)
            except OverflowError as error:
                raise refuse(422, "a feature is too large") from error
        else:
            raise refuse(415, f"content type must be one of {', '.join(self.types)}")
        if values.ndim != 2 or values.shape[1] != width:
            raise refuse(422, f"features of shape {values.shape}; expected (N, {width})")
        if not np.isfinite(values).all() or (np.abs(values) > 1e100).any():
            raise refuse(422, "features must be finite")
        return [tuple(row) for row in values.astype(np.float64).tolist()]

    def _rows(self, table: InputTable) -> list[Any]:
        return list(zip(*(column.tolist() for column in table.columns.values()), strict=True))

    def stack(self, items: Sequence[Any]) -> Any:
        """Return an `InputTable`, or an array (N, d) of features."""
        if self.kind == "features":
            return np.array(items, dtype=np.float64)
        columns: dict[str, NDArray[Any]] = {}
        for column, values in zip(self.schema.columns, zip(*items, strict=True), strict=True):
            made = np.empty(len(items), dtype=np.float64 if column.kind == "numeric" else object)
            made[:] = values
            columns[column.name] = made
        return InputTable(columns)

    def digest(self, item: Any) -> str:
        """Return the digest of a record: values by column, whatever the format they came in."""
        told = [None if isinstance(value, float) and np.isnan(value) else value for value in item]
        content = json.dumps([list(self.schema.names), told], ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(f"record {content}".encode("utf-8", "surrogatepass")).hexdigest()

    def blank(self) -> Any:
        """Return a record without values, zeros for features."""
        if self.kind == "features":
            return (0.0,) * self.schema.columns[0].shape[0]
        return tuple(float("nan") if column.kind == "numeric" else None for column in self.schema.columns)

    def describe(self) -> dict[str, Any]:
        """Return columns with their kinds."""
        return {"kind": self.kind, "columns": [column.to_json() for column in self.schema.columns]}

    def describe_body(self, most: int) -> dict[str, Any]:
        """Return the OpenAPI description of a body of records."""
        binary = {"schema": {"type": "string", "format": "binary"}}
        content: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in self.types if kind != NPY}
        if self.kind == "features":
            width = self.schema.columns[0].shape[0]
            row = {"type": "array", "minItems": width, "maxItems": width, "items": {"type": "number"}}
            listed, content[NPY] = {"features": row}, binary
        else:
            kinds: dict[str, list[str]] = {"numeric": ["number", "string", "null"]}
            values = {c.name: {"type": kinds.get(c.kind, ["string", "number", "null"])} for c in self.schema.columns}
            listed = {"records": {"type": "object", "properties": values, "additionalProperties": False}}
        if MULTIPART in content:
            content[MULTIPART] = _FILES
        arrays = {
            name: {"type": "array", "minItems": 1, "maxItems": most, "items": item} for name, item in listed.items()
        }
        body = {"type": "object", "required": list(arrays), "additionalProperties": False, "properties": arrays}
        content[JSON] = {"schema": body}
        told = ", ".join(self.schema.names[:20])
        text = f"Records with the columns {told}; a value that is not there counts as missing."
        return {"requestBody": {"required": True, "description": text, "content": content}}


_FILES = {
    "schema": {
        "type": "object",
        "properties": {"file": {"type": "array", "items": {"type": "string", "format": "binary"}}},
    }
}


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(400, "the body is not UTF-8") from error


def _bound(items: list[Any], limits: Limits) -> list[Any]:
    if len(items) > limits.batch:
        raise refuse(413, f"{len(items)} inputs; at most {limits.batch} in one request")
    if not items:
        raise refuse(422, "there are no inputs")
    return items
