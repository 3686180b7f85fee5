"""Figures as entries of tables and points of charts; one table as Markdown, LaTeX, CSV and JSON."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean, stdev
from typing import Any, Literal

from codeward._figures import Share, sum_up_shares
from codeward._files import format_csv

Mark = Literal["", "good", "weak", "full", "partly", "none", "past", "wrap"]
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
_LATEX |= {"^": r"\textasciicircum{}", "±": r"$\pm$", "→": r"$\to$", "<": r"$<$", ">": r"$>$"}


@dataclass(frozen=True)
class TableEntry:
    """A figure.

    Attributes
    ----------
    value : str
        Plain text; empty where there is nothing.
    of : str
        What it is a fraction or a mean of.
    mark : str
        ``good`` is bold in both renderings; the others are colours of the page. A row's header shows ``of`` beside it.
    counts : str
        What the page tells at the pointer, where it says more than ``of``.
    spread : str
        Standard deviations, where they stand under the value and not beside it.
    shade : float
        A share that the page shows as a shade, too.

    Examples
    --------
    >>> TableEntry("98.0%", "980 of 1,000").mark
    ''
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
        Pairs of a group's name (empty: no line for it) and its rows; the first entry of a row is its header.
    folded : bool
        Whether the page shows it only on request.
    quiet : bool
        Whether the page tells denominators at the pointer only.

    Examples
    --------
    >>> rows = ((TableEntry("c"), TableEntry("98.0%", "980 of 1,000")),)
    >>> print(Table("t", "Accuracy", "", "setting", ("code", "right"), (("IID", rows),)).to_markdown())
    ### Accuracy
    <BLANKLINE>
    Unless a cell says otherwise: 980 of 1,000.
    <BLANKLINE>
    | setting | code | right |
    |---|---|---|
    | IID | c | 98.0% |
    <BLANKLINE>
    """

    name: str
    title: str
    note: str
    group: str
    heads: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[TableEntry, ...], ...]], ...]
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
        of = re.sub(r"^1 time ", "of ", self.common)
        said = f"Unless a cell says otherwise: {of}." if of else ""
        return " ".join(part for part in (self.note, said) if part)

    def to_markdown(self) -> str:
        """Return the table under a heading; the group is the first column."""
        common = self.common
        lines = [f"### {self.title}", ""] + ([self.caption, ""] if self.caption else [])
        lines += [f"| {' | '.join(map(_escape, (self.group, *self.heads)))} |", "|" + "---|" * (len(self.heads) + 1)]
        for name, rows in self.groups:
            lines += [f"| {' | '.join([_escape(name), *(_mark_down(cell, common) for cell in row)])} |" for row in rows]
        return "\n".join(lines) + "\n"

    def list_rows(self) -> list[list[str]]:
        """Return heads and rows as plain texts, the group first; denominators follow in columns of their own."""
        rows = [[self.group or "group", *self.heads, *(f"{head}, of" for head in self.heads[1:])]]
        for name, entries in self.groups:
            for row in entries:
                values = [" ".join(part for part in (cell.value, cell.spread) if part) for cell in row]
                if row[0].mark and row[0].of:
                    values[0] += f" ({row[0].of})"
                rows.append([name, *values, *(cell.counts or cell.of for cell in row[1:])])
        kept = [place for place in range(len(rows[0])) if place == 1 or any(row[place] for row in rows[1:])]
        return [[row[place] for place in kept] for row in rows]

    def to_csv(self) -> str:
        """Return the table as CSV, denominators in columns of their own."""
        return format_csv(self.list_rows())

    def to_latex(self) -> str:
        """Return the table as a LaTeX ``table`` with booktabs rules; the note is its caption."""
        rows = [[_escape_latex(text) for text in row] for row in self.list_rows()]
        lines = [" & ".join(row) + r" \\" for row in rows]
        caption = _escape_latex(f"{self.title}. {self.note}".strip())
        body = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
        head = [r"\begin{table}", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{'l' * len(rows[0])}}}"]
        return "\n".join([*head, *body, r"\end{tabular}", r"\end{table}"]) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Return the table as a JSON object: id, title, note, and rows by head."""
        heads, *rows = self.list_rows()
        found = [dict(zip(heads, row, strict=True)) for row in rows]
        return {"name": self.name, "title": self.title, "note": self.note, "rows": found}


def show_number(values: Sequence[float], digits: int = 2) -> str:
    """Return a number; of several, the mean and the sample standard deviation."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"


Row = tuple[TableEntry, ...]
#: Rows by group, as tables are filled.
Groups = dict[str, list[Row]]


def make_table(
    name: str,
    title: str,
    note: str,
    heads: tuple[str, ...],
    rows: Groups | Sequence[Row],
    group: str = "setting",
    folded: bool = False,
    quiet: bool = False,
) -> Table:
    """Return a table of rows, or of groups of them; ``group`` says what the groups are.

    Examples
    --------
    >>> make_table("t", "T", "", ("code",), [(TableEntry("c"),)]).groups
    (('', ((TableEntry(value='c', of='', mark='', counts='', spread='', shade=None),),)),)
    """
    grouped = isinstance(rows, dict)
    groups = tuple((key, tuple(found)) for key, found in (rows.items() if isinstance(rows, dict) else [("", rows)]))
    return Table(name, title, note, group if grouped else "", heads, groups, folded, quiet)


def share_cell(shares: Sequence[Share], weak_under: float = 0.0) -> TableEntry:
    """Return shares of several repeats as a cell; marked where one of them is under ``weak_under``.

    Examples
    --------
    >>> share_cell([{"count": 3, "of": 4}]).value
    '75.0%'
    """
    kept = [share for share in shares if share["of"]]
    value, of = sum_up_shares(kept)
    if not shares:
        return TableEntry("")
    weak = any(share["count"] < weak_under * share["of"] for share in kept)
    once = f"1 time {kept[0]['of']:,}" if len(kept) == 1 else of
    return TableEntry(value, once, "weak" if weak else "", of)


def auc_cell(values: Sequence[float], inputs: str) -> TableEntry:
    """Return areas under ROC curves as a cell; its shade is how far they are above guessing.

    Examples
    --------
    >>> auc_cell([0.75, 0.85], "900").value
    '0.800'
    """
    if not values:
        return TableEntry("")
    mean, spread = fmean(values), f"± {stdev(values):.3f}" if len(values) > 1 else ""
    of = f"{len(values)} time{'s' * (len(values) > 1)} {inputs}"
    told = f"{mean:.3f} {spread}".strip()
    return TableEntry(f"{mean:.3f}", of, counts=f"{told} ({of})", spread=spread, shade=max(0.0, 2 * mean - 1))


def count_attackers(size: int) -> str:
    """Return a number of attackers in words.

    Examples
    --------
    >>> count_attackers(1), count_attackers(2)
    ('1 attacker', '2 attackers')
    """
    return f"{size} attacker{'s' * (size != 1)}"


def count_repeats(numbers: Sequence[int]) -> str:
    """Return a number of repeats in words; of several, the least and the most.

    Examples
    --------
    >>> count_repeats([1, 1]), count_repeats([2, 5])
    ('1 repeat', '2 to 5 repeats')
    """
    low, high = min(numbers), max(numbers)
    return f"{low} repeat{'s' * (low != 1)}" if low == high else f"{low} to {high} repeats"


def shaded_cell(shares: Sequence[Share]) -> TableEntry:
    """Return shares of several repeats as a cell with a shade.

    Examples
    --------
    >>> shaded_cell([{"count": 3, "of": 4}]).shade
    0.75
    """
    cell = share_cell(shares)
    if not cell.of:
        return cell
    value, _, spread = cell.value.partition(" ± ")
    shade = fmean(share["count"] / share["of"] for share in shares if share["of"])
    counts = f"{cell.value} ({cell.counts})"
    return replace(cell, value=value, spread=f"± {spread}" if spread else "", shade=shade, counts=counts)


def _mark_down(cell: TableEntry, common: str) -> str:
    value = _escape(cell.value)
    if cell.mark == "good":
        value = f"**{value}**"
    more = "; ".join(part for part in (cell.spread, cell.of if cell.of != common else "") if part)
    return f"{value} ({_escape(more)})" if more else value


def _escape_latex(text: str) -> str:
    """Keep text from becoming commands."""
    return "".join(_LATEX.get(letter, letter) for letter in text.replace("\n", " "))


def _escape(text: str) -> str:
    """Keep text of a folder from breaking a table or becoming HTML."""
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")
