"""The paper's figure and table, and what goes past them: grids of runs, studies of their votes, tables and the page."""

from codeward.reproduction._cell_votes import CellVotes, read_cell
from codeward.reproduction._grid_folder import is_grid
from codeward.reproduction._grid_report import GridReport, build_grid_report, count_grid_steps, write_grid_report
from codeward.reproduction._studies import plan_study
from codeward.reproduction._sweep import GridCell, ask_grid, count_grid, draw_grid, list_cells, study_grid

__all__ = [
    "CellVotes",
    "GridCell",
    "GridReport",
    "ask_grid",
    "build_grid_report",
    "count_grid",
    "count_grid_steps",
    "draw_grid",
    "is_grid",
    "list_cells",
    "plan_study",
    "read_cell",
    "study_grid",
    "write_grid_report",
]
