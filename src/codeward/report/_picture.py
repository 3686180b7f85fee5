"""Pictures inside the page: SVG taken apart and rebuilt from what is allowed, in the page's own colours."""

import xml.etree.ElementTree as ET

from markupsafe import Markup, escape

from codeward._errors import InputError
from codeward.codes import Code

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


def adopt_svg(text: str, prefix: str, label: str) -> Markup:
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
    >>> print(adopt_svg('<svg viewBox="0 0 1 1"><script>a()</script><path id="p" d="M0 0"/></svg>', "x-", "A picture"))
    <svg role="img" aria-label="A picture" viewBox="0 0 1 1"><path id="x-p" d="M0 0"></path></svg>
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
    return Markup(_write(root, prefix, f' role="img" aria-label="{escape(label)}"'))


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


def draw_code(code: Code, numbered: bool = True) -> Markup:
    """Draw the matrix as an SVG element: a row a sub-model, a column a user, a filled cell where it learns from it.

    Without numbers it is half the size.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> "Code matrix: 6 sub-models, 12 users" in draw_code(named_code("d"))
    True
    """
    size, gap = (14, 2) if numbered else (7, 1)
    m, n = code.matrix.shape
    left, top = (30, 20) if numbered else (0, 0)
    cells = {True: "", False: ""}
    for i in range(m):
        for j in range(n):
            corner = f"M{left + j * size} {top + i * size}"
            cells[bool(code.matrix[i, j])] += f"{corner}h{size - gap}v{size - gap}h{gap - size}z"
    step_x, step_y = -(-n // 24), -(-m // 40)
    half = (size - gap) / 2
    numbers = ""
    if numbered:
        numbers = "".join(
            f'<text x="{left + j * size + half:g}" y="{top - 6}" text-anchor="middle">{j}</text>'
            for j in range(0, n, step_x)
        ) + "".join(
            f'<text x="{left - 6}" y="{top + i * size + half + 3:g}" text-anchor="end">{i}</text>'
            for i in range(0, m, step_y)
        )
    label = f"Code matrix: {m} sub-models, {n} users"
    return Markup(
        f'<svg class="matrix" viewBox="0 0 {left + n * size} {top + m * size}" '
        f'style="max-width:{left + n * size}px" role="img" aria-label="{label}">'
        f'<path class="zero" d="{cells[False]}"></path><path class="one" d="{cells[True]}"></path>{numbers}</svg>'
    )
