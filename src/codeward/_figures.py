"""Figures: shares as text by one rule."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

#: A figure with what it is a fraction of: ``count`` and ``of``.
Share = dict[str, int]


def show_percent(share: float) -> str:
    """Write a share in 0..1 with one decimal, the only rule for percentages in the package.

    What is neither nothing nor everything is never written as 0.0% or 100.0%; nan (a share of nothing) is a dash.

    Examples
    --------
    >>> [show_percent(share) for share in (0, 0.0004, 0.875, 0.9996, 1)]
    ['0.0%', '<0.1%', '87.5%', '>99.9%', '100.0%']
    """
    if share != share:
        return "-"
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{100 * share:.1f}%"


def show_count(figure: Mapping[str, int]) -> str:
    """Write a share that is kept as count and denominator (``codeward.runs.share``), with both.

    Examples
    --------
    >>> show_count({"count": 7, "of": 8}), show_count({"count": 0, "of": 0})
    ('87.5% (7 of 8)', '- (0 of 0)')
    """
    value = figure["count"] / figure["of"] if figure["of"] else float("nan")
    return f"{show_percent(value)} ({figure['count']:,} of {figure['of']:,})"


def sum_up_rates(values: Sequence[float]) -> str:
    """Write a share in 0..1; of several, mean and sample standard deviation in percent.

    Examples
    --------
    >>> sum_up_rates([0.25]), sum_up_rates([0.25, 0.75])
    ('25.0%', '50.0% ± 35.4')
    """
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{show_percent(fmean(values))}{spread}"


def sum_up_shares(shares: Sequence[Share]) -> tuple[str, str]:
    """Return a share and its counts; of several, mean and sample standard deviation, and the denominators.

    Examples
    --------
    >>> sum_up_shares([{"count": 1, "of": 4}])
    ('25.0%', '1 of 4')
    >>> sum_up_shares([{"count": 1, "of": 4}, {"count": 3, "of": 4}])
    ('50.0% ± 35.4', '2 times 4')
    """
    kept = [share for share in shares if share["of"]]
    if not kept:
        return "none", ""
    said = sum_up_rates([share["count"] / share["of"] for share in kept])
    if len(kept) == 1:
        return said, f"{kept[0]['count']:,} of {kept[0]['of']:,}"
    totals = sorted({share["of"] for share in kept})
    of = f"{totals[0]:,}" if len(totals) == 1 else f"{totals[0]:,} to {totals[-1]:,}"
    return said, f"{len(kept)} times {of}"
