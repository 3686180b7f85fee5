"""YAML from somebody else: small, flat, plain values; the rest is refused in one line."""

import os
from pathlib import Path
from typing import Any

import yaml

from codeward._errors import InputError
from codeward._files import read_text

#: Longest and deepest YAML that is read: the loader takes a second for 32 kB of brackets.
MAX_BYTES, MAX_DEPTH = 2**15, 20
#: Characters of what was given that an error shows.
MAX_SHOWN = 80


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Read a small YAML file, from whomever it is: what is too long, too deep or repeated by aliases is refused."""
    if not Path(path).is_file():
        raise InputError(f"{path}: no such configuration file")
    return parse_yaml(read_text(path, MAX_BYTES), str(path))


def parse_yaml(text: str, what: str) -> Any:
    """Read YAML from somebody else as `read_yaml` does; ``what`` names it in errors.

    Examples
    --------
    >>> parse_yaml("users: 12", "the configuration")
    {'users': 12}
    """
    try:
        if len(text) > MAX_BYTES:
            raise InputError(f"{what}: more than {MAX_BYTES:,} characters")
        return yaml.load(text, Loader=_Loader)
    except InputError:
        raise
    except Exception as error:  # PyYAML raises whatever comes up on values that are not what their tag says
        raise InputError(f"{what}: not readable as YAML: {' '.join(str(error).split())[:400]}") from error


class _Loader(yaml.SafeLoader):
    """YAML's safe loader without what turns a small file into a large object, and with equal keys refused."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node; aliases, and nesting deeper than any configuration has, are mistakes."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not supported")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping, and refuse a key that stands there twice: the safe loader takes the last in silence."""
        seen = set()
        for key, _ in node.value:
            name = getattr(key, "value", None)
            if isinstance(name, str) and name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name} stands there twice", key.start_mark)
            seen.add(name if isinstance(name, str) else id(key))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Build a whole number of 64 bits at most: Python does not even print one of thousands of digits."""
        value = int(super().construct_yaml_int(node))
        if abs(value) >= 1 << 63:
            raise yaml.constructor.ConstructorError(None, None, "a number of more than 64 bits", node.start_mark)
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def shorten(text: str, length: int = MAX_SHOWN) -> str:
    """Return text as one line of at most ``length`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[:length]}..."
