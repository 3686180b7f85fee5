"""The paper's figure and table, and what goes past them: grids of runs, studies of their votes, tables and the page.

Names below are imported on first use: reading results needs no torch, filling a grid does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "SAMPLE_CODES": "_sample_votes",
    "SAMPLE_DECODERS": "_sample_tables",
    "CellStudy": "_findings",
    "Grid": "_grid_folder",
    "GridReport": "_grid_report",
    "PackedRun": "_packed_setting",
    "PackedSetting": "_packed_setting",
    "PlannedCell": "_sweep",
    "SampleStudy": "_sample_votes",
    "WriterData": "_writers",
    "attack_writers": "_writer_study",
    "build_grid_report": "_grid_report",
    "certify_samples": "_sample_tables",
    "check_claims": "_claims",
    "choose_sample_training": "_sample_votes",
    "count_grid": "_sweep",
    "count_grid_steps": "_grid_report",
    "draw_grid": "_sweep",
    "drop_scores": "_grid_folder",
    "fill_claims": "_claims",
    "freeze_features": "_sample_heads",
    "is_grid": "_grid_folder",
    "is_packed": "_packed_setting",
    "list_packed": "_packed_setting",
    "list_runs": "_grid_folder",
    "load_sample_records": "_sample_tables",
    "load_writer_records": "_writer_study",
    "make_writer_codes": "_writers",
    "open_grid": "_grid_folder",
    "pack_setting": "_packing",
    "plan_cells": "_sweep",
    "plan_study": "_studies",
    "draw_samples": "_sample_tables",
    "draw_writers": "_writer_study",
    "study_grid": "_sweep",
    "study_writers": "_writer_study",
    "tabulate_samples": "_sample_tables",
    "tabulate_writers": "_writer_study",
    "unpack_setting": "_packing",
    "vote_grid": "_sweep",
    "vote_heads": "_sample_heads",
    "vote_samples": "_sample_votes",
    "vote_writers": "_writer_study",
    "write_grid_report": "_grid_report",
}

__all__ = [
    "SAMPLE_CODES",
    "SAMPLE_DECODERS",
    "CellStudy",
    "Grid",
    "GridReport",
    "PackedRun",
    "PackedSetting",
    "PlannedCell",
    "SampleStudy",
    "WriterData",
    "attack_writers",
    "build_grid_report",
    "certify_samples",
    "check_claims",
    "choose_sample_training",
    "count_grid",
    "count_grid_steps",
    "draw_grid",
    "draw_samples",
    "draw_writers",
    "drop_scores",
    "fill_claims",
    "freeze_features",
    "is_grid",
    "is_packed",
    "list_packed",
    "list_runs",
    "load_sample_records",
    "load_writer_records",
    "make_writer_codes",
    "open_grid",
    "pack_setting",
    "plan_cells",
    "plan_study",
    "study_grid",
    "study_writers",
    "tabulate_samples",
    "tabulate_writers",
    "unpack_setting",
    "vote_grid",
    "vote_heads",
    "vote_samples",
    "vote_writers",
    "write_grid_report",
]

if TYPE_CHECKING:
    from codeward.reproduction._claims import check_claims, fill_claims
    from codeward.reproduction._findings import CellStudy
    from codeward.reproduction._grid_folder import Grid, drop_scores, is_grid, list_runs, open_grid
    from codeward.reproduction._grid_report import GridReport, build_grid_report, count_grid_steps, write_grid_report
    from codeward.reproduction._packed_setting import PackedRun, PackedSetting, is_packed, list_packed
    from codeward.reproduction._packing import pack_setting, unpack_setting
    from codeward.reproduction._sample_heads import freeze_features, vote_heads
    from codeward.reproduction._sample_tables import (
        SAMPLE_DECODERS,
        certify_samples,
        draw_samples,
        load_sample_records,
        tabulate_samples,
    )
    from codeward.reproduction._sample_votes import SAMPLE_CODES, SampleStudy, choose_sample_training, vote_samples
    from codeward.reproduction._studies import plan_study
    from codeward.reproduction._sweep import PlannedCell, count_grid, draw_grid, plan_cells, study_grid, vote_grid
    from codeward.reproduction._writer_study import (
        attack_writers,
        draw_writers,
        load_writer_records,
        study_writers,
        tabulate_writers,
        vote_writers,
    )
    from codeward.reproduction._writers import WriterData, make_writer_codes


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"codeward.reproduction.{_HOME[name]}"), name)
    raise AttributeError(f"module 'codeward.reproduction' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
