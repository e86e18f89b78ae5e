"""Figures of each step of a running job, from the records of its ranks as they arrive.

A rank's own work is defined as in the report: its time per phase less the waiting of its training
thread in that phase, computed by :mod:`breakdown`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.late.anomalies import StepFigures, bulk_bytes
from commprof.analysis.step.breakdown import breakdown
from commprof.trace import columns
from commprof.trace.columns import Steps
from commprof.trace.reader import Trace
from commprof.trace.schema import FLAG_FAILED, RECORD_DTYPE, Kind, Records
from commprof.units import ns_to_ms

#: Largest number of steps kept that some rank has not ended yet; a rank further behind is hung.
_MOST_OPEN = 256
#: Largest number of large collectives kept that some rank has not issued or completed yet.
_MOST_BULK = 16384
_BITS_PER_BYTE = 8
#: Largest number of records kept of a step that has not ended; the oldest are dropped.
_MOST_PENDING = 1 << 16
_OF_STEPS = (
    *(Kind.STEP, Kind.PHASE, Kind.WAIT, Kind.FINALIZE_BEGIN, Kind.FINALIZE_END),
    *(Kind.DEVICE_STEP, Kind.DEVICE_PHASE, Kind.DEVICE_WAIT, Kind.DEVICE_FINALIZE),
    Kind.DEVICE_READY,
)


@dataclass(frozen=True)
class RankStep:
    """One step of one rank."""

    step: int
    begin_ns: int
    end_ns: int
    #: Own work by phase, which is without waiting.
    work_ns: tuple[int, ...]


class RankMeter:
    """Splits one rank's records into steps."""

    def __init__(self) -> None:
        self._pending: Records = np.empty(0, dtype=RECORD_DTYPE)
        self._on_device = False

    def take(self, records: Records) -> list[RankStep]:
        """Adds records, ordered by time, and returns the steps that they complete."""
        chosen = records[np.isin(records["kind"], _OF_STEPS)]
        pending = np.concatenate([self._pending, chosen])[-_MOST_PENDING:]
        pending = pending[np.argsort(pending["timestamp_ns"], kind="stable")]
        marks = pending[pending["kind"] == Kind.STEP]
        # Without a mark `breakdown` would look for steps at backward passes.
        if len(chosen) == 0 or not (marks["aux"] == 1).any():
            self._pending = pending
            return []
        recorded = Trace(Path(), {}, {}, pending, complete=False, dropped=0, problems=())
        trace = on_device_timeline(recorded)
        if trace is recorded and self._on_device:  # its events come later
            self._pending = pending
            return []
        self._on_device = trace is not recorded
        steps = columns.steps(trace)
        part = breakdown(trace, columns.collectives(trace), None, world_size=0)
        if self._on_device:
            marks = _ended_by_device(marks, steps)
        self._pending = pending[pending["timestamp_ns"] >= marks["timestamp_ns"][-1]]
        work = part.work_ns.astype(np.int64).T
        marks_of = (column.tolist() for column in (steps.index, steps.begin_ns, steps.end_ns))
        return [
            RankStep(step, begin, end, tuple(of_step))
            for step, begin, end, of_step in zip(*marks_of, work.tolist(), strict=True)
        ]


def _ended_by_device(marks: Records, steps: Steps) -> Records:
    """Returns the host's boundaries up to that which ends the last of ``steps``, at least one.

    A device ends a step later than its host, and its later steps still need the host's boundaries.
    """
    ended = (marks["aux"] == 1) & np.isin(marks["op_id"], steps.index[-1:])
    return marks[: 1 + int(np.flatnonzero(ended)[-1])] if ended.any() else marks[:1]


@dataclass
class _Bulk:
    """One large collective, with the times of all ranks of its group."""

    size_bytes: int
    issues: dict[int, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)


class StepMeter:
    """Collects the steps and the large collectives of all ranks."""

    def __init__(self) -> None:
        self._meters: dict[int, RankMeter] = {}
        self._open: dict[int, dict[int, RankStep]] = {}
        self._bulk: dict[tuple[str, int], _Bulk] = {}
        self._bulk_of: dict[tuple[int, int], tuple[str, int]] = {}
        #: Bits transferred, and their transfer time, since the last step's figures.
        self._bits, self._taken_ns = 0, 0

    def take(self, rank: int, records: Records, groups: dict[int, tuple[str, int]]) -> None:
        """Adds a rank's next records; ``groups``: name and size by the rank's own group number."""
        meter = self._meters.setdefault(rank, RankMeter())
        for step in meter.take(records):
            self._open.setdefault(step.step, {})[rank] = step
        kinds = records["kind"]
        rows = records[np.isin(kinds, (Kind.ISSUE, Kind.DEVICE_READY, Kind.END))]
        for row, size in zip(rows, _bulk_bytes(rows, groups), strict=True):
            self._take_bulk(rank, row, size, groups)
        while len(self._bulk) > _MOST_BULK:
            del self._bulk[next(iter(self._bulk))]
        while len(self._bulk_of) > _MOST_BULK:
            del self._bulk_of[next(iter(self._bulk_of))]

    def complete(self, ranks: Collection[int]) -> list[StepFigures]:
        """Returns the steps that all these ranks have ended since the last call, in order."""
        ready = sorted(step for step, ended in self._open.items() if ended.keys() >= set(ranks))
        result = [self._figures(step) for step in ready]
        while len(self._open) > _MOST_OPEN:
            del self._open[min(self._open)]
        return result

    def _take_bulk(
        self, rank: int, row: Records, size: int, groups: dict[int, tuple[str, int]]
    ) -> None:
        op_id = int(row["op_id"])
        if row["kind"] == Kind.ISSUE:
            if size == 0:
                return
            key = groups[int(row["group"])][0], int(row["seq"])
            bulk = self._bulk.setdefault(key, _Bulk(size))
            bulk.issues[rank] = int(row["timestamp_ns"])
            self._bulk_of[rank, op_id] = key
            return
        if row["kind"] == Kind.DEVICE_READY:  # a device comes to the operation after its host
            ready = self._bulk.get(self._bulk_of.get((rank, op_id), ("", -1)))
            if ready is not None:
                ready.issues[rank] = int(row["timestamp_ns"])
            return
        key_of = self._bulk_of.pop((rank, op_id), None)
        ended = self._bulk.get(key_of) if key_of is not None else None
        if key_of is None or ended is None:
            return
        if int(row["flags"]) & FLAG_FAILED:
            del self._bulk[key_of]
            return
        ended.ends.append(int(row["timestamp_ns"]))
        sizes = {name: count for name, count in groups.values()}
        if len(ended.ends) == sizes.get(key_of[0]) == len(ended.issues):
            del self._bulk[key_of]
            self._bits += ended.size_bytes * _BITS_PER_BYTE
            self._taken_ns += max(max(ended.ends) - max(ended.issues.values()), 0)

    def _figures(self, step: int) -> StepFigures:
        ranks = self._open.pop(step)
        rate = self._bits / self._taken_ns if self._taken_ns else math.nan
        self._bits, self._taken_ns = 0, 0
        return StepFigures(
            step=step,
            end_ns=min(rank_step.end_ns for rank_step in ranks.values()),
            wall_ms=ns_to_ms(
                max(rank_step.end_ns - rank_step.begin_ns for rank_step in ranks.values())
            ),
            work_ms={
                rank: [ns_to_ms(value) for value in rank_step.work_ns]
                for rank, rank_step in ranks.items()
            },
            gbit_per_s=rate,
        )


def _bulk_bytes(rows: Records, groups: dict[int, tuple[str, int]]) -> list[int]:
    """Returns the ``bulk_bytes`` of each record; meaningful for ISSUE records only."""
    group_size = [groups.get(number, ("", 0))[1] for number in rows["group"].tolist()]
    op, bytes_in, bytes_out = (columns.ints(rows[of]) for of in ("op", "bytes_in", "bytes_out"))
    sizes: list[int] = bulk_bytes(op, bytes_in, bytes_out, np.array(group_size, np.int64)).tolist()
    return sizes
