"""One table, two renderings: HTML for the page, Markdown for the repository."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean, stdev
from typing import Literal

from codeward.report._tables import Share, sum_up_shares

Mark = Literal["", "good", "weak", "full", "partly", "none"]


@dataclass(frozen=True)
class Cell:
    """A figure.

    Attributes
    ----------
    value : str
        Plain text; empty where there is nothing.
    of : str
        What it is a fraction or a mean of.
    mark : str
        ``good`` is bold in both renderings; the others are colours of the page.
    counts : str
        What the page tells at the pointer, where it says more than ``of``.
    spread : str
        Standard deviations, where they stand under the value and not beside it.
    shade : float
        A share that the page shows as a shade, too.
    """

    value: str
    of: str = ""
    mark: Mark = ""
    counts: str = ""
    spread: str = ""
    shade: float | None = None


@dataclass(frozen=True)
class Table:
    """A table in groups of rows.

    Attributes
    ----------
    name : str
        An id for links.
    title, note : str
        Plain text.
    group, heads : str, tuple of str
        What groups are, and the heads of the columns.
    groups : tuple
        Pairs of a group's name and its rows; the first cell of a row is its header.
    folded : bool
        Whether the page shows it only on request.
    quiet : bool
        Whether the page tells denominators at the pointer only.
    """

    name: str
    title: str
    note: str
    group: str
    heads: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]
    folded: bool = False
    quiet: bool = False

    @property
    def common(self) -> str:
        """The denominator of most cells, said once for all of them; empty where there is none such."""
        found = Counter(cell.of for _, rows in self.groups for row in rows for cell in row if cell.of)
        if not found:
            return ""
        of, count = min(found.items(), key=lambda item: (-item[1], item[0]))
        return of if 2 * count > found.total() else ""

    @property
    def caption(self) -> str:
        """The note, with the common denominator."""
        said = f"Where a cell says nothing else: {self.common}." if self.common else ""
        return " ".join(part for part in (self.note, said) if part)

    def to_html(self) -> str:
        """Return the table in a box that scrolls by itself, every denominator in small print or at the pointer."""
        common = self.common
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.heads)
        bodies = ""
        for name, rows in self.groups:
            span = f'scope="rowgroup" colspan="{len(self.heads)}"'
            body = f'<tr class="group"><th {span}><span>{escape(name)}</span></th></tr>'
            for row in rows:
                cells = "".join(_write_cell(cell, cell.of if self.quiet else common) for cell in row[1:])
                body += f'<tr><th scope="row">{escape(row[0].value)}</th>{cells}</tr>'
            bodies += f"<tbody>{body}</tbody>"
        table = (
            f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(self.title)}">'
            f'<table class="figures{" tight" * self.quiet}">'
            f"<caption><span><b>{escape(self.title)}.</b> {escape(self.caption)}</span></caption>"
            f"<thead><tr>{head}</tr></thead>{bodies}</table></div>"
        )
        if self.folded:
            return f'<details id="{self.name}"><summary>{escape(self.title)}</summary>{table}</details>'
        return f'<div id="{self.name}">{table}</div>'

    def to_markdown(self) -> str:
        """Return the table under a heading; the group is the first column."""
        common = self.common
        lines = [f"### {self.title}", ""] + ([self.caption, ""] if self.caption else [])
        lines += [f"| {' | '.join(map(_escape, (self.group, *self.heads)))} |", "|" + "---|" * (len(self.heads) + 1)]
        for name, rows in self.groups:
            lines += [f"| {' | '.join([_escape(name), *(_mark_down(cell, common) for cell in row)])} |" for row in rows]
        return "\n".join(lines) + "\n"


#: Rows by group, as tables are filled.
Groups = dict[str, list[tuple[Cell, ...]]]


def make_table(
    name: str,
    title: str,
    note: str,
    heads: tuple[str, ...],
    groups: Groups,
    folded: bool = False,
    quiet: bool = False,
) -> Table | None:
    """Return a table in groups of settings; None without rows."""
    if not groups:
        return None
    frozen = tuple((key, tuple(rows)) for key, rows in groups.items())
    return Table(name, title, note, "setting", heads, frozen, folded, quiet)


def share_cell(shares: Sequence[Share], weak_under: float = 0.0) -> Cell:
    """Return shares of several repeats as a cell; marked where one of them is under ``weak_under``."""
    kept = [share for share in shares if share["of"]]
    value, of = sum_up_shares(kept)
    if not shares:
        return Cell("")
    weak = any(share["count"] < weak_under * share["of"] for share in kept)
    once = f"1 time {kept[0]['of']:,}" if len(kept) == 1 else of
    return Cell(value, once, "weak" if weak else "", of)


def auc_cell(values: Sequence[float], inputs: str) -> Cell:
    """Return areas under ROC curves as a cell; its shade is how far they are above guessing."""
    if not values:
        return Cell("")
    mean, spread = fmean(values), f"± {stdev(values):.3f}" if len(values) > 1 else ""
    of = f"{len(values)} time{'s' * (len(values) > 1)} {inputs}"
    told = f"{mean:.3f} {spread}".strip()
    return Cell(f"{mean:.3f}", of, counts=f"{told} ({of})", spread=spread, shade=max(0.0, 2 * mean - 1))


def count_attackers(size: int) -> str:
    """Return a number of attackers in words."""
    return f"{size} attacker{'s' * (size != 1)}"


def count_repeats(numbers: Sequence[int]) -> str:
    """Return a number of repeats in words; of several, the least and the most."""
    low, high = min(numbers), max(numbers)
    return f"{low} repeat{'s' * (low != 1)}" if low == high else f"{low} to {high} repeats"


def shaded_cell(shares: Sequence[Share]) -> Cell:
    """Return shares of several repeats as a cell with a shade."""
    cell = share_cell(shares)
    if not cell.of:
        return cell
    value, _, spread = cell.value.partition(" ± ")
    shade = fmean(share["count"] / share["of"] for share in shares if share["of"])
    counts = f"{cell.value} ({cell.counts})"
    return replace(cell, value=value, spread=f"± {spread}" if spread else "", shade=shade, counts=counts)


def _write_cell(cell: Cell, common: str) -> str:
    if not cell.value:
        return '<td class="none">·</td>'
    title = f' title="{escape(cell.counts or cell.of)}"' if cell.of else ""
    mark = f' class="{cell.mark}"' if cell.mark else ""
    if cell.shade is not None:
        return f'<td class="shade" style="--share:{cell.shade:.2f}"{title}>{escape(cell.value)}</td>'
    parts = [part for part in (cell.spread, cell.of if cell.of != common else "") if part]
    small = "".join(f"<small>{escape(part)}</small>" for part in parts)
    return f"<td{mark}{title}>{escape(cell.value)}{small}</td>"


def _mark_down(cell: Cell, common: str) -> str:
    value = _escape(cell.value)
    if cell.mark == "good":
        value = f"**{value}**"
    more = "; ".join(part for part in (cell.spread, cell.of if cell.of != common else "") if part)
    return f"{value} ({_escape(more)})" if more else value


def _escape(text: str) -> str:
    """Keep text of a folder from breaking a table or becoming HTML."""
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")
