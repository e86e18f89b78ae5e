"""Rows of a table by operation, and by time."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.trace.lookup import row_containing, row_of


@pytest.mark.parametrize(
    ("op_id", "keys", "rows"),
    [([3, 1, 9, 0], [1, 3, 1], [1, 0, -1, -1]), ([3], [], [-1]), ([], [3], [])],
)
def test_row_of_returns_the_first_row_of_an_operation(
    op_id: list[int], keys: list[int], rows: list[int]
) -> None:
    assert row_of(np.array(op_id, int), np.array(keys, int)).tolist() == rows


@pytest.mark.parametrize(
    ("begin", "end", "row"),
    [
        ([10, 20, 40], [20, 30, 50], [-1, 0, 0, 1, -1, 2, -1]),
        ([10], [11], [-1, 0, -1, -1, -1, -1, -1]),
        ([], [], [-1] * 7),
    ],
)
def test_row_containing_treats_intervals_as_half_open(
    begin: list[int], end: list[int], row: list[int]
) -> None:
    times = np.array([9, 10, 19, 20, 30, 49, 50])
    assert row_containing(np.array(begin, int), np.array(end, int), times).tolist() == row
