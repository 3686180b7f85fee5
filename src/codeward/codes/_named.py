"""The paper's own codes by name: the eight of its experiments (Figure 4) and the examples of its text."""

from collections.abc import Callable

import numpy as np

from codeward._errors import InputError
from codeward.codes._baselines import bagging_code, partition_code
from codeward.codes._code import Code
from codeward.codes._paper import duplicated_code

# The random codes are one fixed draw each, so that "e" means the same matrix everywhere: the first seed whose largest k
# of detection, correction and tracking are those most frequent among 500 seeds (e: 2, 2, 1; f: 1, 0, 0). The paper says
# that its toy code (b) is BCC, which 11 of 500 draws are; that is the first such seed.
_SEED_E, _SEED_F, _SEED_TOY = 0, 0, 55


def named_code(name: str) -> Code:
    """Return one of the paper's codes.

    ======== ==============================================================================================
    name     code
    ======== ==============================================================================================
    a, b     partition of 12 users into 12 and 6 groups (our reading: the figure is not in the text)
    c, d     BCC(4,4,12) and BCC(2,6,12) by column duplication
    e, f     random, with the row weights and row counts of c and d (one fixed draw)
    g        BTC(1,11,16): 6 models
    h        BTC(2,4,16): 10 models, found by search
    bcc248   BCC(2,4,8) from BCC(2,2,4), Figure 3(b)
    btc228   BTC(2,2,8), Figure 3(c): the paper needs 4 + 7 models, this one 7, found by search
    toy-a    6 users, one attacker, Figure 2: partition into 3 groups (BCC)
    toy-b    random
    toy-c    BCC(1,4,6), as many models as toy-a and twice its row weight
    toy-d    BTC(1,3,6)
    ======== ==============================================================================================
    """
    build = _BUILDERS.get(name.lower())
    if build is None:
        raise InputError(f"no code is named {name!r}; choose one of {', '.join(_BUILDERS)}")
    code = build()
    return Code(code.matrix, construction=f"paper code {name.lower()}: {code.construction}")


def list_named_codes() -> tuple[str, ...]:
    """Return the names `named_code` knows."""
    return tuple(_BUILDERS)


def _code_g() -> Code:
    """Build BTC(1,11,16): six columns with one zero, ten with two; no row has more than five zeros.

    The ten pairs of zeros are edges on six vertices with no degree over four: a hexagon, its diameters, one more.
    """
    pairs = [(i, (i + 1) % 6) for i in range(6)] + [(i, i + 3) for i in range(3)] + [(0, 2)]
    zeros = [(i,) for i in range(6)] + pairs
    return Code([[i not in column for column in zeros] for i in range(6)], construction="one or two zeros a column")


def _toy_d() -> Code:
    """Build BTC(1,3,6): four columns with one zero and two with two zeros that share a row (else complements)."""
    zeros = [(0,), (1,), (2,), (3,), (0, 1), (0, 2)]
    return Code([[i not in column for column in zeros] for i in range(4)], construction="one or two zeros a column")


def _from_rows(rows: str, construction: str) -> Code:
    return Code([[cell == "1" for cell in row] for row in rows.split()], construction=construction)


# Both were found by `design(..., guarantee="track")` (annealing with the property as its cost) and are kept, so that
# the names stay the same code whatever the designer learns. The bound on the models is 9 for h and 7 for the example.
_ROWS_H = """
1100101000010010 1010001101101000 1001110011100000 0111000001010000 0101001000101100
0100010100001011 0011010110010110 0010110000000100 0000101111000001 0000000001100111
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
    "bcc248": lambda: duplicated_code(8, 2, 4),
    "btc228": lambda: _from_rows(_ROWS_BTC228, "found by annealing"),
    "toy-a": lambda: partition_code(6, 3),
    "toy-b": lambda: bagging_code(6, 4, 3, np.random.default_rng(_SEED_TOY)),
    "toy-c": lambda: duplicated_code(6, 1, 4),
    "toy-d": _toy_d,
}
