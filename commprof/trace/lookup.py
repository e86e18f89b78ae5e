"""Finds rows of a table by operation, time or equal values; joins columns of tables."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from commprof.field_groups import FieldGroup

Ints = npt.NDArray[np.int64]
#: A dataclass whose fields are columns of equal length, or a ``FieldGroup`` of such columns.
Table = TypeVar("Table")

#: Largest number of possible keys: a key must fit into a signed integer of 64 bits.
_MOST_KEYS = 2**62
#: If there are at most this many possible keys per row, keys are counted in a table instead of
#: sorted.
_DENSE = 4


def among(codes: npt.NDArray[np.integer[Any]], *chosen: int) -> npt.NDArray[np.bool_]:
    """Returns a mask of the rows whose code is chosen; a code is one byte.

    ``np.isin`` takes ten times as long for the columns of one rank.
    """
    return _mask(chosen)[codes]


@functools.cache
def _mask(chosen: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(256, dtype=np.bool_)
    mask[list(chosen)] = True
    return mask


def is_in(values: Ints, ascending: Ints) -> npt.NDArray[np.bool_]:
    """Returns a mask of the values that are in ``ascending``, which is sorted.

    ``np.isin`` takes several times as long for the steps of one rank.
    """
    if len(ascending) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    row = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    mask: npt.NDArray[np.bool_] = ascending[row] == values
    return mask


def distinct(values: Ints) -> Ints:
    """Returns the distinct values in ascending order."""
    return values[:1] if _are_equal(values) else np.unique(values)


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """Returns the distinct values in ascending order, and the row there of each value."""
    if _are_equal(values):
        return values[:1], np.zeros(len(values), dtype=np.int64)
    different, row = np.unique(values, return_inverse=True)
    return different, row.reshape(-1)


def _are_equal(values: Ints) -> bool:
    return len(values) > 0 and bool(values[0] == values[-1]) and bool((values == values[0]).all())


def row_of(op_id: Ints, keys: Ints) -> Ints:
    """Returns the first row in ``keys`` of each operation; -1 if there is none."""
    if len(keys) == 0 or len(op_id) == 0:
        return np.full(len(op_id), -1, dtype=np.int64)
    if len(keys) == len(op_id) and (keys == op_id).all() and (keys[1:] > keys[:-1]).all():
        return np.arange(len(keys))  # the usual case: operations that ended in the order of issue
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys[order], op_id), len(keys) - 1)]
    return np.where(keys[at] == op_id, at, -1).astype(np.int64)


def look_up(op_id: Ints, keys: Ints, values: Ints) -> Ints:
    """Returns the value at the first row in ``keys`` of each operation; 0 if there is none."""
    if len(keys) == 0:
        return np.zeros(len(op_id), dtype=np.int64)
    row = row_of(op_id, keys)
    return np.where(row >= 0, values[row], 0).astype(np.int64, copy=False)


def row_containing(begin_ns: Ints, end_ns: Ints, time_ns: Ints) -> Ints:
    """Returns the row of the interval that contains each time; -1 if no interval does.

    Args:
        begin_ns: begins of intervals that do not overlap, in ascending order.
        end_ns: ends of the intervals; an interval does not contain its end.
        time_ns: times in any order.
    """
    if len(begin_ns) == 0:
        return np.full(len(time_ns), -1, dtype=np.int64)
    row = np.searchsorted(begin_ns, time_ns, side="right") - 1
    inside = (row >= 0) & (time_ns < end_ns[row])
    return np.where(inside, row, -1).astype(np.int64, copy=False)


def repeated(value: np.generic, count: int) -> npt.NDArray[Any]:
    """Returns a read-only column that stores one value for all rows."""
    return np.ndarray((count,), value.dtype, value.tobytes(), strides=(0,))


def one_value(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a read-only copy of a column of equal values; the copy stores only one value."""
    if len(column) == 0:
        return column
    return repeated(column[0], len(column))


def kept_once(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns :func:`one_value` of a column if all of its values are equal, else the column."""
    if len(column) == 0 or column.strides == (0,):
        return column
    if column[0] != column[0] and np.isnan(column).all():
        return one_value(column)
    is_one = column[0] == column[-1] and (column == column[0]).all()
    return one_value(column) if is_one else column


def joined_column(parts: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Joins columns; if all store the same single value, the result stores only this value."""
    some = list(parts)
    rows = _counting()(some)
    if rows >= 0:
        return repeated(next(part[0] for part in some if len(part)), rows)
    return np.concatenate(some)


@functools.cache
def _counting() -> Callable[[list[npt.NDArray[Any]]], int]:
    try:
        from commprof._reading import rows_of_one_value
    except ImportError:  # the module was not built, or is too old
        return rows_of_one_value_in_python
    return rows_of_one_value


def rows_of_one_value_in_python(columns: list[npt.NDArray[Any]]) -> int:
    """Returns the total number of rows of columns that all store the same single value.

    -1 if a column stores a value for each row, if the values differ, or if there are no rows.
    """
    filled = [column for column in columns if len(column)]
    if not filled or any(column.strides != (0,) for column in filled):
        return -1
    values = {(column.dtype, column[0].tobytes()) for column in filled}
    return sum(map(len, filled)) if len(values) == 1 else -1


def map_columns(make: Callable[..., Any], *tables: Table) -> Table:
    """Makes a table from tables of the same class, column by column.

    ``make`` gets one column of every table, and returns this column of the new table. A
    ``FieldGroup`` is handled like a table.
    """
    columns_of = _columns(cast(Hashable, type(tables[0])))
    made = (
        map_columns(make, *parts) if isinstance(parts[0], FieldGroup) else make(*parts)
        for parts in zip(*map(columns_of, tables), strict=True)
    )
    return type(tables[0])(*made)


@functools.cache
def _columns(kind: Hashable) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in fields(cast(Any, kind))]
    if len(names) == 1:
        return lambda table: (getattr(table, names[0]),)
    return operator.attrgetter(*names)


def rows_of(table: Table, rows: Any) -> Table:
    """Returns rows of a table, chosen by a slice (without a copy), a mask or row indices."""
    columns = _columns(cast(Hashable, type(table)))(table)
    return type(table)(
        *[rows_of(one, rows) if isinstance(one, FieldGroup) else one[rows] for one in columns]
    )


def distinct_rows(*columns: npt.NDArray[np.integer[Any]]) -> tuple[Ints, Ints]:
    """Numbers the distinct rows of a table in ascending order.

    ``np.unique(table, axis=0)`` takes some 50 times as long.

    Returns: The number of each row, and the first row with each number.
    """
    size = len(columns[0])
    key, keys = np.zeros(size, dtype=np.int64), 1
    for narrow in columns if size else ():
        if narrow.strides == (0,):
            continue  # one value in all rows
        column: Ints = narrow.astype(np.int64, copy=False)
        low, width = int(column.min()), int(column.max()) - int(column.min()) + 1
        if width > _MOST_KEYS:
            column, width = _numbered(column, width)
            low = 0
        if width * keys > _MOST_KEYS:
            key, keys = _numbered(key, keys)
        if width * keys > _MOST_KEYS:
            column, width = _numbered(column, width)
            low = 0
        if width > 1:
            key = key * width + (column - low)
            keys *= width
    number, count = _numbered(key, keys)
    first = np.empty(count, dtype=np.int64)
    # if an index occurs several times, the last assignment counts
    first[number[::-1]] = np.arange(size)[::-1]
    return number, first


def _numbered(key: Ints, keys: int) -> tuple[Ints, int]:
    """Numbers the distinct keys in ascending order; also returns the number of distinct keys.

    ``keys`` is the number of possible keys. If it is small, keys must be from 0 to ``keys`` - 1.
    """
    if keys > _DENSE * len(key):
        distinct, number = np.unique(key, return_inverse=True)
        return number.reshape(-1).astype(np.int64), len(distinct)
    used = np.bincount(key, minlength=keys) > 0
    numbers = np.cumsum(used) - 1
    return numbers[key], int(used.sum())
