"""The HTML report of a run, from records and vote files only; and what other pages are made of: tables, charts, pages.

Nothing here trains or imports torch.
"""

from codeward._charts import (
    ATTACKER_STYLES,
    Line,
    Marker,
    Panel,
    Point,
    Style,
    draw_lines,
    draw_matrix,
    draw_roc,
    draw_sample,
    make_point,
)
from codeward._figures import Share, sum_up_shares
from codeward.report._comparison_page import ComparedRecords, pack_comparison, tabulate_comparison, write_comparison
from codeward.report._page import adopt_svg, build_card, write_card, write_page
from codeward.report._run_report import (
    ENDINGS,
    Report,
    ReportKind,
    build_report,
    count_steps,
    save_tables,
    write_report,
)
from codeward.report._table_builder import (
    Groups,
    Table,
    TableEntry,
    auc_cell,
    count_attackers,
    count_repeats,
    make_table,
    shaded_cell,
    share_cell,
)
from codeward.runs import draw_accuracy

__all__ = [
    "ATTACKER_STYLES",
    "ENDINGS",
    "ComparedRecords",
    "Groups",
    "Line",
    "Marker",
    "Panel",
    "Point",
    "Report",
    "ReportKind",
    "Share",
    "Style",
    "Table",
    "TableEntry",
    "adopt_svg",
    "auc_cell",
    "build_card",
    "build_report",
    "count_attackers",
    "count_repeats",
    "count_steps",
    "draw_accuracy",
    "draw_lines",
    "draw_matrix",
    "draw_roc",
    "draw_sample",
    "make_point",
    "make_table",
    "pack_comparison",
    "save_tables",
    "shaded_cell",
    "share_cell",
    "sum_up_shares",
    "tabulate_comparison",
    "write_card",
    "write_comparison",
    "write_page",
    "write_report",
]
