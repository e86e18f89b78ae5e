"""Analyses each step of a running job once, as soon as all ranks have completed the step.

The analysis is the same as the report's (:mod:`commprof.analysis.step.measured`). A step is
analysed only when all its records have arrived: records of different threads arrive up to a flush
interval (0.2 s) apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.step.measured import MeasuredWorld, measured_world
from commprof.analysis.step.rank_parts import RankParts
from commprof.monitor.follow import TraceTail
from commprof.trace import columns, schema
from commprof.trace.columns import Ints, Steps
from commprof.trace.documents import Group
from commprof.trace.found_steps import BACKWARD, first_issues
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import Kind, Phase, Records

#: Two flush intervals. Records that are this much older than a rank's newest record have arrived.
SETTLED_NS = 400_000_000
#: A rank without new records for this long has flushed all of its records.
_IDLE_S = 1.0
_ALL_NS = 2**62
#: Largest number of a rank's records (16 MiB) that are kept until all ranks have completed their
#: step. If there are more, the oldest records are dropped.
_MOST_RECORDS = 1 << 18
_MOST_CLOCKS = 256

_NO_RECORDS: Records = np.empty(0, dtype=schema.RECORD_DTYPE)


@dataclass(frozen=True)
class NewSteps:
    """Steps that all followed ranks completed since the previous ``StepFollower.advance``."""

    ranks: tuple[int, ...]
    parts: RankParts
    #: Traces of these steps. They may also hold earlier and later records.
    world: MeasuredWorld
    #: Indices of the steps, in the traces of ``world``.
    numbers: Ints
    #: Number of the job's steps before these traces. Add it to ``numbers`` to get step indices in
    #: the job.
    before: int


class StepFollower:
    """Collects new records of all ranks and returns the steps that all ranks completed."""

    def __init__(self, world_size: int, settled_ns: int = SETTLED_NS) -> None:
        """Starts without records.

        Args:
            world_size: number of ranks of the job, including ranks that cannot be followed.
            settled_ns: records that are this much older than a rank's newest record count as
                complete.
        """
        self._world_size = world_size
        self._settled_ns = settled_ns
        self._pending: dict[int, _Pending] = {}
        #: Number of the last step returned; -1 before the first.
        self._done = -1
        #: Number of the job's steps before the pending records.
        self._base = 0
        #: Number of records dropped because a rank was too far ahead of another rank.
        self.left_out = 0

    @property
    def last_step(self) -> int:
        """Number of the last step returned; -1 before the first."""
        return self._done

    def add(self, rank: int, records: Records) -> None:
        """Adds the rank's new records, as ``TraceTail.poll`` returned them."""
        self._pending.setdefault(rank, _Pending()).add(records)

    def advance(self, tails: Mapping[int, TraceTail]) -> NewSteps | None:
        """Returns the steps that all ranks completed since the last call; None without steps."""
        pending = {rank: self._pending.setdefault(rank, _Pending()) for rank in sorted(tails)}
        new = self._completed(pending, tails)
        # Only now: one read may exceed the limit, but most of its records are of completed steps.
        for waiting in pending.values():
            self.left_out += waiting.shrink()
        return new

    def _completed(
        self, pending: Mapping[int, _Pending], tails: Mapping[int, TraceTail]
    ) -> NewSteps | None:
        if not all(waiting.has_steps for waiting in pending.values()):
            return None
        if self._base == 0 and any(waiting.stays_in(self._done) for waiting in pending.values()):
            return None  # a rank has not ended its next step
        _replace_lost_marks(pending, tails)
        traces = {rank: _trace(tails[rank], pending[rank].records()) for rank in pending}
        steps = {rank: columns.steps(trace) for rank, trace in traces.items()}
        last = min(
            (
                self._last(  # a device may end a step long after its host did
                    columns.steps(on_device_timeline(traces[rank])),
                    pending[rank].settled_ns(tails[rank].ended, self._settled_ns),
                )
                for rank in pending
            ),
            default=-1,
        )
        if last <= self._done:
            return None
        run = WorldRun(self._world_size, Path(), {}, traces, ())
        world = measured_world(run)
        assert world is not None
        numbers_of_steps = world.parts.step
        chosen = (numbers_of_steps > self._done - self._base) & (
            numbers_of_steps <= last - self._base
        )
        numbers = numbers_of_steps[chosen]
        before = self._base
        self._forget(pending, steps, last)
        if len(numbers) == 0:
            return None
        parts = world.parts.rows(numbers)
        return NewSteps(tuple(world.ranks), parts, world, numbers, before)

    def _last(self, steps: Steps, settled_ns: int) -> int:
        if steps.source == BACKWARD and self._base == 0 and len(steps) < schema.SURELY_UNMARKED:
            return -1
        numbers = steps.index[steps.end_ns <= settled_ns]
        return int(numbers[-1]) + self._base if len(numbers) else -1

    def _forget(
        self, pending: Mapping[int, _Pending], steps: Mapping[int, Steps], last: int
    ) -> None:
        """Drops records before step ``last``. That step stays: its operations may end later."""
        row = last - self._base
        unmarked = any(rank_steps.source == BACKWARD for rank_steps in steps.values())
        for rank, waiting in pending.items():
            rank_steps = steps[rank]
            first_row = int(np.searchsorted(rank_steps.index, row))
            waiting.forget(
                int(rank_steps.begin_ns[first_row]), int(rank_steps.thread[first_row]), unmarked
            )
        self._done = last
        self._base = last if unmarked else 0


class _Pending:
    def __init__(self) -> None:
        self._batches: list[Records] = []
        self._clocks = _NO_RECORDS
        self._grew_s = time.monotonic()
        #: True once the script has marked the end of a step.
        self.ends_steps = False
        self._went_backward = False
        #: Largest number of a step whose end the script has marked; -1 if there is none.
        self.last_end = -1

    @property
    def lacks_mark(self) -> bool:
        """True if the kept records hold no step mark.

        The first mark is lost if the monitor begins to read late, or if records are dropped.
        """
        return not any((batch["kind"] == Kind.STEP).any() for batch in self._batches)

    @property
    def has_steps(self) -> bool:
        return self.ends_steps or self._went_backward

    def stays_in(self, step: int) -> bool:
        """True if the script marks steps, and no step after ``step`` has ended yet."""
        return self.ends_steps and self.last_end <= step

    def add(self, records: Records) -> None:
        if len(records) == 0:
            return
        self._grew_s = time.monotonic()
        self._batches.append(records)
        marks = records[records["kind"] == Kind.STEP]
        ended = marks["op_id"][marks["aux"] == 1]
        self.ends_steps = self.ends_steps or len(ended) > 0
        self.last_end = max(self.last_end, int(ended.max(initial=0)) if len(ended) else -1)
        phases = records[records["kind"] == Kind.PHASE]
        self._went_backward |= bool((phases["aux"] == Phase.BACKWARD).any())
        clocks = records[records["kind"] == Kind.CLOCK]
        if len(clocks):
            self._clocks = np.concatenate([self._clocks, clocks])[-_MOST_CLOCKS:]

    def records(self) -> Records:
        joined = np.concatenate(self._batches) if self._batches else _NO_RECORDS
        joined = joined[joined["kind"] != Kind.CLOCK]
        joined = joined[np.argsort(joined["timestamp_ns"], kind="stable")]
        self._batches = [joined]
        joined = np.concatenate([self._clocks, joined])
        return joined[np.argsort(joined["timestamp_ns"], kind="stable")]

    def settled_ns(self, ended: bool, age_ns: int) -> int:
        """Returns the time in ns up to which all records have arrived; 0 without records."""
        settled = ended or time.monotonic() - self._grew_s > _IDLE_S
        records = self._batches[0]
        if len(records) == 0:
            return 0
        return _ALL_NS if settled else int(records["timestamp_ns"][-1]) - age_ns

    def shrink(self) -> int:
        count = sum(map(len, self._batches))
        if count <= _MOST_RECORDS:
            return 0
        joined = np.concatenate(self._batches)
        joined = joined[np.argsort(joined["timestamp_ns"], kind="stable")]
        self._batches = [joined[count - _MOST_RECORDS // 2 :]]
        return count - _MOST_RECORDS // 2

    def forget(self, before_ns: int, thread: int, unmarked: bool) -> None:
        """Drops records before ``before_ns``.

        If the script marks no steps (``unmarked``), one step mark at ``before_ns`` replaces all
        other step marks.
        """
        records = self._batches[0]
        self._batches = [records[records["timestamp_ns"] >= before_ns]]
        if unmarked:
            self.mark(before_ns, thread)

    def mark(self, time_ns: int, thread: int) -> None:
        mark = np.zeros(1, dtype=schema.RECORD_DTYPE)
        mark["kind"], mark["timestamp_ns"], mark["thread"] = Kind.STEP, time_ns, thread
        records = self._batches[0]
        self._batches = [np.concatenate([mark, records[records["kind"] != Kind.STEP]])]

    def passes(self, groups: Mapping[int, Group]) -> dict[tuple[str, int], tuple[int, int]]:
        """Returns the end in ns, and the thread, of each backward pass that issued a collective.

        Keys: the group's name and the sequence number of the pass's first collective.
        """
        records = self.records()
        backward = (records["kind"] == Kind.PHASE) & (records["aux"] == Phase.BACKWARD)
        threads = records["thread"][backward]
        if len(threads) == 0:
            return {}
        thread = int(threads[0])
        ends_ns, issues = first_issues(records, thread)
        return {
            (groups[group].name, seq): (end_ns, thread)
            for end_ns, group, seq in zip(
                ends_ns.tolist(), issues["group"].tolist(), issues["seq"].tolist(), strict=True
            )
            if group in groups and seq != schema.NO_SEQ
        }


def _replace_lost_marks(pending: Mapping[int, _Pending], tails: Mapping[int, TraceTail]) -> None:
    """Makes a new step mark on each rank if a rank has lost its first mark.

    The new marks are at the end of the same backward pass, so that steps match. Does nothing if the
    script itself marks steps.
    """
    if not any(waiting.lacks_mark for waiting in pending.values()):
        return
    if any(waiting.ends_steps for waiting in pending.values()):
        return
    passes = {rank: waiting.passes(tails[rank].groups) for rank, waiting in pending.items()}
    common = set.intersection(*(set(of_rank) for of_rank in passes.values()))
    if not common:
        return
    first = min(common, key=next(iter(passes.values())).__getitem__)
    for rank, waiting in pending.items():
        waiting.mark(*passes[rank][first])


def _trace(tail: TraceTail, records: Records) -> Trace:
    assert tail.metadata is not None
    return Trace(
        path=tail.path,
        metadata=tail.metadata,
        groups=tail.groups,
        records=records,
        complete=tail.ended,
        dropped=tail.dropped,
        problems=(),
    )


def wall_ns(new: NewSteps) -> npt.NDArray[np.float64]:
    """Returns the wall time in ns of each step's slowest rank."""
    slowest: npt.NDArray[np.float64] = new.parts.table("wall").max(axis=0)
    return slowest
