"""Attacks against defences: tables, a page, and files for LaTeX and spreadsheets, from the records of a comparison."""

import os
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from codeward._errors import InputError
from codeward._figures import show_percent
from codeward._files import read_json, write_text_atomic
from codeward._notebook import Drawing
from codeward.report._page import write_page
from codeward.report._table_builder import Table, TableEntry, make_table, shaded_cell, share_cell, show_number
from codeward.runs import rate, read_lines, write_lines

#: As `codeward compare` writes it.
FORMAT = "codeward-comparison/2"
Record = dict[str, Any]


@dataclass(frozen=True)
class ComparedRecords:
    """The records of a comparison.

    Attributes
    ----------
    records : tuple of dict

    Examples
    --------
    >>> ComparedRecords(()).attacks
    []
    """

    records: tuple[Record, ...]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "ComparedRecords":
        """Read all records of a folder in order of their names, or those of a file that `pack_comparison` made."""
        if Path(folder).suffix == ".gz":
            told = [(f"{folder}: line {number}", record) for number, record in enumerate(read_lines(folder), 1)]
        else:
            told = [(str(file), read_json(file)) for file in sorted(Path(folder, "records").glob("*-seed*.json"))]
        for name, record in told:
            if not isinstance(record, dict) or record.get("format") != FORMAT:
                raise InputError(f"{name}: not a {FORMAT} record")
        if not told:
            raise InputError(f"{folder}: no records of a comparison; codeward compare -o {folder} makes them")
        return cls(tuple(record for _, record in told))

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks, in the order in which they are listed."""
        return self._order("attack")

    @property
    def defences(self) -> list[str]:
        """Names of the defences, in the order in which they are listed."""
        return self._order("defence")

    def of(self, attack: str, defence: str) -> list[Record]:
        """Return the records of one attack and defence, one a seed."""
        return [record for record in self.records if (record["attack"], record["defence"]) == (attack, defence)]

    def say(self, key: str, name: str, what: str) -> str:
        """Return what the records say of an attack or a defence."""
        return next(str(record[what]) for record in self.records if record[key] == name)

    def _order(self, key: str) -> list[str]:
        places = {record[key]: record["order"][key] for record in self.records}
        return sorted(places, key=lambda name: places[name])


def pack_comparison(folder: str | os.PathLike[str], file: str | os.PathLike[str]) -> None:
    """Put all records of a comparison into one compressed file, one a line; the same records give the same bytes.

    Examples
    --------
    >>> pack_comparison("nowhere", "records.jsonl.gz")
    Traceback (most recent call last):
    codeward._errors.InputError: nowhere: no records of a comparison; codeward compare -o nowhere makes them
    """
    write_lines(file, ComparedRecords.load(folder).records)


def tabulate_comparison(found: ComparedRecords) -> list[Table]:
    """Return the tables: right labels under each attack (worst in bold), alarms and names, certificates, costs.

    Examples
    --------
    >>> record = {"attack": "patch", "defence": "none", "title": "no defence", "citation": "", "made_for": "none",
    ...           "order": {"attack": 1, "defence": 0}, "seed": 0,
    ...           "seconds": {"training": 1.0, "inference": 0.1},
    ...           "figures": {"clean": {"count": 9, "of": 10}, "triggered": {"count": 1, "of": 10}, "detected": None,
    ...                       "named_rightly": None, "guarantee": "none", "models": 1, "passes": 1,
    ...                       "named_wrongly": None, "certified": None, "broken": None}}
    >>> [table.name for table in tabulate_comparison(ComparedRecords((record,)))]
    ['right-labels', 'detection', 'certificates', 'costs']
    """
    return [_right_labels(found), _detection(found), _certificates(found), _costs(found)]


def write_comparison(folder: str | os.PathLike[str], target: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Write the page and, beside it, every table as LaTeX and CSV; return the files by kind.

    Guarantees: the same records give the same bytes; the page needs nothing outside itself and runs no script.

    Examples
    --------
    >>> write_comparison("nowhere")
    Traceback (most recent call last):
    codeward._errors.InputError: nowhere: no records of a comparison; codeward compare -o nowhere makes them
    """
    found = ComparedRecords.load(folder)
    page = Path(target) if target is not None else Path(folder, "report.html")
    tables = tabulate_comparison(found)
    first = found.records[0]["comparison"]
    seeds = sorted({record["seed"] for record in found.records})
    story = (
        f"{len(found.defences)} defences against {len(set(found.attacks) - {'none'})} attacks by {first['attackers']} "
        f"of {first['users']} users on {first['dataset']}, {len(seeds)} seed{'s' * (len(seeds) != 1)}; the same users, "
        "data, network and seeds for all."
    )
    attacks = [(name, found.say("attack", name, "attack_title")) for name in found.attacks]
    heatmap = draw_heatmap(tables[0])
    write_text_atomic(
        page,
        write_page(
            "comparison.html",
            title="Attacks and defences",
            footer="Made by codeward from the records of a comparison.",
            story=story,
            tables=tables,
            attacks=attacks,
            heatmap=heatmap,
        ),
    )
    picture = heatmap.save(page.with_name("right-labels.svg"))
    files = {"report": str(page), "right-labels.svg": str(picture)}
    for table in tables:
        texts = {"csv": table.to_csv(), "tex": table.to_latex(), "md": table.to_markdown()}
        for kind, text in texts.items():
            file = page.with_name(f"{table.name}.{kind}")
            write_text_atomic(file, text)
            files[f"{table.name}.{kind}"] = str(file)
    return files


def draw_heatmap(table: Table) -> Drawing:
    """Draw shaded entries: a row a defence, a column an attack, dark where labels are lost.

    Examples
    --------
    >>> row = (TableEntry("DPA"), TableEntry("80%", shade=0.8))
    >>> draw_heatmap(Table("t", "T", "", "", ("defence", "patch"), (("", (row,)),))).count("<rect")
    1
    """
    rows = [row for _, group in table.groups for row in group]
    left, top, wide, high = 210, 110, 46, 24
    shown = [column for column in range(len(table.heads)) if any(row[column].shade is not None for row in rows)]
    width, height = left + wide * len(shown) + 60, top + high * len(rows) + 10
    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(table.title)}">']
    for place, column in enumerate(shown):
        x = left + wide * place + wide / 2
        parts.append(f'<text transform="translate({x:.0f} {top - 6}) rotate(-45)">{escape(table.heads[column])}</text>')
    for number, row in enumerate(rows):
        y = top + high * number
        parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{escape(row[0].value)}</text>')
        for place, cell in enumerate(row[column] for column in shown):
            if cell.shade is None:
                continue
            lost = 1 - cell.shade
            colour = f"rgb({255 - 80 * lost:.0f},{255 - 215 * lost:.0f},{255 - 225 * lost:.0f})"
            x, ink = left + wide * place, "#fff" if lost > 0.75 else "#111"
            bold = ";font-weight:bold" if cell.mark == "good" else ""
            parts.append(f'<rect x="{x}" y="{y}" width="{wide - 2}" height="{high - 2}" fill="{colour}"></rect>')
            look = f'text-anchor="middle" style="fill:{ink} !important{bold}"'
            parts.append(f'<text x="{x + wide / 2 - 1:.0f}" y="{y + 16}" {look}>{100 * cell.shade:.0f}</text>')
    return Drawing("\n".join([*parts, "</svg>"]))


def _right_labels(found: ComparedRecords) -> Table:
    rows = []
    for defence in found.defences:
        triggered = [
            [record["figures"]["triggered"] for record in found.of(attack, defence)]
            for attack in found.attacks
            if attack != "none"
        ]
        cells = [shaded_cell(figures) if figures else TableEntry("") for figures in triggered]
        clean = shaded_cell(
            [record["figures"]["clean"] for attack in found.attacks for record in found.of(attack, defence)]
        )
        shades = [cell.shade for cell in cells if cell.shade is not None]
        worst = min(shades, default=None)
        cells = [
            replace(cell, mark="good") if cell.shade is not None and cell.shade == worst else cell for cell in cells
        ]
        shown = TableEntry("" if worst is None else show_percent(worst), shade=worst)
        rows.append((TableEntry(found.say("defence", defence, "title")), clean, *cells, shown))
    heads = ("defence", "clean inputs", *(name for name in found.attacks if name != "none"), "worst")
    note = (
        "Share of triggered test inputs with their true label, without those of the target class; a defence's worst "
        "attack in bold. Mean and standard deviation over seeds."
    )
    return make_table("right-labels", "Right labels under attack", note, heads, rows, quiet=True)


def _detection(found: ComparedRecords) -> Table:
    rows = []
    for defence in found.defences:
        of = [record["figures"] for attack in found.attacks if attack != "none" for record in found.of(attack, defence)]
        detected = [figures["detected"] for figures in of if figures["detected"] is not None]
        rightly = [figures["named_rightly"]["mean"] for figures in of if figures["named_rightly"] is not None]
        wrongly = [figures["named_wrongly"]["mean"] for figures in of if figures["named_wrongly"] is not None]
        rows.append(
            (
                TableEntry(found.say("defence", defence, "title")),
                shaded_cell(detected) if detected else TableEntry("judges no inputs"),
                share_cell([min(detected, key=rate)]) if detected else TableEntry(""),
                TableEntry(show_number(rightly)) if rightly else TableEntry("names nobody"),
                TableEntry(show_number(wrongly)) if wrongly else TableEntry(""),
            )
        )
    heads = ("defence", "detected, mean", "detected, worst cell", "named rightly", "named wrongly")
    note = (
        "Detected: triggered inputs above the alarm that 5% of clean test inputs pass. Named: users a triggered input, "
        "attackers and others, mean over attacks and seeds."
    )
    return make_table("detection", "Alarms and names", note, heads, rows, quiet=True)


def _certificates(found: ComparedRecords) -> Table:
    rows = []
    for defence in found.defences:
        of = [record["figures"] for attack in found.attacks if attack != "none" for record in found.of(attack, defence)]
        certified = [figures["certified"] for figures in of if figures["certified"] is not None]
        broken = sum(figures["broken"]["count"] for figures in of if figures["broken"] is not None)
        last = of[-1] if of else found.of(found.attacks[-1], defence)[-1]["figures"]
        rows.append(
            (
                TableEntry(found.say("defence", defence, "title")),
                shaded_cell(certified) if certified else TableEntry("nothing"),
                TableEntry(str(broken)) if certified else TableEntry(""),
                TableEntry(str(last["guarantee"]), mark="wrap"),
                TableEntry(found.say("defence", defence, "made_for"), mark="wrap"),
                TableEntry(found.say("defence", defence, "citation")),
            )
        )
    heads = ("defence", "certified", "broken", "guarantee", "made for", "source")
    note = (
        "Certified: triggered inputs that are right without the attack and that no set of as many users can change, by "
        "the certificate of the models without the attack; broken: those of them whose label an attack changed, of all "
        "cells."
    )
    return make_table("certificates", "What is guaranteed", note, heads, rows)


def _costs(found: ComparedRecords) -> Table:
    attack = "none" if "none" in found.attacks else found.attacks[0]
    parts = ("training", "inference")
    base = {part: _least_seconds(found, attack, "none", part) for part in parts}
    rows = []
    for defence in found.defences:
        # Federations train all users in one process: their time is not that of a federation.
        if not (of := found.of(attack, defence)) or defence.startswith("fed-"):
            continue
        ratios = [
            TableEntry(f"{_least_seconds(found, attack, defence, part) / base[part]:.1f}" if base[part] else "")
            for part in parts
        ]
        figures = of[-1]["figures"]
        models, passes = (TableEntry(str(figures[part])) for part in ("models", "passes"))
        rows.append((TableEntry(found.say("defence", defence, "title")), models, passes, *ratios))
    heads = ("defence", "models", "passes an input", *parts)
    shared = "no model shared" if attack == "none" else "models that an earlier defence trained left out"
    note = (
        "Training (what it fits and searches included) and inference as ratios to no defence: processor time, best of "
        f"the seeds, {shared}. Federated defences are simulated in one process and left out."
    )
    return make_table("costs", "Costs", note, heads, rows)


def _least_seconds(found: ComparedRecords, attack: str, defence: str, part: str) -> float:
    return float(min((record["seconds"][part] for record in found.of(attack, defence)), default=0.0))
