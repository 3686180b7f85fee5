"""Pages from templates: one HTML file that needs nothing outside itself, every text escaped, pictures taken apart."""

import re
import xml.etree.ElementTree as ET
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from codeward._errors import InputError
from codeward._notebook import Drawing

_ELEMENTS = frozenset(
    {"svg", "g", "defs", "clipPath", "path", "rect", "line", "circle", "polyline", "polygon", "use", "text", "tspan"}
)
_ATTRIBUTES = frozenset(
    [
        "viewBox",
        "id",
        "d",
        "x",
        "y",
        "x1",
        "y1",
        "x2",
        "y2",
        "r",
        "cx",
        "cy",
        "width",
        "height",
        "points",
        "transform",
        "style",
        "clip-path",
        "href",
        "class",
        "text-anchor",
    ]
)
#: Black text and white ground follow the colour scheme.
NEUTRALS = {
    "#000000": "currentColor",
    "#ffffff": "var(--panel)",
    "#b0b0b0": "var(--line)",
    "#cccccc": "var(--line)",
    "#262626": "currentColor",
}


@cache
def find_templates(package: str = "codeward.report") -> Environment:
    """Return the templates of a package, over those of reports; what is written into them is escaped."""
    loader = ChoiceLoader([PackageLoader(package), PackageLoader("codeward.report")])
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, optimized=True
    )
    made.globals |= {"read_part": read_part, "digest_text": digest_text}
    return made


def write_page(template: str, package: str = "codeward.report", **content: Any) -> str:
    """Return a page: a template that extends ``page.html``, with its content.

    Guarantees: text is escaped; the page loads nothing and runs one script, its own, which copies tables (the content
    security policy allows no other); the same content gives the same bytes.

    Parameters
    ----------
    template : str
        Name of the template.
    package : str
        The package that has it.
    **content
        What the template shows; ``title`` and ``footer`` are of every page.

    Examples
    --------
    >>> page = write_page("page.html", title="<b>", footer="")
    >>> "<h1>&lt;b&gt;</h1>" in page
    True
    """
    return find_templates(package).get_template(template).render(**content)


@cache
def read_part(name: str) -> str:
    """Return a style sheet or script of reports."""
    return files("codeward.report").joinpath(name).read_text("utf-8")


def digest_text(text: str) -> str:
    """Return the digest by which a page's content security policy lets its own script run."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def adopt_svg(text: str, prefix: str, label: str) -> Drawing:
    """Return an SVG file as an element of the page.

    Guarantees: only drawing elements and attributes are kept, links point into the picture, so that a file from a run
    folder brings neither scripts nor outside resources; ids start with ``prefix``, so that pictures do not mix.

    Parameters
    ----------
    text : str
        The file's content.
    prefix : str
        Letters, different for each picture of a page.
    label : str
        What a screen reader says.

    Raises
    ------
    InputError
        When the text is no SVG.

    Examples
    --------
    >>> print(adopt_svg('<svg viewBox="0 0 1 1"><script>a()</script><path id="p" d="M0 0.123"/></svg>', "x-", "Dot"))
    <svg role="img" aria-label="Dot" viewBox="0 0 1 1"><path d="M0 0.1"></path></svg>
    """
    if "<!ENTITY" in text:
        raise InputError("an SVG with entities is not taken in")
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise InputError(f"not an SVG: {error}") from error
    if _local(root.tag) != "svg" or "viewBox" not in root.attrib:
        raise InputError("not an SVG with a viewBox")
    root.attrib = {"viewBox": root.attrib["viewBox"]}
    meant = {value.partition("#")[2].partition(")")[0] for part in root.iter() for value in part.attrib.values()}
    for part in root.iter():  # names that nothing points to, and decimals that nobody sees, are half of such a file
        if part.attrib.get("id") not in meant:
            part.attrib.pop("id", None)
        if "d" in part.attrib:
            part.attrib["d"] = re.sub(r"\s*([A-Za-z])\s*|(\.\d)\d+", r"\1\2", part.attrib["d"])
    return Drawing(_write(root, prefix, f' role="img" aria-label="{escape(label)}"'))


def _write(element: ET.Element, prefix: str, more: str = "") -> str:
    name = _local(element.tag)
    if name not in _ELEMENTS:
        return ""
    attributes = more
    for key, value in element.attrib.items():
        kept = _adopt_value(_local(key), value, prefix)
        if kept is not None:
            attributes += f' {_local(key)}="{escape(kept)}"'
    inner = escape(element.text or "").strip() if name in ("text", "tspan") else ""
    inner += "".join(_write(child, prefix) for child in element)
    return f"<{name}{attributes}>{inner}</{name}>"


def _adopt_value(key: str, value: str, prefix: str) -> str | None:
    if key not in _ATTRIBUTES:
        return None
    if key == "id":
        return prefix + value
    if key == "href":
        return f"#{prefix}{value[1:]}" if value.startswith("#") else None
    adopted = value.replace("url(#", f"url(#{prefix}")
    if adopted.count("url") != value.count("url(#") or "\\" in adopted:
        return None  # a resource from outside
    for old, new in NEUTRALS.items():
        adopted = adopted.replace(old, new)
    return adopted


def _local(name: str) -> str:
    return name.rpartition("}")[2]
