"""The steps of a running job: each analysed once, as soon as all ranks have completed it.

The analysis is the report's own (:mod:`commprof.analysis.align.measured`), on the records of the
new steps alone. A step counts when its records must all be there: records of different threads come
up to a flush interval apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.measured import MeasuredWorld, measured_world
from commprof.analysis.step.breakdown import Breakdown
from commprof.monitor.follow import TraceTail
from commprof.trace import columns, schema
from commprof.trace.columns import Ints, Steps
from commprof.trace.found_steps import BACKWARD
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import Kind, Records

#: Two flush intervals: what a rank recorded before the newest record seen less this is all there.
SETTLED_NS = 400_000_000
#: A rank from which nothing came for so long has flushed what it had.
_IDLE_S = 1.0
_ALL_NS = 2**62
#: Of a rank, waiting for the others or for the end of a step: 16 MiB. Beyond it the oldest go.
_MOST_RECORDS = 1 << 18
_MOST_CLOCKS = 256
#: A loop without marks is believed to have none after so many backward passes.
_SURELY_UNMARKED = 20

_NO_RECORDS: Records = np.empty(0, dtype=schema.RECORD_DTYPE)


@dataclass(frozen=True)
class NewSteps:
    """Steps that all followed ranks completed since the last look."""

    #: Global ranks; the next has one entry for each.
    ranks: tuple[int, ...]
    parts: tuple[Breakdown, ...]
    #: What they were found in: the traces of these steps, and some records around them.
    world: MeasuredWorld
    #: Numbers of the steps, in the traces of ``world``.
    numbers: Ints


class StepFollower:
    """Collects new records of all ranks, and gives out steps that are complete on all."""

    def __init__(self, world_size: int, settled_ns: int = SETTLED_NS) -> None:
        """Follows a job.

        Args:
            world_size: of the job, also where not all ranks can be followed here.
            settled_ns: what is older than the newest record by this is all there.
        """
        self._world_size = world_size
        self._settled_ns = settled_ns
        self._pending: dict[int, _Pending] = {}
        #: Last step given out, and what to add to the numbers found in the pending records.
        self._done = -1
        self._base = 0
        #: Records that were left out because a rank was too far ahead of another.
        self.left_out = 0

    @property
    def last_step(self) -> int:
        """Number of the last step given out; -1 before the first."""
        return self._done

    def add(self, rank: int, records: Records) -> None:
        """Adds the records that a tail's poll returned."""
        self._pending.setdefault(rank, _Pending()).add(records)

    def advance(self, tails: Mapping[int, TraceTail]) -> NewSteps | None:
        """Returns the steps that all ranks of ``tails`` have completed by now; None without any."""
        pending = {rank: self._pending.setdefault(rank, _Pending()) for rank in sorted(tails)}
        for rank in pending:
            self.left_out += pending[rank].shrink()
        traces = {rank: _trace(tails[rank], pending[rank].records()) for rank in pending}
        steps = {rank: columns.steps(trace) for rank, trace in traces.items()}
        last = min(
            (
                self._last(
                    steps[rank], pending[rank].settled_ns(tails[rank].ended, self._settled_ns)
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
        found = world.parts[0].step
        chosen = (found > self._done - self._base) & (found <= last - self._base)
        numbers = found[chosen]
        self._forget(pending, steps, last)
        if len(numbers) == 0:
            return None
        parts = tuple(part.rows(np.isin(part.step, numbers)) for part in world.parts)
        return NewSteps(tuple(world.ranks), parts, world, numbers)

    def _last(self, steps: Steps, settled_ns: int) -> int:
        """Number of the last step that is complete and settled; -1 without any."""
        if steps.source == BACKWARD and self._base == 0 and len(steps) < _SURELY_UNMARKED:
            return -1
        numbers = steps.index[steps.end_ns <= settled_ns]
        return int(numbers[-1]) + self._base if len(numbers) else -1

    def _forget(
        self, pending: Mapping[int, _Pending], steps: Mapping[int, Steps], last: int
    ) -> None:
        """Drops all before the step ``last``, which stays: operations may reach over its end."""
        row = last - self._base
        unmarked = any(found.source == BACKWARD for found in steps.values())
        for rank, waiting in pending.items():
            found = steps[rank]
            at = int(np.searchsorted(found.index, row))
            waiting.forget(int(found.begin_ns[at]), int(found.thread[at]), unmarked)
        self._done = last
        self._base = last if unmarked else 0


class _Pending:
    """Records of one rank that no step given out needs no more."""

    def __init__(self) -> None:
        self._batches: list[Records] = []
        self._clocks = _NO_RECORDS
        self._grew_s = time.monotonic()

    def add(self, records: Records) -> None:
        if len(records) == 0:
            return
        self._grew_s = time.monotonic()
        self._batches.append(records)
        clocks = records[records["kind"] == Kind.CLOCK]
        if len(clocks):
            self._clocks = np.concatenate([self._clocks, clocks])[-_MOST_CLOCKS:]

    def records(self) -> Records:
        """All records by time; clock comparisons once, those of former batches included."""
        joined = np.concatenate(self._batches) if self._batches else _NO_RECORDS
        joined = joined[joined["kind"] != Kind.CLOCK]
        joined = joined[np.argsort(joined["timestamp_ns"], kind="stable")]
        self._batches = [joined]
        joined = np.concatenate([self._clocks, joined])
        return joined[np.argsort(joined["timestamp_ns"], kind="stable")]

    def settled_ns(self, ended: bool, age_ns: int) -> int:
        """Up to when all records are there: all of them, where nothing came for a while."""
        settled = ended or time.monotonic() - self._grew_s > _IDLE_S
        records = self._batches[0]
        if len(records) == 0:
            return 0
        return _ALL_NS if settled else int(records["timestamp_ns"][-1]) - age_ns

    def shrink(self) -> int:
        """Lets the oldest go where there are too many; returns how many."""
        count = sum(map(len, self._batches))
        if count <= _MOST_RECORDS:
            return 0
        joined = np.concatenate(self._batches)
        joined = joined[np.argsort(joined["timestamp_ns"], kind="stable")]
        self._batches = [joined[count - _MOST_RECORDS // 2 :]]
        return count - _MOST_RECORDS // 2

    def forget(self, before_ns: int, thread: int, unmarked: bool) -> None:
        """Drops what is older; where steps have no marks, one is left in its place."""
        records = self._batches[0]
        kept = records[records["timestamp_ns"] >= before_ns]
        if unmarked:
            mark = np.zeros(1, dtype=schema.RECORD_DTYPE)
            mark["kind"], mark["timestamp_ns"], mark["thread"] = Kind.STEP, before_ns, thread
            kept = np.concatenate([mark, kept[kept["kind"] != Kind.STEP]])
        self._batches = [kept]


def _trace(tail: TraceTail, records: Records) -> Trace:
    """As the reader would give it, with these records alone."""
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
    """Wall time of the slowest rank, per step."""
    slowest: npt.NDArray[np.float64] = np.max([part.wall_ns for part in new.parts], axis=0)
    return slowest
