"""Result rows of nccl-tests and rccl-tests, and the names of the tested operations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from commprof.text import counted

_CELL = re.compile(r"[-+]?(?:\d+\.?(?P<decimals>\d*)|\.\d+)(?:[eE](?P<power>[-+]?\d+))?")
#: Contradictory rows are left out as damaged if they are at most this fraction of all rows.
_DAMAGED = 0.1
#: A bandwidth counts as exact if it is more than this many times its ``half_digit``.
_EXACT = 200
#: busbw / algbw counts as 1 if it differs from 1 by less than this.
_NEAR = 0.02
_BYTES = {"half": 2, "bfloat16": 2, "double": 8, "int64": 8, "uint64": 8, "float": 4, "int": 4}
_ONE_BYTE = re.compile(r"u?int8|char|fp8.*|f8.*")
#: Relative tolerance for the rounding of nccl-tests' own arithmetic.
_ROUNDING = 1e-3
#: Part of the name of an nccl-tests program that does not measure a collective of NCCL.
_NO_COLLECTIVE = "hypercube"
#: c10d's name of an operation, by a part of the program's name. The order matters:
#: "reduce_scatter" must come before "reduce".
_OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}


@dataclass(frozen=True)
class TestedFigure:
    """A number in a result file, with the precision of its digits."""

    value: float
    #: Half a unit of the last digit: the largest rounding error of ``value``.
    half_digit: float


@dataclass(frozen=True)
class TestedSpread:
    """Summary of the times of single iterations: columns ``i_*`` of nccl-tests' option ``-I``."""

    min_us: float
    p99_us: float
    max_us: float
    #: Standard deviation divided by mean.
    cv: float


@dataclass(frozen=True)
class NcclTestsRow:
    """One result of nccl-tests, out of place or in place."""

    size_bytes: int
    count: int
    dtype: str
    #: Name of the reduction; empty if there is none.
    redop: str
    root: int
    placement: str
    #: Mean time of an iteration.
    time_us: float
    #: Number of wrong elements; None if results were not checked. If the file shows only the
    #: largest error, 1 means at least one wrong element.
    wrong: int | None
    #: Times of single iterations, without skipped iterations; empty if the file has none.
    samples_us: tuple[float, ...] = ()
    #: Index of the pass over all sizes, from 0 (option ``-N``, or a repeated run).
    round: int = 0
    #: Half a unit of the last digit of the time in the file.
    half_digit_us: float = 0.0
    #: algbw and busbw in GB/s; None if the file does not have them.
    algbw: TestedFigure | None = None
    busbw: TestedFigure | None = None
    #: Summary of single iterations; None if the file has none.
    spread: TestedSpread | None = None


@dataclass(frozen=True)
class NcclTestsLog:
    """The results of one test on one set of ranks."""

    op: str
    #: Number of ranks in the communicator. If ``NCCL_TESTS_SPLIT`` made several communicators, this
    #: is the number of ranks in the first.
    ranks: int
    #: Number of hosts of these ranks; None if not known.
    hosts: int | None
    rows: tuple[NcclTestsRow, ...]
    #: Remarks on the results, as sentences without a full stop.
    remarks: tuple[str, ...] = ()


def number(cell: object) -> float:
    """Parses a number; NaN if the cell is not a number."""
    try:
        return float(str(cell))
    except ValueError:
        return math.nan


def figure(cell: str) -> TestedFigure | None:
    """Parses a number and the precision of its digits; None if the cell is not a number."""
    match = _CELL.fullmatch(cell)
    if match is None:
        return None
    unit = 10.0 ** (int(match["power"] or 0) - len(match["decimals"] or ""))
    return TestedFigure(float(cell), unit / 2)


def element_bytes(dtype: str) -> int:
    """Returns the number of bytes per element of a type; 0 if the type is unknown."""
    if _ONE_BYTE.fullmatch(dtype):
        return 1
    return _BYTES.get(dtype.replace("int32", "int").replace("uint", "int"), 0)


def operation(program: str, stem: str, columns: Sequence[str]) -> str:
    """Returns the operation, from the program's name or the name of the file.

    Raises:
        ValueError: neither names an operation.
    """
    for text in (program, stem):
        if _NO_COLLECTIVE in text.lower():
            raise ValueError(f"{text} does not measure a collective of NCCL")
        plain = text.lower().replace("-", "_").replace("_", "")
        for name, op in _OPS.items():
            if name.replace("_", "") in plain:
                return op
    if {"redop", "op"} & set(columns) and "root" not in columns:
        raise ValueError(
            "its operation may be all_reduce or reduce_scatter; put the right one into the "
            "file's name"
        )
    raise ValueError("it does not name its operation; put the operation into the file's name")


def operation_of_rows(rows: Sequence[NcclTestsRow]) -> str:
    """Returns the operation that the rows show; empty if several operations fit.

    On three or more ranks, busbw / algbw is above 1 for all_reduce and at most 1 for all other
    operations. Only reduce has a reduction and a root. Of the operations with a root and no
    reduction, only broadcast has equal busbw and algbw and buffers that are not divided into a part
    per rank.
    """
    exact = [
        row.busbw.value / row.algbw.value
        for row in rows
        if row.algbw and row.busbw and row.algbw.value > _EXACT * row.algbw.half_digit
    ]
    reduces, rooted = {bool(row.redop) for row in rows}, {row.root >= 0 for row in rows}
    if not exact or len(reduces) > 1 or len(rooted) > 1:
        return ""
    whole = all(row.size_bytes == row.count * element_bytes(row.dtype) for row in rows)
    has_factor_1 = max(abs(ratio - 1) for ratio in exact) < _NEAR
    if True in reduces and True in rooted:
        return "reduce" if has_factor_1 else ""
    if True in reduces:
        if min(exact) > 1 + _NEAR and whole:
            return "all_reduce"
        return "reduce_scatter" if max(exact) < 1 - _NEAR else ""
    return "broadcast" if True in rooted and has_factor_1 and whole else ""


def about_operation(program: str) -> list[str]:
    """Returns a remark if the program measures alltoallv."""
    if "alltoallv" in program.lower().replace("_", ""):
        return ["alltoallv sends unequal parts; its rows are taken as all_to_all of the same size"]
    return []


def without_contradictions(
    rows: Sequence[NcclTestsRow], ranks: int
) -> tuple[list[NcclTestsRow], list[str]]:
    """Leaves out rows whose algbw is not size / time; also returns remarks on such rows.

    If more than a tenth of the rows are such rows, all rows are kept.
    """
    agreeing = [row for row in rows if _agrees(row, ranks)]
    damaged = len(rows) - len(agreeing)
    if not damaged:
        return list(rows), []
    if damaged > _DAMAGED * len(rows):
        return list(rows), [
            f"algbw of {damaged} of {counted(len(rows), 'result')} is not size / time; the times "
            "are used"
        ]
    are = "is" if damaged == 1 else "are"
    what = f"{counted(damaged, 'result')} whose algbw is not size / time {are} left out"
    return agreeing, [what]


def _agrees(row: NcclTestsRow, ranks: int) -> bool:
    """True if algbw is size / time, within the precision of the digits.

    In nccl-tests before 2.9, algbw of some operations has the factor (n - 1) / n for n ranks.
    """
    if row.algbw is None or not row.algbw.value > row.algbw.half_digit:
        return True
    least, most = (
        (row.algbw.value + sign * row.algbw.half_digit)
        * (row.time_us + sign * row.half_digit_us)
        * 1e3
        / row.size_bytes
        for sign in (-1, 1)
    )
    factors = (1.0, (ranks - 1) / ranks)
    return any(least * (1 - _ROUNDING) <= factor <= most * (1 + _ROUNDING) for factor in factors)


def about_roots(rows: Sequence[NcclTestsRow]) -> list[str]:
    """Returns a remark if the rows have several roots (``-r all``)."""
    roots = len({row.root for row in rows})
    return [f"times of {roots} roots are combined for each size"] if roots > 1 else []


def in_rounds(rows: Iterable[NcclTestsRow], first: int = 0) -> list[NcclTestsRow]:
    """Sets ``round`` of each row, counted from ``first``.

    A new pass begins when the size falls. Two successive rows of the same size belong to one pass,
    because nccl-tests may round two sizes to the same value. If the table has only one size, each
    row is a pass. Rows of different types, reductions, roots or placements are numbered separately.
    """
    rows = list(rows)
    single = len({row.size_bytes for row in rows}) == 1
    latest: dict[tuple[str, str, int, str], tuple[int, int]] = {}
    numbered = []
    for row in rows:
        case = (row.dtype, row.redop, row.root, row.placement)
        size, turn = latest.get(case, (-1, first))
        if row.size_bytes < size or (single and row.size_bytes == size):
            turn += 1
        latest[case] = (row.size_bytes, turn)
        numbered.append(replace(row, round=turn))
    return numbered
