"""Pages from templates: one HTML file that needs nothing outside itself, all text escaped; and the certificate card."""

import os
import re
import xml.etree.ElementTree as ET
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from codeward._charts import ATTACKER_STYLES, Line, Panel, draw_lines, make_point
from codeward._errors import InputError
from codeward._figures import show_count
from codeward._files import write_text_atomic
from codeward._notebook import Drawing
from codeward.report._table_builder import Table, TableEntry, make_table, share_cell
from codeward.runs import Card, CardCurve, count_words, sum_up_guarantees

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


def build_card(card: Card) -> str:
    """Return a certificate card as one HTML page, of the same look as reports.

    Guarantees: the page needs nothing outside itself and runs no script; text is escaped; same card, same bytes.

    Examples
    --------
    >>> page = build_card(Card("<clinics>", {"users": "9"}, {"count": 9, "of": 10}))
    >>> "&lt;clinics&gt;" in page, "90.0%" in page
    (True, True)
    """
    said = f"{show_count(card.accuracy)} of clean test inputs get the right label"
    if card.false_alarms is not None:
        said += f", {show_count(card.false_alarms)} raise a false alarm"
    known = {one.property for one in card.guarantees if one.threat == "deterministic"} >= {"correct", "track"}
    tiles = [("right labels, clean test inputs", *show_count(card.accuracy).rstrip(")").split(" (", 1))]
    if card.false_alarms is not None:
        tiles.append(("false alarms, the same inputs", *show_count(card.false_alarms).rstrip(")").split(" (", 1)))
    tiles += [tile for k in (1, 2) for tile in tile_certified(card.certified, k)]
    table, panel = tell_curves(
        "card-certified",
        "Share of clean test inputs whose right label no k users can change. At k = 0: right at all.",
        {f"{curve.decoder}, {curve.threat}": curve for curve in card.certified},
    )
    return write_page(
        "card.html",
        title=card.title,
        footer="Made by codeward; card.json beside this page says the same to programs.",
        card=card,
        conclusion=f"{said}.",
        promise=sum_up_guarantees(card.guarantees) if known else "",
        tiles_of=tiles,
        curves=[panel],
        certified=table if card.certified else None,
    )


def write_card(card: Card, path: str | os.PathLike[str]) -> None:
    """Write a card as an HTML file, atomically.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_card(Card("clinics", {}, {"count": 9, "of": 10}), Path(folder, "card.html"))
    ...     Path(folder, "card.html").read_text()[:15]
    '<!doctype html>'
    """
    write_text_atomic(path, build_card(card))


def tile_certified(curves: Sequence[CardCurve], k: int) -> list[tuple[str, str, str]]:
    """Return the best of the curves at k users as a figure to look at: words, share, counts; none where none is."""
    long = [curve for curve in curves if k < len(curve.shares)]
    best = max(long, key=lambda curve: (curve.at(k), curve.threat == "arbitrary"), default=None)
    if best is None:
        return []
    who = f"any {count_words(k, 'user')}"
    does = f"right whatever {who} do{'es' * (k == 1)}"
    if best.threat == "deterministic":
        does = f"right whatever one target {who} plant{'s' * (k == 1)}"
    share, counts = show_count(best.shares[k]).rstrip(")").split(" (", 1)
    return [(does, share, counts)]


def tell_curves(name: str, note: str, curves: Mapping[str, CardCurve]) -> tuple[Table, Panel]:
    """Return certified accuracy as a table and a chart; a row and a line a curve, in the order given."""
    top = max((len(curve.shares) for curve in curves.values()), default=2)
    rows, lines = [], []
    for style, (told, curve) in zip(ATTACKER_STYLES, curves.items(), strict=False):
        # A curve that ended at 0 stays there; one that ended above was not searched further.
        shares = [dict(share) for share in curve.shares]
        shares += [shares[-1]] * (top - len(shares)) if not shares[-1]["count"] else []
        entries = [share_cell([share]) for share in shares]
        rows.append((TableEntry(told), *entries, *[TableEntry("not searched")] * (top - len(shares))))
        points = tuple(make_point(k, [share], f"{told}, k = {k}") for k, share in enumerate(shares))
        lines.append(Line(told.split()[0].rstrip(","), style.kind, style.dashed, style.marker, points))
    heads = ("decoder, threat model", *(f"k = {k}" for k in range(top)))
    chart = draw_lines(lines, "Certified accuracy by number of attackers", "attackers k", range(max(top, 2)))
    table = make_table(name, "Certified accuracy", note, heads, rows)
    return table, Panel("Certified accuracy", "by number of attackers", chart)
