"""Code matrices, their properties with witnesses, bounds, constructions, and the designer. Never imports torch."""

from codeward.codes._code import Code
from codeward.codes._constructions import (
    add_row_of_ones,
    bagging_code,
    bit_code,
    duplicated_code,
    kautz_singleton_code,
    list_named_codes,
    minimal_code,
    minimal_correcting_code,
    named_code,
    partition_code,
    random_separable_code,
    shifted_hash_code,
    stack_codes,
)
from codeward.codes._designer import Design, design
from codeward.codes._drawing import plot_code, sketch_code
from codeward.codes._guarantees import covering_bound, models_lower_bound
from codeward.codes._inspection import Inspection, inspect
from codeward.codes._patterns import PatternTable, count_attacker_sets, enumerate_patterns
from codeward.codes._properties import (
    Break,
    Margins,
    find_correction_break,
    find_detection_break,
    find_margins,
    find_smallest_cover,
    find_tracking_break,
    find_twin_break,
)

__all__ = [
    "Break",
    "Code",
    "Design",
    "Inspection",
    "Margins",
    "PatternTable",
    "add_row_of_ones",
    "bagging_code",
    "bit_code",
    "count_attacker_sets",
    "covering_bound",
    "design",
    "duplicated_code",
    "enumerate_patterns",
    "find_correction_break",
    "find_detection_break",
    "find_margins",
    "find_smallest_cover",
    "find_tracking_break",
    "find_twin_break",
    "inspect",
    "kautz_singleton_code",
    "list_named_codes",
    "minimal_code",
    "minimal_correcting_code",
    "models_lower_bound",
    "named_code",
    "partition_code",
    "plot_code",
    "random_separable_code",
    "shifted_hash_code",
    "sketch_code",
    "stack_codes",
]
