"""Backdoor attacks as functions from data to data, for experiments."""

from codeward.attacks._poisoning import (
    FRACTION,
    AttackGroup,
    AttackKind,
    Position,
    Trigger,
    draw_blend,
    draw_groups,
    draw_patch,
    poison,
    poison_users,
    stamp,
    trigger_inputs,
)

__all__ = [
    "FRACTION",
    "AttackGroup",
    "AttackKind",
    "Position",
    "Trigger",
    "draw_blend",
    "draw_groups",
    "draw_patch",
    "poison",
    "poison_users",
    "stamp",
    "trigger_inputs",
]
