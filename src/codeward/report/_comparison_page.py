"""Attacks against defences: tables, a page, and files for LaTeX and spreadsheets, from the records of a comparison."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from codeward._errors import InputError
from codeward._figures import show_percent
from codeward._files import read_json, write_text_atomic
from codeward.report._page import write_page
from codeward.report._table_builder import Table, TableEntry, shaded_cell, share_cell, show_number
from codeward.runs import rate

#: As `codeward compare` writes it.
FORMAT = "codeward-comparison/1"
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
        """Read all records of a folder, in order of their names."""
        found = []
        for file in sorted(Path(folder, "records").glob("*-seed*.json")):
            record = read_json(file)
            if not isinstance(record, dict) or record.get("format") != FORMAT:
                raise InputError(f"{file}: not a {FORMAT} file")
            found.append(record)
        if not found:
            raise InputError(f"{folder}: no records of a comparison; codeward compare -o {folder} makes them")
        return cls(tuple(found))

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks, in the order of the comparison."""
        return self._order("attack", "attacks")

    @property
    def defences(self) -> list[str]:
        """Names of the defences, in the order of the comparison."""
        return self._order("defence", "defences")

    def of(self, attack: str, defence: str) -> list[Record]:
        """Return the records of one attack and defence, one a seed."""
        return [record for record in self.records if (record["attack"], record["defence"]) == (attack, defence)]

    def say(self, key: str, name: str, what: str) -> str:
        """Return what the records say of an attack or a defence."""
        return next(str(record[what]) for record in self.records if record[key] == name)

    def _order(self, key: str, listed: str) -> list[str]:
        there = {record[key] for record in self.records}
        order = [name for record in self.records for name in record["comparison"][listed]]
        return [name for name in dict.fromkeys(order) if name in there]


def tabulate_comparison(found: ComparedRecords) -> list[Table]:
    """Return the tables: right labels under each attack (worst in bold), detection and naming, costs and guarantees.

    Examples
    --------
    >>> record = {"attack": "patch", "defence": "none", "title": "no defence", "citation": "", "made_for": "none",
    ...           "comparison": {"attacks": ["patch"], "defences": ["none"]}, "seconds": 1.0, "seed": 0,
    ...           "figures": {"clean": {"count": 9, "of": 10}, "triggered": {"count": 1, "of": 10}, "detected": None,
    ...                       "named_rightly": None, "guarantee": "none", "models": 1, "passes": 1,
    ...                       "named_wrongly": None}}
    >>> [table.name for table in tabulate_comparison(ComparedRecords((record,)))]
    ['right-labels', 'detection', 'costs']
    """
    return [_right_labels(found), _detection(found), _costs(found)]


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
        f"{len(found.defences)} defences against {len(found.attacks)} attacks by {first['attackers']} of "
        f"{first['users']} users on {first['dataset']}, {len(seeds)} seed{'s' * (len(seeds) != 1)}; the same users, "
        "data, network and seeds for all."
    )
    attacks = [(name, found.say("attack", name, "attack_title")) for name in found.attacks]
    write_text_atomic(
        page,
        write_page(
            "comparison.html",
            title="Attacks and defences",
            footer="Made by codeward from the records of a comparison.",
            story=story,
            tables=tables,
            attacks=attacks,
        ),
    )
    files = {"report": str(page)}
    for table in tables:
        for kind, text in (("csv", table_to_csv(table)), ("tex", table_to_latex(table))):
            file = page.with_name(f"{table.name}.{kind}")
            write_text_atomic(file, text)
            files[f"{table.name}.{kind}"] = str(file)
    return files


def table_to_csv(table: Table) -> str:
    """Return a table as CSV, denominators in columns of their own where they differ.

    Examples
    --------
    >>> row = (TableEntry("c"), TableEntry("98.0%", "980 of 1,000"))
    >>> print(table_to_csv(Table("t", "T", "", "", ("code", "right"), (("", (row,)),))), end="")
    code,right
    c,98.0%
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.heads)
    for _, rows in table.groups:
        writer.writerows([" ".join(filter(None, (cell.value, cell.spread))) for cell in row] for row in rows)
    return out.getvalue()


def table_to_latex(table: Table) -> str:
    """Return a table as a LaTeX tabular, bold where the page is bold.

    Examples
    --------
    >>> row = (TableEntry("c"), TableEntry("98.0%", mark="good"))
    >>> print(table_to_latex(Table("t", "T", "", "", ("code", "right"), (("", (row,)),))).splitlines()[4])
    c & \\textbf{98.0\\%} \\\\
    """

    def show(cell: TableEntry) -> str:
        text = " ".join(filter(None, (cell.value, cell.spread)))
        for sign in "&%$#_":
            text = text.replace(sign, f"\\{sign}")
        text = text.replace("±", "$\\pm$")
        return f"\\textbf{{{text}}}" if cell.mark == "good" else text

    lines = [f"% {table.title}", f"\\begin{{tabular}}{{l{'r' * (len(table.heads) - 1)}}}"]
    lines += [" & ".join(show(TableEntry(head)) for head in table.heads) + " \\\\", "\\hline"]
    for _, rows in table.groups:
        lines += [" & ".join(show(cell) for cell in row) + " \\\\" for row in rows]
    return "\n".join([*lines, "\\end{tabular}", ""])


def _right_labels(found: ComparedRecords) -> Table:
    rows = []
    for defence in found.defences:
        cells = [
            shaded_cell([record["figures"]["triggered"] for record in found.of(attack, defence)])
            for attack in found.attacks
            if attack != "none"
        ]
        clean = share_cell(
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
    return Table("right-labels", "Right labels under attack", note, "", heads, (("", tuple(rows)),), quiet=True)


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
    return Table("detection", "Alarms and names", note, "", heads, (("", tuple(rows)),), quiet=True)


def _costs(found: ComparedRecords) -> Table:
    base = _mean_seconds(found, "none") if "none" in found.defences else None
    rows = []
    for defence in found.defences:
        last = found.of(found.attacks[-1], defence)[-1]["figures"]
        seconds = _mean_seconds(found, defence)
        ratio = f"{seconds / base:.1f}" if base else f"{seconds:.1f} s"
        rows.append(
            (
                TableEntry(found.say("defence", defence, "title")),
                TableEntry(str(last["models"])),
                TableEntry(str(last["passes"])),
                TableEntry(ratio),
                TableEntry(str(last["guarantee"]), mark="wrap"),
                TableEntry(found.say("defence", defence, "made_for"), mark="wrap"),
                TableEntry(found.say("defence", defence, "citation")),
            )
        )
    heads = ("defence", "models", "passes an input", "time", "guarantee", "made for", "source")
    note = (
        "Time: training and answering, as a ratio to no defence in the same process; a model that an earlier defence "
        "trained is not trained again, so ratios of defences that share models are lower than alone."
    )
    return Table("costs", "Costs and guarantees", note, "", heads, (("", tuple(rows)),))


def _mean_seconds(found: ComparedRecords, defence: str) -> float:
    of: Sequence[float] = [record["seconds"] for attack in found.attacks for record in found.of(attack, defence)]
    return fmean(of)
