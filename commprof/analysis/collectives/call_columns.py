"""Columns of tables that have a row per step, call or wait of a rank.

Unknown numbers are NaN, or -1 in columns of integers. Text is given as indices into a list of
names, or -1 if unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from commprof.analysis.collectives.calls import Calls, Floats, calls_of, step_at
from commprof.analysis.collectives.kinds import reduces
from commprof.analysis.collectives.traffic import bus_factor
from commprof.analysis.evidence import Evidence, Figure
from commprof.analysis.step.exposure import CAUSES
from commprof.analysis.step.measured import MeasuredWorld
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import distinct_rows, rows_of
from commprof.trace.operations import family
from commprof.trace.reader import TORCH_PROFILER, Trace
from commprof.trace.schema import PHASES, REDUCE_OPS, op_name
from commprof.units import NS_PER_MS


class Names(NamedTuple):
    """A column of text."""

    #: Index into ``names``; -1 if unknown.
    code: npt.NDArray[np.integer[Any]]
    names: tuple[str, ...]


Column: TypeAlias = "npt.NDArray[Any] | Names"
Columns: TypeAlias = "dict[str, Column]"


def step_times(seen: MeasuredWorld, row: int) -> tuple[Ints, Ints]:
    """Returns the begin and the end of each measured step of one rank in ns.

    ``row`` is the index of the rank in ``seen.ranks``. Times are on rank 0's clock, or on the
    rank's own clock if clocks cannot be compared.
    """
    steps = columns.steps(seen.traces[row])
    chosen = np.isin(steps.index, seen.measured[row].step)
    return steps.begin_ns[chosen], steps.end_ns[chosen]


def wait_columns(seen: MeasuredWorld, row: int, evidence: Evidence) -> Columns:
    """Returns one rank's waits per step, causing rank and cause.

    The cause is an activity of the causing rank. Waits that no rank of the job caused are left out.
    The columns are empty if ``evidence`` does not support them.
    """
    part = seen.measured[row]
    rows = slice(None) if evidence.supports(Figure.SPLIT) else slice(0)
    return {
        "step": part.step[part.caused.step[rows]],
        "origin_rank": part.caused.rank[rows],
        "cause": Names(part.caused.cause[rows], tuple(CAUSES)),
        "wait_ms": part.caused.wait_ns[rows] / NS_PER_MS,
    }


def call_columns(seen: MeasuredWorld, evidence: Evidence) -> Iterator[Columns]:
    """Yields the calls of each rank in the measured steps, in order of issue.

    Figures that ``evidence`` does not support are NaN.
    """
    measured = seen.measured.step
    calls = calls_of(seen.matching, seen.traces, seen.tables, measured, seen.clocks_shared)
    numbers = seen.matching.split(seen.matching.member)
    groups = tuple(group.name for group in seen.matching.groups)
    at = 0
    for trace, table, number in zip(seen.traces, seen.tables, numbers, strict=True):
        step = step_at(columns.steps(trace), measured, table.issue_ns)
        inside = step >= 0
        count = int(inside.sum())
        of_rank = rows_of(calls, slice(at, at + count))
        at += count
        yield {
            "step": step[inside],
            "collective": number[inside],
            "issue_ns": table.issue_ns[inside],
            **_kinds(of_rank, groups, trace),
            **_times(of_rank, evidence),
        }


def _kinds(calls: Calls, groups: Sequence[str], trace: Trace) -> Columns:
    dtypes: Sequence[str] = trace.metadata["dtypes"]
    is_barrier = _by_code(calls.op, lambda code: family(op_name(code)) == "barrier")
    is_named = _by_code(calls.dtype, lambda code: code < len(dtypes) and dtypes[code] != "")
    # If torch's profiler did not record the data type of a call, it did not record the size either.
    unsaid = ~is_named & ~is_barrier & (trace.metadata["capture"] == TORCH_PROFILER)
    has_size = calls.size_bytes > 0
    return {
        "op": _named(calls.op, op_name),
        "group": _named(calls.group, lambda code: groups[code] if code >= 0 else ""),
        "group_size": np.where(calls.group_size > 0, calls.group_size, -1),
        "dtype": _named(np.where(has_size & is_named, calls.dtype, -1), _one_of(dtypes)),
        "reduce_op": _named(np.where(reduces(calls.op), calls.reduce_op, -1), _one_of(REDUCE_OPS)),
        "size_bytes": np.where(has_size | ~unsaid, calls.size_bytes, -1),
        "phase": _named(calls.phase, _one_of(PHASES)),
        "failed": calls.failed,
    }


def _times(calls: Calls, evidence: Evidence) -> Columns:
    timed, exposed = (evidence.supports(figure) for figure in (Figure.CALLS, Figure.EXPOSED))
    times, algbw = calls.times, calls.algbw_gb_per_s
    of_calls: dict[str, Floats] = {
        "duration_ms": times.duration_ns / NS_PER_MS,
        "queue_ms": times.queue_ns / NS_PER_MS,
        "wait_ms": times.wait_ns / NS_PER_MS,
        "transfer_ms": times.transfer_ns / NS_PER_MS,
        "group_transfer_ms": times.common_transfer_ns / NS_PER_MS,
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": algbw * _bus_factors(calls),
    }
    unknown = np.full(len(calls), np.nan)
    return {
        **{name: values if timed else unknown for name, values in of_calls.items()},
        "exposed_ms": times.exposed_ns / NS_PER_MS if timed and exposed else unknown,
    }


def _bus_factors(calls: Calls) -> Floats:
    kind, first = distinct_rows(calls.op, calls.group_size)
    factors = [bus_factor(op_name(int(calls.op[row])), int(calls.group_size[row])) for row in first]
    return np.array(factors, dtype=np.float64)[kind]


def _one_of(names: Sequence[str]) -> Callable[[int], str]:
    return lambda code: names[code] if 0 <= code < len(names) else ""


def _named(codes: Ints, name: Callable[[int], str]) -> Names:
    """Returns a column of names, one per code; a code with an empty name is unknown."""
    distinct, row = np.unique(codes, return_inverse=True)
    names = tuple(map(name, distinct.tolist()))
    known = np.array([text != "" for text in names], dtype=np.bool_)
    row = row.reshape(-1)
    return Names(np.where(known[row], row, -1) if len(row) else row, names)


def _by_code(codes: Ints, holds: Callable[[int], bool]) -> npt.NDArray[np.bool_]:
    distinct, row = np.unique(codes, return_inverse=True)
    result: npt.NDArray[np.bool_] = np.array(list(map(holds, distinct.tolist())), dtype=np.bool_)
    return result[row.reshape(-1)]
