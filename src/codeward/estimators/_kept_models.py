"""Fitted scikit-learn models as bytes and back, by skops: nothing is unpickled, and equal models have equal bytes."""

import importlib
import io
import itertools
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from codeward._errors import InputError

#: Bytes that one model may unpack to.
MAX_UNPACKED = 1 << 30

#: What a file may name beyond skops' own list: classes of these packages, and these harmless functions.
_PACKAGES = ("sklearn.", "scipy.sparse.")
_ALLOWED = frozenset({"functools.partial", "sklearn.utils.validation.check_array", "numpy.dtype", "numpy.ndarray"})


def dump_model(model: Any) -> bytes:
    """Return a fitted model as bytes; equal models give equal bytes, whenever and wherever they were fitted.

    Raises
    ------
    InputError
        Names what cannot be kept safely.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> model = DummyClassifier().fit([[0.0]], ["yes"])
    >>> load_model(dump_model(model)).predict([[1.0]]).tolist()
    ['yes']
    """
    from skops import io as skops

    try:
        raw = skops.dumps(model)
    except Exception as error:  # skops raises whatever the object raises
        raise InputError(f"{_name(model)} cannot be kept safely ({_short(error)}); use a scikit-learn model") from error
    _check_types(raw, _name(model))
    return _settle(raw)


def load_model(content: bytes, what: str = "model") -> Any:
    """Return the model that `dump_model` made bytes of; a file that names anything but known types is refused."""
    from skops import io as skops

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MAX_UNPACKED:
            raise InputError(f"{what}: unpacks to {unpacked:,} bytes; too many ({MAX_UNPACKED:,} at most)")
        return skops.loads(content, trusted=_check_types(content, what))
    except InputError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise InputError(f"{what}: not readable as a kept model ({_short(error)})") from error


def _check_types(content: bytes, what: str) -> list[str]:
    """Return the types that must be trusted; refuse all that are not classes of scikit-learn or SciPy."""
    from skops import io as skops

    named: list[str] = skops.get_untrusted_types(data=content)
    for name in named:
        if name not in _ALLOWED and not (name.startswith(_PACKAGES) and _is_class(name)):
            raise InputError(f"{what} cannot be kept safely: it holds a {name}; use scikit-learn's own classes")
    return named


def _is_class(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        return isinstance(getattr(importlib.import_module(module), attribute, None), type)
    except ImportError:
        return False


def _settle(raw: bytes) -> bytes:
    """Write a skops file anew without times and memory addresses, which differ from run to run."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    schema = json.loads(members.pop("schema.json"))
    places: dict[str, str] = {}
    _number(schema, places, itertools.count())
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        renamed = {re.sub(r"^\d+", lambda found: places[found[0]], name): part for name, part in members.items()}
        for name, part in [*sorted(renamed.items()), ("schema.json", json.dumps(schema).encode())]:
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), part, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _number(node: Any, places: dict[str, str], count: Iterator[int]) -> None:
    """Give objects numbers in the order of the tree in place of their addresses; plain values are nobody's twin."""
    if isinstance(node, dict):
        if "_stop_words_id" in node:  # scikit-learn's note of an address
            node["_stop_words_id"]["content"] = "0"
        if "__id__" in node:
            address = f"value {next(count)}" if node.get("is_json") else str(node["__id__"])
            node["__id__"] = int(places.setdefault(address, str(len(places))))
        if isinstance(node.get("file"), str):
            stem, dot, suffix = node["file"].partition(".")
            node["file"] = places.setdefault(stem, str(len(places))) + dot + suffix
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        _number(child, places, count)


def _name(model: Any) -> str:
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    return f"{type(last).__module__}.{type(last).__qualname__}"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
