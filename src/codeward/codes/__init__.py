"""Code matrices, their properties with witnesses, bounds, constructions, and the designer. Never imports torch."""

from codeward.codes._code import Code
from codeward.codes._patterns import PatternTable, count_attacker_sets, enumerate_patterns

__all__ = ["Code", "PatternTable", "count_attacker_sets", "enumerate_patterns"]
