"""Columns of several ranks, whose rows follow one another rank by rank.

Where each rank begins is told by ``first``: the first row of each rank, then the number of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.trace.lookup import joined_column

Ints = npt.NDArray[np.int64]


def firsts(lengths: Sequence[int] | Ints) -> Ints:
    """Returns ``first`` of ranks with these numbers of rows."""
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def joined(tables: Sequence[Any], name: str) -> npt.NDArray[Any]:
    """Joins a column of the tables of ranks."""
    return joined_column(getattr(table, name) for table in tables)


def accumulated(ufunc: np.ufunc, values: npt.NDArray[Any], first: Ints) -> npt.NDArray[Any]:
    """Returns ``ufunc.accumulate`` of the rows of each rank."""
    count = np.diff(first)
    if not len(values):
        return values
    if (count == count[0]).all():
        whole: npt.NDArray[Any] = ufunc.accumulate(values.reshape(len(count), -1), axis=1)
        return whole.reshape(-1)
    inside = np.arange(int(count.max())) < count[:, np.newaxis]
    padded = np.zeros(inside.shape, dtype=values.dtype)
    padded[inside] = values
    result: npt.NDArray[Any] = ufunc.accumulate(padded, axis=1)[inside]
    return result
