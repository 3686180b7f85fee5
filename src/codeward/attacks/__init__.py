"""Backdoor attacks as functions from data to data, for experiments."""

from codeward.attacks._poisoning import (
    FRACTION,
    AttackGroup,
    AttackKind,
    draw_groups,
    poison,
    poison_users,
    trigger_inputs,
)
from codeward.attacks._triggers import Position, Trigger, draw_blend, draw_patch, stamp

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
