from __future__ import annotations

import numpy as np
import pytest

from commprof.trace.lookup import (
    distinct,
    distinct_rows,
    is_in,
    joined_column,
    look_up,
    numbered,
    repeated,
    row_containing,
    row_of,
    rows_of_one_value_in_python,
)


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
        table = table[random.integers(0, rows, rows)]
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


@pytest.mark.parametrize("ascending", [[], [3], [1, 3, 4, 9], [*range(12)]])
def test_values_are_found_as_numpy_finds_them(ascending: list[int]) -> None:
    values, chosen = np.array([4, 0, 3, 3, 10, -1]), np.array(ascending, int)
    assert is_in(values, chosen).tolist() == np.isin(values, chosen).tolist()
    assert is_in(values[:0], chosen).tolist() == []


@pytest.mark.parametrize("values", [[], [7], [7, 7, 7], [7, 2, 7], [3, 1, 2, 1]])
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    column = np.array(values, int)
    different, row = np.unique(column, return_inverse=True)
    assert distinct(column).tolist() == different.tolist()
    assert [part.tolist() for part in numbered(column)] == [different.tolist(), row.tolist()]


def test_an_operation_without_a_row_has_the_value_0() -> None:
    op_id, keys, values = np.array([5, 1, 4]), np.array([4, 5, 5]), np.array([40, 50, 51])
    assert look_up(op_id, keys, values).tolist() == [50, 0, 40]
    assert look_up(op_id, keys[:0], values[:0]).tolist() == [0, 0, 0]


_ONE, _OTHER = np.int64(7), np.int64(-1)
_NAN = np.float64("nan")


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ([repeated(_ONE, 3), repeated(_ONE, 2)], 5),
        ([np.empty(0, np.int64), repeated(_ONE, 3), repeated(_ONE, 0)], 3),
        ([repeated(_ONE, 3), repeated(_OTHER, 2)], -1),
        ([repeated(_ONE, 3), np.array([7, 7])], -1),
        ([np.array([7, 7])], -1),
        ([np.empty(0, np.int64)], -1),
        ([repeated(_NAN, 4)], 4),
        ([repeated(_NAN, 4), repeated(_NAN, 1)], 5),
        ([repeated(_ONE, 2), repeated(np.int32(7), 1)], -1),
        ([repeated(np.float64(2), 4), repeated(np.float64(2), 1)], 5),
        ([repeated(np.True_, 2), repeated(np.True_, 1)], 3),
    ],
)
def test_columns_of_one_value_are_joined_as_one_value(columns: list[np.ndarray], rows: int) -> None:
    found = joined_column(iter(columns))
    assert rows_of_one_value_in_python(columns) == rows
    assert (len(found) if len(found) and found.strides == (0,) else -1) == rows
    np.testing.assert_array_equal(found, np.concatenate(columns))
    assert found.dtype == columns[0].dtype
