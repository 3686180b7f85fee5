"""The paper's figure and table, and what goes past them: grids of runs, studies of their votes, tables and the page.

Names below are imported on first use: reading results needs no torch, filling a grid does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "CellStudy": "_cell_study",
    "Grid": "_grid_folder",
    "GridReport": "_grid_report",
    "PackedRun": "_packed_run",
    "PackedSetting": "_packing",
    "PlannedCell": "_sweep",
    "build_grid_report": "_grid_report",
    "check_claims": "_claims",
    "count_grid": "_sweep",
    "count_grid_steps": "_grid_report",
    "draw_grid": "_sweep",
    "fill_claims": "_claims",
    "is_grid": "_grid_folder",
    "list_packed": "_packing",
    "open_grid": "_grid_folder",
    "pack_setting": "_packing",
    "plan_cells": "_sweep",
    "plan_study": "_studies",
    "read_lines": "_json_lines",
    "study_grid": "_sweep",
    "unpack_setting": "_packing",
    "vote_grid": "_sweep",
    "write_grid_report": "_grid_report",
    "write_lines": "_json_lines",
}

__all__ = [
    "CellStudy",
    "Grid",
    "GridReport",
    "PackedRun",
    "PackedSetting",
    "PlannedCell",
    "build_grid_report",
    "check_claims",
    "count_grid",
    "count_grid_steps",
    "draw_grid",
    "fill_claims",
    "is_grid",
    "list_packed",
    "open_grid",
    "pack_setting",
    "plan_cells",
    "plan_study",
    "read_lines",
    "study_grid",
    "unpack_setting",
    "vote_grid",
    "write_grid_report",
    "write_lines",
]

if TYPE_CHECKING:
    from codeward.reproduction._cell_study import CellStudy
    from codeward.reproduction._claims import check_claims, fill_claims
    from codeward.reproduction._grid_folder import Grid, is_grid, open_grid
    from codeward.reproduction._grid_report import GridReport, build_grid_report, count_grid_steps, write_grid_report
    from codeward.reproduction._json_lines import read_lines, write_lines
    from codeward.reproduction._packed_run import PackedRun
    from codeward.reproduction._packing import PackedSetting, list_packed, pack_setting, unpack_setting
    from codeward.reproduction._studies import plan_study
    from codeward.reproduction._sweep import PlannedCell, count_grid, draw_grid, plan_cells, study_grid, vote_grid


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"codeward.reproduction.{_HOME[name]}"), name)
    raise AttributeError(f"module 'codeward.reproduction' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
