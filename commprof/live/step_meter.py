"""The figures of each step of a running job, from the records of its ranks as they come.

A rank's own work is its time per phase less what its training thread waited in it: in
``Work.wait``, or in DDP's finalisation. The report splits the same time more finely, see
:mod:`breakdown`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from commprof.analysis.anomalies import BULK_BYTES, StepFigures
from commprof.analysis.matching import POINT_TO_POINT
from commprof.trace.schema import PHASES, Kind, Records
from commprof.units import ns_to_ms

#: Steps that some rank has yet to end; a rank further behind is hung.
_MOST_OPEN = 256
#: Large collectives that some rank has yet to issue or complete.
_MOST_BULK = 16384
_BITS_PER_BYTE = 8


@dataclass(frozen=True)
class RankStep:
    """One step of one rank."""

    step: int
    begin_ns: int
    end_ns: int
    #: By phase, without waiting.
    work_ns: tuple[int, ...]


class RankMeter:
    """Cuts one rank's records into steps."""

    def __init__(self) -> None:
        self._begin: tuple[int, int] | None = None  # step and time
        self._thread = 0
        self._phases: list[tuple[int, int, int]] = []
        self._waits: list[tuple[int, int]] = []
        self._finalizing_ns = 0

    def take(self, records: Records) -> list[RankStep]:
        """The steps that ended in these records, which are ordered by time."""
        ended: list[RankStep] = []
        fields = ("kind", "timestamp_ns", "value", "op_id", "aux", "thread")
        kinds = [Kind.STEP, Kind.PHASE, Kind.WAIT, Kind.FINALIZE_BEGIN, Kind.FINALIZE_END]
        chosen = records[np.isin(records["kind"], kinds)]
        for row in zip(*(chosen[name].tolist() for name in fields), strict=True):
            kind, time_ns, value, op_id, aux, thread = row
            if kind == Kind.STEP:
                ended += self._boundary(op_id, aux, time_ns)
                self._thread = thread
            elif kind == Kind.PHASE:
                self._phases.append((aux, time_ns, value))
            elif kind == Kind.WAIT and thread == self._thread:
                self._waits.append((time_ns, value))
            elif kind == Kind.FINALIZE_BEGIN:
                self._finalizing_ns = time_ns
            elif kind == Kind.FINALIZE_END and self._finalizing_ns:
                self._waits.append((self._finalizing_ns, time_ns))
                self._finalizing_ns = 0
        return ended

    def _boundary(self, step: int, ended: int, time_ns: int) -> Iterator[RankStep]:
        begun = self._begin
        self._begin = step + ended, time_ns
        phases, waits = self._phases, _union(self._waits)
        self._phases, self._waits = [], []
        if not ended or begun is None or begun[0] != step:
            return
        begin_ns = begun[1]
        work = [0] * len(PHASES)
        for code, begin, end in phases:
            if code < len(PHASES):
                waited = sum(max(min(end, e) - max(begin, b), 0) for b, e in waits)
                work[code] += max(end - begin - waited, 0)
        waited = sum(max(min(time_ns, e) - max(begin_ns, b), 0) for b, e in waits)
        work[0] += max(time_ns - begin_ns - waited - sum(work), 0)  # no phase was declared for it
        yield RankStep(step, begin_ns, time_ns, tuple(work))


@dataclass
class _Bulk:
    """One large collective of all ranks of its group."""

    size_bytes: int
    issues: dict[int, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)


class StepMeter:
    """Brings the steps and the large collectives of all ranks together."""

    def __init__(self) -> None:
        self._meters: dict[int, RankMeter] = {}
        self._open: dict[int, dict[int, RankStep]] = {}
        self._bulk: dict[tuple[str, int], _Bulk] = {}
        self._bulk_of: dict[tuple[int, int], tuple[str, int]] = {}
        #: Bits and nanoseconds since the step before.
        self._bits, self._taken_ns = 0, 0

    def take(self, rank: int, records: Records, groups: dict[int, tuple[str, int]]) -> None:
        """The next records of a rank; groups: name and size by its own number."""
        meter = self._meters.setdefault(rank, RankMeter())
        for step in meter.take(records):
            self._open.setdefault(step.step, {})[rank] = step
        kinds = records["kind"]
        for row in records[(kinds == Kind.ISSUE) | (kinds == Kind.END)]:
            self._take_bulk(rank, row, groups)
        while len(self._bulk) > _MOST_BULK:
            del self._bulk[next(iter(self._bulk))]
        while len(self._bulk_of) > _MOST_BULK:
            del self._bulk_of[next(iter(self._bulk_of))]

    def complete(self, ranks: Collection[int]) -> list[StepFigures]:
        """The steps that all these ranks have ended since the last call, in order."""
        ready = sorted(step for step, ended in self._open.items() if ended.keys() >= set(ranks))
        result = [self._figures(step) for step in ready]
        while len(self._open) > _MOST_OPEN:
            del self._open[min(self._open)]
        return result

    def _take_bulk(self, rank: int, row: Records, groups: dict[int, tuple[str, int]]) -> None:
        op_id = int(row["op_id"])
        if row["kind"] == Kind.ISSUE:
            size = max(int(row["bytes_in"]), int(row["bytes_out"]))
            group = groups.get(int(row["group"]))
            if size < BULK_BYTES or group is None or int(row["op"]) in POINT_TO_POINT:
                return
            key = group[0], int(row["seq"])
            bulk = self._bulk.setdefault(key, _Bulk(size))
            bulk.issues[rank] = int(row["timestamp_ns"])
            self._bulk_of[rank, op_id] = key
            return
        key_of = self._bulk_of.pop((rank, op_id), None)
        found = self._bulk.get(key_of) if key_of is not None else None
        if key_of is None or found is None:
            return
        found.ends.append(int(row["timestamp_ns"]))
        sizes = {name: count for name, count in groups.values()}
        if len(found.ends) == sizes.get(key_of[0]) == len(found.issues):
            del self._bulk[key_of]
            self._bits += found.size_bytes * _BITS_PER_BYTE
            self._taken_ns += max(max(found.ends) - max(found.issues.values()), 0)

    def _figures(self, step: int) -> StepFigures:
        ranks = self._open.pop(step)
        rate = self._bits / self._taken_ns if self._taken_ns else math.nan
        self._bits, self._taken_ns = 0, 0
        return StepFigures(
            step=step,
            end_ns=min(one.end_ns for one in ranks.values()),
            wall_ms=ns_to_ms(max(one.end_ns - one.begin_ns for one in ranks.values())),
            work_ms={
                rank: [ns_to_ms(value) for value in one.work_ns] for rank, one in ranks.items()
            },
            gbit_per_s=rate,
        )


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same time, each moment once."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((begin, end))
    return result
