"""Tables, figures and the HTML reports of runs and grids, from records, studies and vote files only."""

from codeward.report._figures import accuracy_points, plot_accuracy
from codeward.report._grid import GridReport, build_grid_report, count_grid_steps, is_grid, write_grid_report
from codeward.report._html import Report, build_report, count_steps, write_report

__all__ = [
    "GridReport",
    "Report",
    "accuracy_points",
    "build_grid_report",
    "build_report",
    "count_grid_steps",
    "count_steps",
    "is_grid",
    "plot_accuracy",
    "write_grid_report",
    "write_report",
]
