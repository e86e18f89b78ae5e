"""Rows of a table by operation, and by time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def row_of(op_id: Ints, keys: Ints) -> Ints:
    """Returns for each operation its first row in ``keys``; -1 if it has none."""
    if len(keys) == 0 or len(op_id) == 0:
        return np.full(len(op_id), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys[order], op_id), len(keys) - 1)]
    return np.where(keys[at] == op_id, at, -1).astype(np.int64)


def look_up(op_id: Ints, keys: Ints, values: Ints) -> Ints:
    """Returns for each operation the value at its first row in ``keys``; 0 if it has none."""
    row = row_of(op_id, keys)
    result = np.zeros(len(op_id), dtype=np.int64)
    result[row >= 0] = values[row[row >= 0]]
    return result


def row_containing(begin_ns: Ints, end_ns: Ints, time_ns: Ints) -> Ints:
    """Returns the row of the interval that contains each time; -1 outside of all.

    Args:
        begin_ns: begins of intervals that do not overlap, in ascending order.
        end_ns: ends of the intervals; an interval does not contain its end.
        time_ns: times in any order.
    """
    row = np.searchsorted(begin_ns, time_ns, side="right") - 1
    inside = row >= 0
    inside[inside] = time_ns[inside] < end_ns[row[inside]]
    return np.where(inside, row, -1).astype(np.int64)
