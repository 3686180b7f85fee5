"""What a notebook shows of a value: a sentence, a picture, a table; and the picture as a value that shows itself."""

import os
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._files import write_text_atomic

#: Rows of a table that a notebook shows; `to_frame` has all.
MOST_ROWS = 10

#: The page's light colours, for pictures that stand alone.
_STYLE = (
    "svg{background:#fff}text{font:10.5px system-ui,sans-serif;fill:#55626f}.soft{--hue:#55626f}.blue{--hue:#1f5f7a}"
    ".orange{--hue:#d9653b}.green{--hue:#1c6b45}.gold{--hue:#7a5b00}text.end{fill:var(--hue);font-weight:600}"
    ".rule,.axis{stroke:#d9dee3;fill:none}.line{stroke:var(--hue);stroke-width:1.8;fill:none}"
    ".dashed{stroke-dasharray:4.5 3}.bar-line,.leader{stroke:var(--hue);fill:none;opacity:.5}"
    ".dot{stroke:var(--hue);stroke-width:1.5}"
    ".full{fill:var(--hue)}.hollow{fill:#fff}.matrix text{font-size:8px}.one{fill:#1f5f7a}.zero{fill:#f0f2f4;"
    "stroke:#d9dee3;stroke-width:.5}.bad{fill:#d9653b}.matrix .says{font-size:9px}text.right{fill:#1c6b45}"
    "text.wrong,text.bad{fill:#a8320f}"
)


def check_drawing_path(path: str | os.PathLike[str] | None) -> None:
    """Refuse a file name that is not of an SVG file, before any work is done; None asks for no file."""
    if path is not None and Path(path).suffix.lower() != ".svg":
        raise InputError(f"{path}: drawings are written as .svg")


class Drawing(str):
    """An SVG element as text: pages take it in as it is, notebooks show it, `save` writes a file that stands alone.

    Examples
    --------
    >>> dot = Drawing('<svg viewBox="0 0 2 2" aria-label="A dot"><circle r="1"></circle></svg>')
    >>> dot.stand_alone()[:47], dot._repr_html_()[:30]
    ('<svg xmlns="http://www.w3.org/2000/svg" viewBox', '<img alt="A dot" style="max-wi')
    """

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<Drawing: {self._label()}>"

    def _label(self) -> str:
        return self.partition('aria-label="')[2].partition('"')[0]

    def stand_alone(self) -> str:
        """Return it as the text of a file: with its name space, colours and letters."""
        opening, _, rest = self.removeprefix("<svg ").partition(">")
        return f'<svg xmlns="http://www.w3.org/2000/svg" {opening}><style>{_STYLE}</style>{rest}\n'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as an ``.svg`` file, atomically."""
        check_drawing_path(path)
        target = Path(path)
        write_text_atomic(target, self.stand_alone())
        return target

    def _repr_svg_(self) -> str:
        return self.stand_alone()

    def _repr_html_(self) -> str:
        # An image of its own, so that its style sheet reaches nothing else in the notebook.
        width = self.partition('viewBox="0 0 ')[2].partition(" ")[0] or "300"
        source = b64encode(self.stand_alone().encode()).decode()
        size = f"max-width:100%;width:{min(1.6 * float(width), 680):.0f}px"
        return f'<img alt="{self._label()}" style="{size}" src="data:image/svg+xml;base64,{source}">'


@dataclass(frozen=True)
class Sheet:
    """What there is to show of a value.

    Attributes
    ----------
    title : str
        A plain sentence.
    columns : mapping of str to sequence
        The table, all columns of one length.
    draw : callable
        Makes the picture.
    drawn : bool
        Whether the picture says all that the table does, so that a notebook shows no table.
    """

    title: str
    columns: Mapping[str, Sequence[Any]]
    draw: Callable[[], Drawing]
    drawn: bool = False


class Displayed:
    """A value that notebooks show: who has a `Sheet` gets ``_repr_html_``, `to_frame` and `plot` from it."""

    def _sheet(self) -> Sheet:
        raise NotImplementedError

    def to_frame(self) -> Any:
        """Return the value as a pandas DataFrame; pandas is imported here, and only here."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_frame needs pandas; pip install pandas brings it") from None
        return pandas.DataFrame(dict(self._sheet().columns))

    def plot(self) -> Drawing:
        """Return the value's picture: a notebook shows it, ``.save("picture.svg")`` writes it."""
        return self._sheet().draw()

    def _repr_html_(self) -> str:
        sheet = self._sheet()
        table = "" if sheet.drawn else _tabulate(sheet.columns)
        return f"<p>{escape(sheet.title)}</p>{sheet.draw()._repr_html_()}{table}"


def _tabulate(columns: Mapping[str, Sequence[Any]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(_show(value))}</td>' for value in row)}</tr>"
        for row in islice(zip(*columns.values(), strict=True), MOST_ROWS)
    )
    total = max(map(len, columns.values()), default=0)
    more = f"<p>{MOST_ROWS} of {total:,} rows; to_frame() has all.</p>" if total > MOST_ROWS else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
