"""Codes by name: the eight of the paper's experiments (Figure 4), the examples of its text, and some beside them."""

from collections.abc import Callable

import numpy as np

from codeward._errors import InputError
from codeward.codes._code import Code
from codeward.codes._constructions import (
    bagging_code,
    duplicated_code,
    kautz_singleton_code,
    partition_code,
    shifted_hash_code,
    stack_codes,
)

# The random codes are one fixed draw each, so that "e" means the same matrix everywhere: the first seed whose largest k
# of detection, correction and tracking are those most frequent among 500 seeds (e: 2, 2, 1; f: 1, 0, 0). The paper says
# that its toy code (b) is BCC, which 11 of 500 draws are; that is the first such seed.
_SEED_E, _SEED_F, _SEED_TOY, _SEED_FA = 0, 0, 55, 0


def named_code(name: str) -> Code:
    """Return one of the paper's codes, or one to compare with them.

    ======== ==============================================================================================
    name     code
    ======== ==============================================================================================
    a, b     partition of 12 users into 12 and 6 groups (our reading: the figure is not in the text)
    c, d     BCC(4,4,12) and BCC(2,6,12) by column duplication
    e, f     random, with the row weights and row counts of c and d (one fixed draw)
    g        BTC(1,11,16): 6 models
    h        BTC(2,4,16): 10 models, found by search
    h16      BTC(2,4,16) as the paper builds such codes (Corollary 5.2): 4 + 12 models; probably its code (h)
    btc3416  BTC(3,4,16): 16 models, found by search; as many models and as much data as h16, for one attacker more
    btc2412  BTC(2,4,12) with margin 3 for labels and names: 15 models, found by search; the default of ``codeward run``
    fa       Finite Aggregation's shifted hash on 12 users: 12 models of 4 users, as much data as c (one fixed draw)
    bcc248   BCC(2,4,8) from BCC(2,2,4), Figure 3(b)
    btc228   BTC(2,2,8), Figure 3(c): the paper needs 4 + 7 models, this one 7, found by search
    toy-a    6 users, one attacker, Figure 2: partition into 3 groups (BCC)
    toy-b    random
    toy-c    BCC(1,4,6), as many models as toy-a and twice its row weight
    toy-d    BTC(1,3,6)
    ======== ==============================================================================================

    Examples
    --------
    >>> named_code("c").matrix.shape
    (15, 12)
    """
    build = _BUILDERS.get(name.lower())
    if build is None:
        raise InputError(f"no code is named {name!r}; choose one of {', '.join(_BUILDERS)}")
    code = build()
    return Code(code.matrix, construction=f"code {name.lower()}: {code.construction}")


def list_named_codes() -> tuple[str, ...]:
    """Return the names `named_code` knows.

    Examples
    --------
    >>> list_named_codes()[:4]
    ('a', 'b', 'c', 'd')
    """
    return tuple(_BUILDERS)


def _code_g() -> Code:
    """Build BTC(1,11,16): six columns with one zero, ten with two; no row has more than five zeros.

    The ten pairs of zeros are edges on six vertices with no degree over four: a hexagon, its diameters, one more.
    """
    pairs = [(i, (i + 1) % 6) for i in range(6)] + [(i, i + 3) for i in range(3)] + [(0, 2)]
    return _from_pairs(6, pairs)


def _code_h16() -> Code:
    """Stack BCC(2,4,16) over the 2-separable matrix of Kautz and Singleton for 16 users, whose rows have 4 ones.

    The paper's figure is not in its text. What the text says fits this code: 16 users "since the code construction is
    relatively easy for the power of 2's", r = 4, a stack of the two, and with three attackers 2.68 +- 0.94 users named
    rightly and 0.31 wrongly over ten repeats, which is nine repeats right and one wrong (docs/reproduction.md).
    """
    return stack_codes(duplicated_code(16, 2, 4), kautz_singleton_code(16, 2))


def _from_pairs(n_models: int, pairs: list[tuple[int, int]]) -> Code:
    """Give every model a user that it alone leaves out, and every pair of models one that both leave out."""
    zeros = [(i,) for i in range(n_models)] + pairs
    rows = [[i not in column for column in zeros] for i in range(n_models)]
    return Code(rows, construction="one or two zeros a column")


def _from_rows(rows: str, construction: str) -> Code:
    return Code([[cell == "1" for cell in row] for row in rows.split()], construction=construction)


# All were found by `design(..., guarantee="track")` (annealing with the property as its cost) and are kept, so that
# the names stay the same code whatever the designer learns. The bound on the models is 9 for h, 11 for
# btc3416 and 7 for the example.
_ROWS_H = """
1100101000010010 1010001101101000 1001110011100000 0111000001010000 0101001000101100
0100010100001011 0011010110010110 0010110000000100 0000101111000001 0000000001100111
"""
_ROWS_BTC3416 = """
1101000001010100 1010000000010001 1001000010100010 1000101000100000 1000010100001100
0100100011000001 0100001000001010 0100000101000100 0100000100100001 0010100000000110
0010010000101000 0010001011001000 0001110000000001 0001001100010000 0000100010011000
0000010001010010
"""
# Margins for labels and names: 6 and 5 for one attacker, 3 and 3 for two; 4 pairs of sets of three hit the same models.
_ROWS_BTC2412 = """
000111000001 001001010010 000100101010 100100010100 010001011000 111100000010 000010110110 001101001000
110001100001 100010000011 010100100100 001000110001 100011001100 001000001101 011010001000
"""
_ROWS_BTC228 = "11010000 10101000 10000011 01100010 01000101 00110100 00001110"

_BUILDERS: dict[str, Callable[[], Code]] = {
    "a": lambda: partition_code(12, 12),
    "b": lambda: partition_code(12, 6),
    "c": lambda: duplicated_code(12, 4, 4),
    "d": lambda: duplicated_code(12, 2, 6),
    "e": lambda: bagging_code(12, 15, 4, np.random.default_rng(_SEED_E)),
    "f": lambda: bagging_code(12, 6, 6, np.random.default_rng(_SEED_F)),
    "g": _code_g,
    "h": lambda: _from_rows(_ROWS_H, "found by annealing"),
    "h16": _code_h16,
    "btc3416": lambda: _from_rows(_ROWS_BTC3416, "found by annealing"),
    "btc2412": lambda: _from_rows(_ROWS_BTC2412, "found by annealing"),
    "fa": lambda: shifted_hash_code(3, 4, np.random.default_rng(_SEED_FA)),
    "bcc248": lambda: duplicated_code(8, 2, 4),
    "btc228": lambda: _from_rows(_ROWS_BTC228, "found by annealing"),
    "toy-a": lambda: partition_code(6, 3),
    "toy-b": lambda: bagging_code(6, 4, 3, np.random.default_rng(_SEED_TOY)),
    "toy-c": lambda: duplicated_code(6, 1, 4),
    # Two zeros in two columns that share a row: else they would be complements.
    "toy-d": lambda: _from_pairs(4, [(0, 1), (0, 2)]),
}
