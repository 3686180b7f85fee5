from itertools import combinations
from math import comb

import numpy as np
import pytest

from codeward import InputError, inspect
from codeward._errors import TooLargeError
from codeward.codes import (
    add_row_of_ones,
    duplicated_code,
    enumerate_patterns,
    find_correction_break,
    find_detection_break,
    minimal_code,
    minimal_correcting_code,
)

SMALL = [(k, r) for k in range(1, 5) for r in range(1, 5)]


@pytest.mark.parametrize(("k", "r"), SMALL)
def test_recursion_gives_all_rows_with_k_zeros(k, r):
    n = k + r
    twin = {tuple(j not in zeros for j in range(n)) for zeros in combinations(range(n), k)}
    code = minimal_code(k, r)
    assert code.n_models == comb(n, k)
    assert {tuple(map(bool, row)) for row in code.matrix} == twin


@pytest.mark.parametrize(("k", "r"), SMALL)
def test_minimal_codes_keep_theorem_3_and_5(k, r):
    found = inspect(minimal_correcting_code(k, r))
    assert found.correct == k
    assert found.code.n_models == (comb(k + r, k) if r > 1 else k + 2)
    # For r = 1 the code without the row of ones detects but does not correct.
    if r == 1:
        bare = inspect(minimal_code(k, r))
        assert bare.detect == k
        assert bare.correct < k


@pytest.mark.parametrize("n", range(3, 19))
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("correct", [False, True])
def test_duplicated_codes_keep_their_promise_everywhere(n, k, correct):
    for r in range(1, n - k + 1):
        code = duplicated_code(n, k, r, correct)
        assert code.n_users == n
        assert code.row_weight >= r
        table = enumerate_patterns(code, k)
        assert (find_correction_break if correct else find_detection_break)(table) is None


@pytest.mark.parametrize(("k", "r", "n", "models"), [(1, 11, 16, 4), (2, 4, 16, 4), (2, 3, 7, 10), (2, 9, 13, 55)])
def test_cases_in_which_the_printed_corollary_asks_for_too_many_columns(k, r, n, models):
    p = (n - r) // k
    printed = p * (k + -(-r // p))
    code = duplicated_code(n, k, r)
    assert code.row_weight >= r
    assert code.n_models == models
    if (k, r, n) != (2, 9, 13):
        assert printed > n


def test_impossible_requests_are_refused_with_the_reason():
    with pytest.raises(InputError, match=r"users 5 < attackers 2 \+ row weight 4"):
        duplicated_code(5, 2, 4)
    with pytest.raises(InputError, match="at least 1"):
        minimal_code(0, 3)


def test_a_row_of_ones_makes_a_bdc_a_bcc():
    code = add_row_of_ones(minimal_code(3, 1))
    assert inspect(code).correct == 3
    assert code.matrix[0].all()


@pytest.mark.parametrize(("k", "r", "n", "margins"), [(4, 4, 12, (7, 5, 3, 1)), (2, 6, 12, (2, 1)), (2, 4, 8, (2, 1))])
def test_margins_explain_what_the_paper_measured(k, r, n, margins):
    found = inspect(duplicated_code(n, k, r))
    assert found.margin == margins
    assert np.all(np.array(found.margin_track) == 0)  # duplicated columns cannot be told apart


def test_a_minimal_code_too_large_to_build_is_refused_with_its_size():
    with pytest.raises(TooLargeError, match="183,579,396 models"):
        minimal_code(25, 10)
