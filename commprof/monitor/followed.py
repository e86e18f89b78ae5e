"""What the monitor keeps of the traces that it follows: totals, recent steps, summaries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from commprof.analysis.collectives.compression import compression_rows
from commprof.monitor.figures.operations import RecentOperations
from commprof.monitor.figures.recent import RecentSteps
from commprof.monitor.figures.steps import SETTLED_NS, NewSteps, StepFollower
from commprof.monitor.figures.summarised import Summaries, late_by_summaries
from commprof.monitor.follow import TraceTail
from commprof.monitor.state import Late
from commprof.predict.fit.cost_model import CostCurve
from commprof.trace.reader import Trace
from commprof.trace.schema import RECORD_DTYPE, Kind


class FollowedTraces:
    """Totals, recent steps and summaries of the ranks of one world size."""

    def __init__(
        self,
        tails: dict[int, TraceTail],
        curves_of: Callable[[dict[int, TraceTail]], dict[str, CostCurve]],
        patience_s: float,
        settled_ns: int = SETTLED_NS,
    ) -> None:
        self.world_size = int(metadata_of(tails[min(tails)])["world_size"])
        self.steps = StepFollower(self.world_size, settled_ns)
        self.recent = RecentSteps(self.world_size)
        self._curves_of = curves_of
        self.operations = RecentOperations()
        self.summaries = {rank: Summaries() for rank in tails}
        #: By rank: what a ring all-reduce would have sent, and what a compressor did.
        self.compressed: dict[int, tuple[float, float]] = {}
        self._ranks: set[int] = set()
        self._until_s = time.monotonic() + patience_s
        self.last_step_ns: dict[int, int] = {}

    def grew(self, tails: dict[int, TraceTail]) -> bool:
        """Whether ranks came after steps had been counted without them."""
        return bool(self._ranks) and set(tails) != self._ranks

    def advance(self, tails: dict[int, TraceTail]) -> None:
        """Takes steps and summaries that are complete by now."""
        for rank, tail in tails.items():
            self.summaries.setdefault(rank, Summaries())
            if tail.summary is not None:
                self.summaries[rank].add(tail.summary)
        if len(tails) < self.world_size and time.monotonic() < self._until_s:
            return  # ranks do not begin together
        if not self._ranks:
            self._ranks = set(tails)
            self.operations = RecentOperations(self._curves_of(tails))
        new = self.steps.advance(tails)
        if new is not None:
            self.recent.add(new)
            self.operations.add(new)
            self._add_compressed(new)
            for rank, trace in zip(new.ranks, new.world.recorded, strict=True):
                marks = trace.records[trace.records["kind"] == Kind.STEP]["timestamp_ns"]
                self.last_step_ns[rank] = int(marks[-1]) if len(marks) else 0

    def mode(self, tails: dict[int, TraceTail]) -> str:
        """Mode by the first rank that has a summary; full where none has."""
        for rank in sorted(tails):
            summary = tails[rank].summary
            if summary is not None:
                return summary.mode
        return "full"

    def late(self, tails: dict[int, TraceTail]) -> Late | None:
        """By the steps, or by the summaries where ranks keep those."""
        if not any(tail.summary for tail in tails.values()):
            return self.recent.late
        known = [
            (_bare(tail), tail.summary)
            for _, tail in sorted(tails.items())
            if tail.summary is not None
        ]
        return late_by_summaries([trace for trace, _ in known], [found for _, found in known])

    def _add_compressed(self, new: NewSteps) -> None:
        for rank, trace in zip(new.ranks, new.world.traces, strict=True):
            if not (trace.records["kind"] == Kind.COMPRESSION).any():
                continue
            rows = compression_rows([trace], new.numbers, self.world_size)
            plain, sent = self.compressed.get(rank, (0.0, 0.0))
            for row in rows:
                if not math.isnan(row.ratio):
                    sent += row.wire_bytes * row.calls
                    plain += row.ratio * row.wire_bytes * row.calls
            self.compressed[rank] = plain, sent


def metadata_of(tail: TraceTail) -> dict[str, Any]:
    """Metadata of a tail that has some, as those of ``JobTail`` have."""
    assert tail.metadata is not None
    return tail.metadata


def _bare(tail: TraceTail) -> Trace:
    """Without records, which summaries do not need."""
    return Trace(
        path=tail.path,
        metadata=metadata_of(tail),
        groups=tail.groups,
        records=np.empty(0, dtype=RECORD_DTYPE),
        complete=tail.ended,
        dropped=tail.dropped,
        problems=(),
    )
