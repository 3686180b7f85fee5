"""Tables, figures and the HTML reports of runs, from records and vote files only; and what other pages are made of."""

from codeward.report._chart import Line, Marker, Point, draw_lines, draw_sample
from codeward.report._figures import accuracy_points, plot_accuracy
from codeward.report._grid_table import (
    Cell,
    Groups,
    Table,
    auc_cell,
    count_attackers,
    count_repeats,
    make_table,
    shaded_cell,
    share_cell,
)
from codeward.report._html import Report, build_report, count_steps, write_report
from codeward.report._page import write_page
from codeward.report._parts import write_section
from codeward.report._promises import LIMITS, THREATS
from codeward.report._run import check_records, read_records
from codeward.report._svg import adopt_svg, draw_code
from codeward.report._tables import Share, sum_up_shares, write_table

__all__ = [
    "LIMITS",
    "THREATS",
    "Cell",
    "Groups",
    "Line",
    "Marker",
    "Point",
    "Report",
    "Share",
    "Table",
    "accuracy_points",
    "adopt_svg",
    "auc_cell",
    "build_report",
    "check_records",
    "count_attackers",
    "count_repeats",
    "count_steps",
    "draw_code",
    "draw_lines",
    "draw_sample",
    "make_table",
    "plot_accuracy",
    "read_records",
    "shaded_cell",
    "share_cell",
    "sum_up_shares",
    "write_page",
    "write_report",
    "write_section",
    "write_table",
]
