"""What a case of ``coverage.py`` is: how to issue, and the calls that must then be in the trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: Ranks.
N = 2
#: Bytes of a float; of a whole number.
F, L = 4, 8


class Row(NamedTuple):
    """One call of one rank."""

    op: str
    bytes_in: int
    bytes_out: int
    dtype: str = "Float"
    reduce_op: str = ""


Prepared = tuple[Callable[[], object], list[Row]]
#: Given the rank, what to issue and what to expect.
Case = Callable[[int], Prepared]


def reduced(size: int, reduce_op: str = "SUM", dtype: str = "Float") -> Row:
    """One all_reduce."""
    return Row("all_reduce", size, size, dtype, reduce_op)
