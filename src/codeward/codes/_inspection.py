"""Everything a code guarantees in one place (largest k of each property, margins, bound, witnesses), and its pictures.

Pictures: a code in the terminal; models against utilization.
"""

from dataclasses import dataclass
from math import ceil, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._charts import COLOURS, Line, Marker, Point, draw_lines
from codeward._errors import TooLargeError
from codeward._notebook import Drawing
from codeward._progress import Progress, silent
from codeward.codes._code import Code
from codeward.codes._conflicts import look_up_margin
from codeward.codes._constructions import duplicated_code
from codeward.codes._designer import design
from codeward.codes._guarantees import models_lower_bound
from codeward.codes._patterns import PatternTable, count_attacker_sets, distinct_columns, enumerate_patterns
from codeward.codes._properties import (
    MAX_PAIRS,
    Break,
    count_pairs,
    find_correction_break,
    find_detection_break,
    find_margins,
    find_smallest_cover,
    find_tracking_break,
)

#: Attacker sets enumerated when no limit is asked for: half a second.
DEFAULT_SETS = 300_000
#: Seconds for the smallest coalition that hits every model, where it is larger than the sets enumerated.
COVER_SECONDS = 0.3

Margin = tuple[int | None, ...]


@dataclass(frozen=True)
class Inspection:
    """What a code guarantees. Every k counts colluding accounts; margins are for k = 1 .. ``max_attackers``.

    Attributes
    ----------
    code : Code
    max_attackers : int
        Largest k that was examined.
    detect, correct, track : int
        Largest k with BDC(k), BCC(k), BTC(k), *deterministic* threat model; 0 when none. At most ``max_attackers``.
    correct_arbitrary : int
        Largest k with BDC(2k): the label is recoverable under the *arbitrary* threat model.
    margin, margin_track, margin_arbitrary : tuple
        Entry k - 1 is the margin for k attackers; None where it was too large to find, a lower bound where looked up.
    models_lower_bound : int
        No code with the same users, row weight and detection guarantee has fewer models.
    witness : dict of str to Break
        For each property that fails, the smallest coalition that breaks it.
    notes : tuple of str
        What was cut short, with sizes.

    Examples
    --------
    >>> from codeward.codes import inspect, named_code
    >>> found = inspect(named_code("d"))
    >>> found.detect, found.correct, found.correct_arbitrary, found.track
    (2, 2, 1, 0)
    >>> found.witness["detect"].attackers
    ((0, 1, 2),)
    """

    code: Code
    max_attackers: int
    detect: int
    correct: int
    correct_arbitrary: int
    track: int
    margin: Margin
    margin_track: Margin
    margin_arbitrary: Margin
    models_lower_bound: int
    witness: dict[str, Break]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the contract's JSON object."""
        code = self.code
        return {
            "models": code.n_models,
            "users": code.n_users,
            "row_weight": code.row_weight,
            "utilization": code.utilization,
            "attackers": {
                "detect": self.detect,
                "correct": self.correct,
                "correct_arbitrary": self.correct_arbitrary,
                "track": self.track,
            },
            "margin": _by_size(self.margin),
            "margin_track": _by_size(self.margin_track),
            "margin_arbitrary": _by_size(self.margin_arbitrary),
            "models_lower_bound": self.models_lower_bound,
            "witness": {name: self._name_break(found) for name, found in self.witness.items()},
            "max_attackers": self.max_attackers,
            "construction": code.construction,
            "digest": code.digest,
            "notes": list(self.notes),
        }

    def list_properties(self) -> list[tuple[str, str, int, str]]:
        """Return every property in words, its threat model, the largest k, and which users break it."""
        told = (
            ("detect a triggered input", "deterministic", self.detect, "detect"),
            ("recover the label", "deterministic", self.correct, "correct"),
            ("recover the label", "arbitrary", self.correct_arbitrary, "correct_arbitrary"),
            ("name the attackers", "deterministic", self.track, "track"),
        )
        broken = {
            name: " | ".join(", ".join(map(self.code.user_name, users)) or "nobody" for users in found.attackers)
            for name, found in self.witness.items()
        }
        return [(*words, k, broken.get(name, "nothing found")) for *words, k, name in told]  # type: ignore[misc]

    def _name_break(self, found: Break) -> dict[str, Any]:
        users = self.code.users
        sets = [[users[j] if users else j for j in attackers] for attackers in found.attackers]
        return {"attackers": found.size, "sets": sets}


def inspect(code: Code, max_attackers: int | None = None) -> Inspection:
    """Find the largest k of each property, the margins, and the coalitions that break them.

    Propositions 1 to 4 and 12 to 14 of docs/theory.md say what each of them guarantees under which threat model.

    Parameters
    ----------
    code : Code
    max_attackers : int, optional
        Examine k up to this, or up to n where it is more; refused with the size when that would not fit in memory.
        Without it, k goes as far as detection holds or `DEFAULT_SETS` attacker sets allow, whichever comes first.

    Raises
    ------
    TooLargeError
        When ``max_attackers`` asks for more attacker sets than fit.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> inspect(named_code("c")).margin  # for 1, 2, 3 and 4 attackers
    (7, 5, 3, 1)
    """
    notes: list[str] = []
    if max_attackers is not None and max_attackers > code.n_users:
        notes.append(f"{max_attackers} attackers were asked for; there are {code.n_users} users")
        max_attackers = code.n_users
    # Users with equal columns are one user to everything but tracking, so their columns are tabulated once: the first
    # user stands for the others, which keeps witnesses the lexicographically first ones.
    first, _ = distinct_columns(code.matrix)
    distinct = code if first.size == code.n_users else Code(code.matrix[:, first])
    table = _tabulate(distinct, max_attackers)
    limit = table.max_attackers

    # 1. Detection, and with it correction under arbitrary attackers: from the table, else by a set-cover program.
    found = find_detection_break(table)
    if found:
        cover_bound, cover = found.size, found.attackers[0]
    else:
        cover_bound, cover = find_smallest_cover(distinct, COVER_SECONDS)
        cover_bound = max(cover_bound, limit + 1)
        if cover_bound < len(cover):
            notes.append(f"detection holds for at least {cover_bound - 1} attackers; {len(cover)} break it")
    correction = find_correction_break(table)
    if max_attackers is None:
        limit = max(1, min(limit, cover_bound - 1))
        if correction is None:
            notes.append(f"correction and tracking were examined up to {limit} attackers only")

    # 2. Margins, as far as the pairs allow; past a broken property they are 0.
    fits, most = limit, MAX_PAIRS * 100 // max(code.n_models, 100)
    while fits and count_pairs(table, fits) > most:
        fits -= 1
    if fits < limit:
        pairs = f"{count_pairs(table, fits + 1):,} comparisons"
        notes.append(f"margins past k = {fits} need {pairs}: looked up up to 5, label and tracking together")
    margins = find_margins(table, fits)
    unknown: Margin = (None,) * (limit - fits)
    # Users that share columns have equal patterns in plenty, which a lookup would compare one by one.
    alone = distinct is code
    gap: Margin = tuple(look_up_margin(code.matrix, k) if alone else None for k in range(fits + 1, limit + 1))

    # 3. Tracking: two equal columns end it at once.
    tracking, tracking_margin = find_tracking_break(table), margins.tracking
    if not alone:
        tracking, tracking_margin = _find_equal_columns(code, first), (0,) * fits

    # 4. Witnesses.
    witness: dict[str, Break] = {}
    detect = min(cover_bound - 1, limit)
    if len(cover) == cover_bound:
        witness["detect"] = _rename(Break(len(cover), (cover,)), first)
        half = -(-len(cover) // 2)
        witness["correct_arbitrary"] = _rename(Break(half, (cover[:half], cover[half:])), first)
    if correction:
        witness["correct"] = _rename(correction, first)
    if tracking:
        witness["track"] = tracking
    return Inspection(
        code=code,
        max_attackers=limit,
        detect=detect,
        correct=_holds(correction, limit),
        correct_arbitrary=min((cover_bound - 1) // 2, limit),
        track=_holds(tracking, limit),
        margin=margins.label + gap,
        margin_track=tracking_margin + gap,
        margin_arbitrary=margins.arbitrary + unknown,
        models_lower_bound=models_lower_bound(code.n_users, detect, code.row_weight, "detect") if detect else 1,
        witness=witness,
        notes=tuple(notes),
    )


def _tabulate(code: Code, max_attackers: int | None) -> PatternTable:
    if max_attackers is not None:
        return enumerate_patterns(code, max_attackers)
    size = 1
    table = enumerate_patterns(code, size)
    most = DEFAULT_SETS * 1024 // max(code.n_models, 1024)
    while find_detection_break(table) is None and count_attacker_sets(code.n_users, size + 1) <= most:
        size += 1
        table = enumerate_patterns(code, size)
    return table


def _find_equal_columns(code: Code, first: NDArray[np.int64]) -> Break:
    """Return two users with equal columns: either alone is mistaken for the other."""
    user = min(set(range(code.n_users)) - set(first.tolist()))
    twin = next(j for j in first.tolist() if (code.column(j) == code.column(user)).all())
    return Break(1, ((twin,), (user,)))


def _rename(found: Break, users: NDArray[np.int64]) -> Break:
    """Replace positions among the distinct columns by user indices."""
    return Break(found.size, tuple(tuple(int(users[j]) for j in attackers) for attackers in found.attackers))


def _holds(found: Break | None, limit: int) -> int:
    return limit if found is None else min(found.size - 1, limit)


def _by_size(margin: Margin) -> dict[str, int | None]:
    return {str(k): value for k, value in enumerate(margin, start=1)}


def sketch_code(code: Code, width: int = 100, height: int = 40) -> str:
    """Draw the matrix in text, two characters a cell: a full block is one, a dot is zero.

    A matrix larger than ``width`` users or ``height`` models is cut, and the last line says so.

    Examples
    --------
    >>> print(sketch_code(Code([[1, 0], [0, 1]])))
      0 1
    0 ██·
    1 · ██
    """
    wide, tall = min(code.n_users, width), min(code.n_models, height)
    label = len(str(tall - 1))
    # Column numbers are written downwards, one digit a line, so that two characters a user suffice.
    digits = len(str(wide - 1))
    lines = []
    for place in range(digits):
        ruler = "".join(f"{str(j).rjust(digits)[place]} " for j in range(wide))
        lines.append(" " * (label + 1) + ruler.rstrip())
    for i in range(tall):
        row = "".join("██" if bit else "· " for bit in code.matrix[i, :wide])
        lines.append(f"{i:>{label}} {row}".rstrip())
    if (tall, wide) != code.matrix.shape:
        lines.append(f"(showing {tall} of {code.n_models} models and {wide} of {code.n_users} users)")
    return "\n".join(lines)


#: Row weights sampled for each k, evenly from 1 to n - k.
SAMPLES = 10
#: Codes with more models are off the chart: nobody trains them.
MAX_CURVE_MODELS = 2_000


@dataclass(frozen=True)
class TradeOff:
    """Models for one k and row weight: the paper's construction, the designer's code, the lower bound.

    Examples
    --------
    >>> point = TradeOff(n_attackers=2, row_weight=9, paper=55, ours=13, bound=13)
    >>> point.paper / point.ours > 4
    True
    """

    n_attackers: int
    row_weight: int
    paper: int
    ours: int
    bound: int


def compare_models(
    n_users: int, max_attackers: int = 4, seconds: float = 20.0, seed: int = 0, progress: Progress | None = None
) -> list[TradeOff]:
    """Design codes with guarantee *correct* over a range of row weights for k = 1 .. ``max_attackers``.

    ``seconds`` is about the time for all of them together. Every search gets the same limit, whatever the clock says,
    so that the same request draws the same curve.

    Examples
    --------
    >>> points = compare_models(6, max_attackers=1, seconds=1)
    >>> [(point.row_weight, point.ours, point.bound) for point in points]
    [(1, 3, 3), (2, 3, 3), (3, 3, 3), (4, 3, 3), (5, 6, 6)]
    """
    shown = progress or silent()
    cells = []
    for k in range(1, max_attackers + 1):
        top = n_users - k
        weights = sorted({max(1, round(top * i / SAMPLES)) for i in range(1, SAMPLES + 1)}) if top > 0 else []
        cells += [(k, r) for r in weights if models_lower_bound(n_users, k, r) <= MAX_CURVE_MODELS]
    points = []
    for k, r in cells:
        try:
            # A metered search takes a fraction of its limit, and nothing where it meets the bound at once: 8 shares
            # of the time each were measured to keep to the whole.
            ours = design(n_users, k, r, margin=1, time_limit=8 * seconds / len(cells), seed=seed, reproducible=True)
        except TooLargeError:
            continue
        finally:
            shown.advance(seconds / len(cells), f"k = {k}, row weight {r}")
        if ours.code.n_models <= MAX_CURVE_MODELS:
            paper = duplicated_code(n_users, k, r).n_models
            points.append(TradeOff(k, r, paper, ours.code.n_models, ours.models_lower_bound))
    return points


def plot_trade_off(points: list[TradeOff], n_users: int) -> Drawing:
    """Draw models (logarithmic) against utilization, a colour a k: paper dashed, designer full, bound hollow.

    Examples
    --------
    >>> plot_trade_off([TradeOff(1, 2, 3, 3, 3), TradeOff(1, 3, 4, 3, 3)], 6)
    <Drawing: Sub-models that correct k attackers among 6 users>
    """
    top = ceil(log10(max((max(point.paper, point.ours) for point in points), default=10)))
    looks: tuple[tuple[str, bool, Marker], ...] = (
        ("paper", True, "ring"),
        ("ours", False, "disc"),
        ("bound", False, "frame"),
    )
    lines = []
    for k in sorted({point.n_attackers for point in points}):
        for name, dashed, marker in looks:
            values = [(point.row_weight, getattr(point, name)) for point in points if point.n_attackers == k]
            places = tuple(
                Point(100 * r / n_users, log10(m) / top, None, f"k = {k}, {name}, row weight {r}: {m:,}")
                for r, m in values
            )
            lines.append(Line(f"{name}, k={k}", COLOURS[(k - 1) % len(COLOURS)], dashed, marker, places))
    names = {decade / top: f"{10 ** (decade % 3)}{'kMGT'[decade // 3 - 1] * (decade > 2)}" for decade in range(top + 1)}
    label = f"Sub-models that correct k attackers among {n_users} users"
    return draw_lines(lines, label, "utilization r / n, %", (0, 25, 50, 75, 100), y_names=names)
