"""Arithmetic of small finite fields, by tables."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Field:
    """The field of q elements, named 0 .. q-1; 0 and 1 are the neutral elements.

    Attributes
    ----------
    order : int
        q, a prime power.
    plus, times : ndarray of int64, shape (q, q)
        Addition and multiplication tables.
    """

    order: int
    plus: NDArray[np.int64]
    times: NDArray[np.int64]


def split_prime_power(number: int) -> tuple[int, int] | None:
    """Return (p, e) with ``number == p**e``, p prime, or None."""
    for p in range(2, number + 1):
        if number % p == 0:
            rest, e = number, 0
            while rest % p == 0:
                rest, e = rest // p, e + 1
            return (p, e) if rest == 1 else None
    return None


@lru_cache(maxsize=64)
def make_field(order: int) -> Field:
    """Build the field of ``order`` elements: polynomials over the prime field, modulo an irreducible one.

    Element number :math:`\\sum a_i p^i` is the polynomial with coefficients :math:`a_i`.
    """
    split = split_prime_power(order)
    if split is None:
        raise ValueError(f"there is no field of {order} elements")
    p, e = split
    digits = np.array([[x // p**i % p for i in range(e)] for x in range(order)], dtype=np.int64)
    scale = p ** np.arange(e)
    plus = ((digits[:, None, :] + digits[None, :, :]) % p) @ scale
    # The first monic polynomial of degree e whose quotient ring has no zero divisors.
    for tail in product(range(p), repeat=e):
        times = _multiply(digits, np.array(tail, dtype=np.int64), p) @ scale
        if (times[1:, 1:] != 0).all():
            return Field(order, plus, times)
    raise AssertionError("an irreducible polynomial of every degree exists")


def _multiply(digits: NDArray[np.int64], tail: NDArray[np.int64], p: int) -> NDArray[np.int64]:
    """Products of all pairs modulo x^e + tail, as digits, shape (q, q, e)."""
    q, e = digits.shape
    result = np.zeros((q, q, e), dtype=np.int64)
    shifted = digits.copy()  # a * x^i mod the polynomial
    for i in range(e):
        result += digits[None, :, i, None] * shifted[:, None, :]
        top = shifted[:, -1:].copy()
        shifted = np.concatenate([np.zeros((q, 1), dtype=np.int64), shifted[:, :-1]], axis=1)
        shifted = (shifted - top * tail[None, :]) % p
    return result % p
