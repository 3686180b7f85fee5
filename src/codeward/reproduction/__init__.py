"""The paper's figure and table, and what goes past them: grids of runs, studies of their votes, tables and the page.

Names below are imported on first use: reading results needs no torch, filling a grid does.
"""

from typing import TYPE_CHECKING

from codeward._importing import attach

__all__ = [
    "SAMPLE_CODES",
    "SAMPLE_DECODERS",
    "CellCounters",
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
    "count_with_everybody",
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
        draw_writers,
        load_sample_records,
        load_writer_records,
        tabulate_samples,
        tabulate_writers,
    )
    from codeward.reproduction._sample_votes import SAMPLE_CODES, SampleStudy, choose_sample_training, vote_samples
    from codeward.reproduction._studies import plan_study
    from codeward.reproduction._sweep import (
        CellCounters,
        PlannedCell,
        count_grid,
        draw_grid,
        plan_cells,
        study_grid,
        vote_grid,
    )
    from codeward.reproduction._writer_study import attack_writers, count_with_everybody, study_writers, vote_writers
    from codeward.reproduction._writers import WriterData, make_writer_codes

__getattr__, __dir__ = attach(__name__)
