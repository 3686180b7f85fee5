"""The certificate card as a page: `codeward.runs.Card` in HTML."""

import os

from codeward._charts import ATTACKER_STYLES, Line, Panel, draw_lines, make_point
from codeward._figures import show_count
from codeward._files import write_text_atomic
from codeward._notebook import Drawing
from codeward.report._page import write_page
from codeward.report._table_builder import Table, TableEntry, share_cell
from codeward.runs import Card, count_words, sum_up_guarantees


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
    for k in (1, 2):
        long = [curve for curve in card.certified if k < len(curve.shares)]
        best = max(long, key=lambda curve: (curve.at(k), curve.threat == "arbitrary"), default=None)
        if best is not None:
            who = f"any {count_words(k, 'user')}"
            does = f"right whatever {who} do{'es' * (k == 1)}"
            if best.threat == "deterministic":
                does = f"right whatever one target {who} plant{'s' * (k == 1)}"
            tiles.append((does, *show_count(best.shares[k]).rstrip(")").split(" (", 1)))
    return write_page(
        "card.html",
        title=card.title,
        footer="Made by codeward; card.json beside this page says the same to programs.",
        card=card,
        conclusion=f"{said}.",
        promise=sum_up_guarantees(card.guarantees) if known else "",
        tiles_of=tiles,
        curves=[Panel("Certified accuracy", "by number of attackers", _draw_curves(card))],
        certified=_tabulate_curves(card),
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


def _tabulate_curves(card: Card) -> Table | None:
    if not card.certified:
        return None
    top = max(len(curve.shares) for curve in card.certified)
    rows = tuple(
        (
            TableEntry(f"{curve.decoder}, {curve.threat}"),
            *(share_cell([dict(found)]) for found in curve.shares),
            *[TableEntry("")] * (top - len(curve.shares)),
        )
        for curve in card.certified
    )
    note = "Share of clean test inputs whose right label no k users can change. At k = 0: right at all."
    heads = ("decoder, threat model", *(f"k = {k}" for k in range(top)))
    return Table("card-certified", "Certified accuracy", note, "", heads, (("", rows),))


def _draw_curves(card: Card) -> Drawing:
    top = max((len(curve.shares) for curve in card.certified), default=2)
    lines = []
    for style, curve in zip(ATTACKER_STYLES, card.certified, strict=False):
        points = tuple(make_point(k, [dict(s)], f"{curve.decoder}, k = {k}") for k, s in enumerate(curve.shares))
        lines.append(Line(curve.decoder, style.kind, style.dashed, style.marker, points))
    return draw_lines(lines, "Certified accuracy by number of attackers", "attackers k", range(max(top, 2)))
