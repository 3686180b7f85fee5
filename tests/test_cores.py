import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeward import _cores
from codeward._cores import LEAST_ROWS, share_rows


@given(st.integers(0, 300), st.integers(1, 9))
def test_every_row_is_worked_on_once_whatever_the_cores(n_rows, cores):
    seen = np.zeros(n_rows, dtype=int)

    def work(rows):
        seen[rows] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cores, "count_cores", lambda: cores)
        share_rows(n_rows, work)
    assert (seen == 1).all()


def test_few_rows_stay_in_this_thread_and_many_are_shared(monkeypatch):
    monkeypatch.setattr(_cores, "count_cores", lambda: 2)
    met = set()
    both = threading.Barrier(2, timeout=20)
    share_rows(2 * LEAST_ROWS - 1, lambda rows: met.add(threading.current_thread()))
    assert met == {threading.current_thread()}
    share_rows(2 * LEAST_ROWS, lambda rows: both.wait())  # passes only where two are at work together


def test_an_error_in_a_part_is_raised(monkeypatch):
    monkeypatch.setattr(_cores, "count_cores", lambda: 2)

    def work(rows):
        if rows.start:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        share_rows(100, work)
