"""Code matrices, their properties with witnesses, bounds, constructions, and the designer. Never imports torch."""

from codeward.codes._code import Code, code_to_json
from codeward.codes._constructions import (
    add_row_of_ones,
    bagging_code,
    bit_code,
    duplicated_code,
    kautz_singleton_code,
    minimal_code,
    minimal_correcting_code,
    partition_code,
    random_separable_code,
    shifted_hash_code,
    stack_codes,
)
from codeward.codes._designer import Design, design
from codeward.codes._guarantees import covering_bound, models_lower_bound
from codeward.codes._inspection import (
    Inspection,
    TradeOff,
    compare_models,
    inspect,
    plot_trade_off,
    sketch_code,
)
from codeward.codes._named_codes import list_named_codes, named_code
from codeward.codes._patterns import (
    PatternTable,
    count_attacker_sets,
    enumerate_patterns,
    pack_words,
    sort_rows,
    unpack_words,
)
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
    "TradeOff",
    "add_row_of_ones",
    "bagging_code",
    "bit_code",
    "code_to_json",
    "compare_models",
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
    "pack_words",
    "partition_code",
    "plot_trade_off",
    "random_separable_code",
    "shifted_hash_code",
    "sketch_code",
    "sort_rows",
    "stack_codes",
    "unpack_words",
]
