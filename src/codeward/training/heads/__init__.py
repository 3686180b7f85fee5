"""Linear heads on frozen features: a user is its statistics, a row of the code a sum, a head one solve.

Nothing here needs torch; only keeping heads in a model store does.
"""

from codeward.training.heads._feature_grid import GRID_BITS, GridFeatures, check_steps, round_to_grid
from codeward.training.heads._head_set import HeadSet, fit_heads
from codeward.training.heads._ridge import sum_row_grams
from codeward.training.heads._user_statistics import (
    StatisticsSet,
    UserStatistics,
    check_statistics,
    gather_statistics,
    pack_statistics,
    unpack_statistics,
)

__all__ = [
    "GRID_BITS",
    "GridFeatures",
    "HeadSet",
    "StatisticsSet",
    "UserStatistics",
    "check_statistics",
    "check_steps",
    "fit_heads",
    "gather_statistics",
    "pack_statistics",
    "round_to_grid",
    "sum_row_grams",
    "unpack_statistics",
]
