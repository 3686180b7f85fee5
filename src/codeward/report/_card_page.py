"""The certificate card as a page: `codeward.runs.Card` in HTML."""

import os
from collections.abc import Mapping, Sequence

from codeward._charts import ATTACKER_STYLES, Line, Panel, draw_lines, make_point
from codeward._figures import show_count
from codeward._files import write_text_atomic
from codeward.report._page import write_page
from codeward.report._table_builder import Table, TableEntry, share_cell
from codeward.runs import Card, CardCurve, count_words, sum_up_guarantees


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
    table = Table(name, "Certified accuracy", note, "", heads, (("", tuple(rows)),))
    return table, Panel("Certified accuracy", "by number of attackers", chart)
