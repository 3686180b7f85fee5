"""Attacks against defences, ours among them, on the same users, data, network and seeds.

>>> sorted(ATTACKS)[:3], len(DEFENCES) > 10
(['blended', 'clean-label', 'half-labelled'], True)
"""

from codeward.experiments.comparison._comparison import DEFENCES, ComparedCell, Comparison, Defence, run_comparison
from codeward.experiments.comparison._scene import (
    ATTACKS,
    Outcome,
    Scene,
    join_samples,
    make_scene,
    measure_outcome,
)

__all__ = [
    "ATTACKS",
    "DEFENCES",
    "ComparedCell",
    "Comparison",
    "Defence",
    "Outcome",
    "Scene",
    "join_samples",
    "make_scene",
    "measure_outcome",
    "run_comparison",
]
