"""Small pieces that sections are made of."""

from collections.abc import Mapping
from html import escape

#: Pictures by name, as SVG elements; one that could not be drawn is missing.
Pictures = Mapping[str, str]


def write_figure(pictures: Pictures, name: str, caption: str) -> str:
    """Return a picture with its caption; nothing where the picture is missing."""
    if name not in pictures:
        return ""
    return f"<figure>{pictures[name]}<figcaption>{escape(caption)}</figcaption></figure>"


def write_section(name: str, title: str, body: str) -> str:
    """Return a section under its heading; the body is HTML."""
    return f'<section class="panel" aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{body}</section>\n'


def count_users(k: int) -> str:
    """Return a number of users in words."""
    return "1 user" if k == 1 else f"{k} users"
