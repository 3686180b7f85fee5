"""Attacks against defences, ours among them, on the same users, data, network and seeds.

>>> list(ATTACKS)[:3], len(DEFENCES) > 20
(['none', 'patch', 'blended'], True)
"""

from codeward.experiments.comparison._comparison import ComparedCell, Comparison, run_comparison
from codeward.experiments.comparison._defences import DEFENCES, Defence
from codeward.experiments.comparison._scene import (
    ATTACKS,
    UPDATE_ATTACKS,
    AttackPlan,
    Outcome,
    Scene,
    join_samples,
    measure_outcome,
)
from codeward.experiments.comparison._simulated_attacks import Battlefield, make_scene, search_classes, search_plan

__all__ = [
    "ATTACKS",
    "DEFENCES",
    "UPDATE_ATTACKS",
    "AttackPlan",
    "Battlefield",
    "ComparedCell",
    "Comparison",
    "Defence",
    "Outcome",
    "Scene",
    "join_samples",
    "make_scene",
    "measure_outcome",
    "run_comparison",
    "search_classes",
    "search_plan",
]
