"""The report of a grid of runs: one page and one file of tables, from records and studies alone."""

from codeward.report._grid._folder import is_grid
from codeward.report._grid._report import GridReport, build_grid_report, count_grid_steps, write_grid_report

__all__ = ["GridReport", "build_grid_report", "count_grid_steps", "is_grid", "write_grid_report"]
