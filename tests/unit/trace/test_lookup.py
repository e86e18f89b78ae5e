"""Rows of a table by operation, and by time."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.trace.lookup import distinct_rows, row_containing, row_of


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


@pytest.mark.parametrize("most", [1, 3, 1000, 2**40, 2**62])
@pytest.mark.parametrize("columns", [1, 3, 5])
def test_distinct_rows_are_numbered_as_numpy_numbers_them(most: int, columns: int) -> None:
    random = np.random.default_rng([columns, most % 1000])
    for rows in (1, 2, 50, 3000):
        table = random.integers(-most, most, (rows, columns), endpoint=True)
        table = table[random.integers(0, rows, rows)]  # some rows are equal
        number, first = distinct_rows(*table.T)
        distinct, expected_first, expected = np.unique(
            table, axis=0, return_index=True, return_inverse=True
        )
        assert number.tolist() == expected.reshape(-1).tolist()
        assert first.tolist() == expected_first.tolist()
        np.testing.assert_array_equal(table[first], distinct)


def test_no_rows_have_no_number() -> None:
    number, first = distinct_rows(np.zeros(0, int), np.zeros(0, int))
    assert len(number) == len(first) == 0
