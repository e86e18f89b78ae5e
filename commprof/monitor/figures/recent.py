"""Counts the steps and operations of a job that records in full mode."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.interfaces import Host, host_of_each
from commprof.analysis.collectives.calls import Calls, calls_of
from commprof.analysis.collectives.traffic import bus_factor
from commprof.analysis.late.stragglers import LateRank, late_rank
from commprof.analysis.step.breakdown import mean_of_known
from commprof.analysis.step.exposure import NO_CORE
from commprof.analysis.step.measured import MeasuredWorld
from commprof.monitor.figures.steps import NewSteps, wall_ns
from commprof.monitor.state import RECENT_STEPS, Bandwidth, Late, OperationState, StepTimes
from commprof.satellites import ExpectedTime
from commprof.trace.columns import Ints
from commprof.trace.lookup import rows_of
from commprof.trace.schema import OPS, POINT_TO_POINT
from commprof.units import NS_PER_S, ns_to_s, us_to_ns

Floats = npt.NDArray[np.float64]

#: Parts of a step, in the order of the fields of ``StepTimes`` after ``steps``.
_PARTS: Final = (
    *("wall", "data", "forward", "backward", "optimizer", "other"),
    *("exposed", "wait", "transfer", "unsplit", "hidden"),
)
_EXPOSED, _WAIT, _TRANSFER = (_PARTS.index(name) for name in ("exposed", "wait", "transfer"))
_FEWEST_FOR_LATE: Final = 10


class RecentSteps:
    """Step times of a fixed set of ranks: totals and recent means."""

    def __init__(self, world_size: int) -> None:
        """Starts with no steps; ``world_size`` is the number of ranks of the job."""
        self._world_size = world_size
        self._ranks: tuple[int, ...] = ()
        self._steps = 0
        #: Total time in ns as ``[rank, part]``.
        self._total: Floats = np.zeros((0, len(_PARTS)))
        #: Total time in ns that other ranks waited for each rank.
        self._waited_for: Floats = np.zeros(world_size)
        #: Times of each recent step in ns: parts ``[rank, part]``, own work ``[rank, origin]``,
        #: caused waiting ``[rank, cause]``, and duration.
        self._recent: deque[tuple[Floats, Floats, Floats, float]] = deque(maxlen=RECENT_STEPS)
        #: For each recent step, pairs of ranks as ``waiting rank * world_size + awaited rank``, and
        #: the waiting time of each pair in ns.
        self._pairs: deque[tuple[Ints, Floats]] = deque(maxlen=RECENT_STEPS)
        self._clock_error_ns = 0.0
        self._late: LateRank | None = None

    def add(self, new: NewSteps) -> None:
        """Adds new steps."""
        if not self._ranks:
            self._ranks = new.ranks
            self._total = np.zeros((len(new.ranks), len(_PARTS)))
        parts = np.stack([new.parts.table(name) for name in _PARTS], axis=1)
        work = new.parts.column(lambda part: part.by_origin_ns)
        caused = new.parts.caused_in_all(np.ones(len(new.numbers), dtype=np.bool_))
        self._steps += len(new.numbers)
        self._total += np.nan_to_num(parts).sum(axis=2)
        self._waited_for += caused.sum(axis=(0, 2))
        rows = range(len(new.numbers))[-RECENT_STEPS:]
        lengths = wall_ns(new)
        for row in rows:
            step = parts[:, :, row], work[:, :, row], caused[row], float(lengths[row])
            self._recent.append(step)
            self._pairs.append(self._waiting_pairs(new, row))
        self._clock_error_ns = us_to_ns(new.world.clock_error_us)
        self._find_late()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks whose steps are counted; empty before the first step."""
        return self._ranks

    def waited_for_s(self, rank: int) -> float:
        """Total time that the other ranks waited for a rank; NaN if not known."""
        is_known = not math.isnan(self._clock_error_ns) and len(self._ranks) == self._world_size
        return ns_to_s(float(self._waited_for[rank])) if is_known else math.nan

    def total(self, rank: int) -> StepTimes | None:
        """Returns the sums of a rank's times over all steps; None if the rank has no steps."""
        if rank not in self._ranks:
            return None
        return _times(self._steps, self._total[self._ranks.index(rank)])

    def recent(self, rank: int) -> StepTimes | None:
        """Returns the means of a rank's times over recent steps; None if the rank has no steps."""
        if rank not in self._ranks:
            return None
        row = self._ranks.index(rank)
        steps = np.stack([parts[row] for parts, _, _, _ in self._recent])
        means = np.nan_to_num(steps).mean(axis=0)
        for part in (_WAIT, _TRANSFER):
            means[part] = mean_of_known(steps[:, part], steps[:, _EXPOSED])
        return _times(len(self._recent), means)

    @property
    def late(self) -> Late | None:
        """The rank that other ranks wait for, by the report's rules; None if no rank is late."""
        found = self._late
        if found is None:
            return None
        return Late(found.rank, ns_to_s(found.wait_ns), found.phase or "", found.waiting_ranks)

    def _waiting_pairs(self, new: NewSteps, row: int) -> tuple[Ints, Floats]:
        waited = np.zeros((self._world_size, self._world_size))
        for rank, part in zip(new.ranks, new.parts, strict=True):
            waited[rank] = part.caused[row : row + 1].by_rank_ns(without=NO_CORE)
        pair = np.flatnonzero(waited)
        return pair, waited.ravel()[pair]

    def _find_late(self) -> None:
        self._late = None
        if len(self._recent) < _FEWEST_FOR_LATE or len(self._ranks) != self._world_size:
            return
        _, works, caused, lengths = zip(*self._recent, strict=True)
        pairs, waited = zip(*self._pairs, strict=True)
        by_waiting = np.zeros((self._world_size, self._world_size))
        np.add.at(by_waiting.reshape(-1), np.concatenate(pairs), np.concatenate(waited))
        self._late = late_rank(
            np.stack(caused),
            by_waiting,
            np.stack(works, axis=2),
            self._ranks,
            float(np.median(lengths)),
            self._clock_error_ns,
        )


def _times(steps: int, values_ns: Sequence[float] | Floats) -> StepTimes:
    return StepTimes(steps, *(ns_to_s(float(value)) for value in values_ns))


#: Largest number of latencies kept for each rank and operation, and of transfers kept for each
#: operation.
_MOST_RECENT: Final = 2048


@dataclass
class _Operation:
    calls: int = 0
    bytes: int = 0
    timed: int = 0
    timed_ns: float = 0.0
    recent_ns: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_RECENT))


class RecentOperations:
    """Counts the calls of all followed ranks, by operation."""

    def __init__(self, expected_s: ExpectedTime | None) -> None:
        """Starts empty.

        ``expected_s`` predicts a call's time from a machine profile; None without a profile.
        """
        self._expected_s = expected_s
        self._found: dict[tuple[int, str], _Operation] = {}
        #: Calls of each operation: bytes on the bus, transfer time (ns), predicted time (ns).
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
        inside = _groups_on_one_host(world) if self._expected_s is not None else set()
        for op in np.unique(calls.op).tolist():
            name = OPS[op] if op < len(OPS) else OPS[0]
            of_op = rows_of(calls, calls.op == op)
            for rank in np.unique(of_op.rank).tolist():
                self._count(rank, name, rows_of(of_op, of_op.rank == rank))
            self._transfer(name, of_op, inside)

    def of_rank(self, rank: int) -> dict[str, OperationState]:
        """Returns the figures of one rank, by operation."""
        return {op: _state(operation) for (of, op), operation in self._found.items() if of == rank}

    def bandwidth(self) -> dict[str, Bandwidth]:
        """Returns the bandwidth of recent calls, by operation."""
        result = {}
        for op, transfers in self._transfers.items():
            moved, took_ns, expected_ns = np.array(transfers).T
            is_known = ~np.isnan(expected_ns)
            of_profile = (
                expected_ns[is_known].sum() / took_ns[is_known].sum()
                if is_known.any()
                else math.nan
            )
            result[op] = Bandwidth(float(moved.sum() / took_ns.sum()) * NS_PER_S, float(of_profile))
        return result

    def _count(self, rank: int, op: str, calls: Calls) -> None:
        operation = self._found.setdefault((rank, op), _Operation())
        timed = calls.times.duration_ns[~np.isnan(calls.times.duration_ns)]
        operation.calls += len(calls)
        operation.bytes += int(calls.size_bytes.sum())
        operation.timed += len(timed)
        operation.timed_ns += float(timed.sum())
        operation.recent_ns.extend(timed[-_MOST_RECENT:].tolist())

    def _transfer(self, op: str, calls: Calls, inside: set[int]) -> None:
        """Adds the transfer of each call once, although several ranks recorded the call.

        ``inside`` holds the indices of the groups on one host.
        """
        once = calls if OPS.index(op) in POINT_TO_POINT else rows_of(calls, _by_lowest_rank(calls))
        timed = rows_of(once, (once.times.common_transfer_ns > 0) & (once.size_bytes > 0))
        transfers = self._transfers.setdefault(op, deque(maxlen=_MOST_RECENT))
        rows = zip(
            timed.group.tolist(),
            timed.size_bytes.tolist(),
            timed.group_size.tolist(),
            timed.times.common_transfer_ns.tolist(),
            strict=True,
        )
        for group, size, ranks, took_ns in rows:
            factor = bus_factor(op, ranks)
            if not math.isnan(factor):
                expected_ns = self._expected_ns(op, size, ranks, group in inside)
                transfers.append((size * factor, took_ns, expected_ns))
        if not transfers:
            del self._transfers[op]

    def _expected_ns(self, op: str, size_bytes: int, ranks: int, same_host: bool) -> float:
        if self._expected_s is None:
            return math.nan
        return self._expected_s(op, size_bytes, ranks, same_host) * NS_PER_S


def _groups_on_one_host(world: MeasuredWorld) -> set[int]:
    matching = world.matching
    host = dict(zip(world.ranks, host_of_each(world.traces), strict=True))
    hosts: dict[int, list[Host | None]] = {}
    for group, rank in set(zip(matching.group.tolist(), matching.rank.tolist(), strict=True)):
        hosts.setdefault(group, []).append(host[rank])
    return {
        number
        for number, group in enumerate(matching.groups)
        if len(ranks := hosts.get(number, [])) == group.size
        and len(set(ranks)) == 1
        and None not in ranks
    }


def _by_lowest_rank(calls: Calls) -> npt.NDArray[np.bool_]:
    _, of_call = np.unique(calls.group, return_inverse=True)
    lowest = np.full(of_call.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, of_call, calls.rank)
    chosen: npt.NDArray[np.bool_] = calls.rank == lowest[of_call]
    return chosen


def _state(operation: _Operation) -> OperationState:
    recent = np.array(operation.recent_ns)
    mean, p50, p99 = math.nan, math.nan, math.nan
    if len(recent):
        mean = float(recent.mean())
        p50, p99 = np.percentile(recent, [50, 99]).tolist()
    return OperationState(
        calls=operation.calls,
        bytes=operation.bytes,
        timed_calls=operation.timed,
        timed_s=ns_to_s(operation.timed_ns),
        recent_mean_s=ns_to_s(mean),
        recent_p50_s=ns_to_s(p50),
        recent_p99_s=ns_to_s(p99),
    )
