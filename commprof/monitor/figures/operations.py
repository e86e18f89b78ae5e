"""Latency, size and bandwidth of the operations of a job in full mode, as its steps come."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from commprof.analysis.collectives.calls import Calls, calls_of
from commprof.analysis.collectives.traffic import bus_factor
from commprof.monitor.figures.steps import NewSteps
from commprof.monitor.state import Bandwidth, OperationState
from commprof.predict.fit.cost_model import CostCurve
from commprof.predict.replay.algorithms import canonical
from commprof.trace.schema import OPS
from commprof.units import NS_PER_S, ns_to_s

#: Latencies kept per rank and operation, and transfers per operation, for recent figures.
_MOST_RECENT: Final = 2048


@dataclass
class _Operation:
    """One kind of operation on one rank."""

    calls: int = 0
    bytes: int = 0
    timed: int = 0
    timed_ns: float = 0.0
    recent_ns: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_RECENT))


class RecentOperations:
    """Recent operations of all followed ranks."""

    def __init__(self, curves: dict[str, CostCurve] | None = None) -> None:
        """``curves`` are those of a machine profile's link, by operation; None without one."""
        self._curves = curves or {}
        self._found: dict[tuple[int, str], _Operation] = {}
        #: By operation: bytes on the bus, time of the transfer, and the profile's time, in ns.
        self._transfers: dict[str, deque[tuple[float, float, float]]] = {}

    def add(self, new: NewSteps) -> None:
        """Counts the calls issued in these steps."""
        world = new.world
        calls = calls_of(
            world.matching,
            world.traces,
            world.tables,
            new.numbers,
            world.clocks_shared,
        )
        for op in np.unique(calls.op).tolist():
            name = OPS[op] if op < len(OPS) else OPS[0]
            of_op = calls.rows(calls.op == op)
            for rank in np.unique(of_op.rank).tolist():
                self._count(rank, name, of_op.rows(of_op.rank == rank))
            self._transfer(name, of_op)

    def of_rank(self, rank: int) -> dict[str, OperationState]:
        """By operation."""
        return {op: _state(found) for (of, op), found in self._found.items() if of == rank}

    def bandwidth(self) -> dict[str, Bandwidth]:
        """By operation; those whose transfers were not seen on all of their ranks are not there."""
        result = {}
        for op, transfers in self._transfers.items():
            moved, took_ns, expected_ns = np.sum(transfers, axis=0).tolist()
            result[op] = Bandwidth(moved / took_ns * NS_PER_S, expected_ns / took_ns)
        return result

    def _count(self, rank: int, op: str, calls: Calls) -> None:
        found = self._found.setdefault((rank, op), _Operation())
        timed = calls.duration_ns[~np.isnan(calls.duration_ns)]
        found.calls += len(calls)
        found.bytes += int(calls.size_bytes.sum())
        found.timed += len(timed)
        found.timed_ns += float(timed.sum())
        found.recent_ns.extend(timed[-_MOST_RECENT:].tolist())

    def _transfer(self, op: str, calls: Calls) -> None:
        """Counts transfers of one rank: a transfer is the same on all."""
        first = calls.rows(calls.rank == calls.rank.min())
        known = first.rows((first.transfer_ns > 0) & (first.size_bytes > 0))
        kept = self._transfers.setdefault(op, deque(maxlen=_MOST_RECENT))
        rows = zip(
            known.size_bytes.tolist(),
            known.group_size.tolist(),
            known.transfer_ns.tolist(),
            strict=True,
        )
        for size, ranks, took_ns in rows:
            factor = bus_factor(op, ranks)
            if not math.isnan(factor):
                kept.append((size * factor, took_ns, self._expected_ns(op, size, ranks)))
        if not kept:
            del self._transfers[op]

    def _expected_ns(self, op: str, size_bytes: int, ranks: int) -> float:
        """By the profile; NaN where it has no curve for the operation."""
        curve = self._curves.get(canonical(op))
        return math.nan if curve is None else curve.time_s(size_bytes, ranks) * NS_PER_S


def _state(found: _Operation) -> OperationState:
    recent = np.array(found.recent_ns)
    mean, p50, p99 = math.nan, math.nan, math.nan
    if len(recent):
        mean = float(recent.mean())
        p50, p99 = np.percentile(recent, [50, 99]).tolist()
    return OperationState(
        calls=found.calls,
        bytes=found.bytes,
        timed_calls=found.timed,
        timed_s=ns_to_s(found.timed_ns),
        recent_mean_s=ns_to_s(mean),
        recent_p50_s=ns_to_s(p50),
        recent_p99_s=ns_to_s(p99),
    )
