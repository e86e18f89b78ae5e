"""For how long collectives were under way, however many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints, Steps
from commprof.trace.reader import Trace
from commprof.trace.schema import op_name
from commprof.units import ns_to_ms

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TimeInFlight:
    """One operation over the measured steps."""

    op: str
    #: Time in which a call of it was in flight; mean per step, over all ranks.
    in_flight_ms: float


def times_in_flight(
    traces: Sequence[Trace], tables: Sequence[Collectives], measured_steps: Ints
) -> tuple[TimeInFlight, ...]:
    """Of every operation of which a completion is known, in order of their codes."""
    if len(measured_steps) == 0:
        return ()
    total_ns: dict[int, float] = {}
    for trace, table in zip(traces, tables, strict=True):
        steps = columns.steps(trace)
        chosen = np.isin(steps.index, measured_steps)
        for op in np.unique(table.op[table.end_ns > table.issue_ns]).tolist():
            spent = in_flight_ns(steps, table, table.op == op)
            total_ns[op] = total_ns.get(op, 0.0) + float(spent[chosen].sum())
    rank_steps = len(traces) * len(measured_steps)
    return tuple(
        TimeInFlight(op_name(op), ns_to_ms(ns) / rank_steps) for op, ns in sorted(total_ns.items())
    )


def in_flight_ns(
    steps: Steps, table: Collectives, chosen: npt.NDArray[np.bool_] | None = None
) -> Floats:
    """Per step: length of the union of [issue, completion] over all collectives, or the chosen."""
    ended = table.end_ns > table.issue_ns
    if chosen is not None:
        ended &= chosen
    order = np.argsort(table.issue_ns[ended], kind="stable")
    begin, end = table.issue_ns[ended][order], table.end_ns[ended][order]
    if len(begin) == 0:
        return np.zeros(len(steps))
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], begin[1:] > reach[:-1]))
    first = begin[opens]
    last = reach[np.concatenate((np.flatnonzero(opens)[1:] - 1, [len(reach) - 1]))]
    covered = np.concatenate(([0], np.cumsum(last - first)))

    def covered_until(time_ns: Ints) -> Ints:
        row = np.searchsorted(first, time_ns, side="right") - 1
        inside = np.where(row >= 0, np.minimum(time_ns, last[row]) - first[row], 0)
        return np.where(row >= 0, covered[row] + inside, 0)

    return (covered_until(steps.end_ns) - covered_until(steps.begin_ns)).astype(np.float64)
