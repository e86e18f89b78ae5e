"""Looks at a running job from outside and says what is known: a :class:`JobState` per look."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from commprof.analysis.compression import compression_rows
from commprof.live import gradients
from commprof.live.follow import TraceTail
from commprof.live.job import JobTail, newest_job
from commprof.live.operations import RecentOperations
from commprof.live.processes import Here, own_process
from commprof.live.recent import RecentSteps
from commprof.live.state import JobState, Late, MonitorState, RankState
from commprof.live.steps import NewSteps, StepFollower
from commprof.live.summarised import Summaries, late_by_summaries
from commprof.predict.cost_model import OTHER_HOST, SAME_HOST, CostCurve
from commprof.predict.machine_profile import MachineProfile
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, RECORD_DTYPE, Kind
from commprof.units import ns_to_s

#: Of traces that are long already, what is read of each.
_RECENT_BYTES: Final = 16 << 20
_MOST_PROBLEMS: Final = 20
#: How long the first ranks are not counted alone: traces of others may be on other hosts.
PATIENCE_S: Final = 5.0


class Observer:
    """Of one run directory. Reads; writes nothing and signals nobody."""

    def __init__(
        self,
        run: Path,
        profile: MachineProfile | None = None,
        *,
        nested: bool = True,
        patience_s: float = PATIENCE_S,
        only_rank: int | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            run: the run directory.
            profile: what bandwidth is held against; None for nothing.
            nested: whether jobs are looked for in the directories of ``run`` too.
            patience_s: how long ranks whose traces are not there yet are waited for.
            only_rank: follow this one alone.
        """
        self._run = run
        self._profile = profile
        self._nested = nested
        self._patience_s = patience_s
        self._only_rank = only_rank
        self._here = Here()
        self._job: JobTail | None = None
        self._world: _World | None = None

    def look(self) -> JobState | None:
        """Reads what is new; None as long as no rank has begun to record."""
        begin = time.perf_counter()
        directory = newest_job(self._run, self._nested)
        if directory is not None and (self._job is None or self._job.directory != directory):
            self.close()
            self._job, self._world = JobTail(directory, _RECENT_BYTES, self._only_rank), None
        if self._job is None:
            return None
        restarts = self._job.restarts
        new = self._job.poll()
        tails = self._job.tails
        if not tails:
            return None
        if self._world is None or self._job.restarts != restarts or self._world.grew(tails):
            self._world = _World(tails, self._curves, self._patience_s)
        world = self._world
        for rank, records in new.items():
            world.steps.add(rank, records)
        world.advance(tails)
        return self._state(world, tails, time.perf_counter() - begin)

    @property
    def caught_up(self) -> bool:
        """Whether there is nothing more to read at the moment."""
        return self._job is not None and self._job.caught_up

    def close(self) -> None:
        """Closes all files."""
        if self._job is not None:
            self._job.close()

    def _curves(self, tails: dict[int, TraceTail]) -> dict[str, CostCurve]:
        """Those of the link between the ranks, if the profile has it for their backend."""
        if self._profile is None:
            return {}
        boots = {_metadata(tail)["machine"]["boot_id"] for tail in tails.values()}
        whole = len(tails) == _metadata(next(iter(tails.values())))["world_size"]
        link = self._profile.links.get(SAME_HOST if whole and len(boots) == 1 else OTHER_HOST)
        return dict(link.curves) if link is not None else {}

    def _state(self, world: _World, tails: dict[int, TraceTail], look_s: float) -> JobState:
        first = _metadata(tails[min(tails)])
        ranks = tuple(
            _rank_state(rank, tails[rank], world, self._here, self._job) for rank in sorted(tails)
        )
        cpu_s, resident = own_process()
        problems = [
            f"rank {rank}: {problem}" for rank in sorted(tails) for problem in tails[rank].problems
        ]
        return JobState(
            time_s=time.time(),
            world_size=first["world_size"],
            backend=first["backend"],
            mode=world.mode(tails),
            ranks=ranks,
            late=world.late(tails),
            bandwidth=world.operations.bandwidth(),
            monitor=MonitorState(
                cpu_s, resident, look_s, world.steps.left_out, tuple(problems[:_MOST_PROBLEMS])
            ),
            host=self._here.host(),
            finished=all(state.status in ("ended", "gone") for state in ranks),
        )


class _World:
    """What is kept of one set of ranks."""

    def __init__(
        self,
        tails: dict[int, TraceTail],
        curves_of: Callable[[dict[int, TraceTail]], dict[str, CostCurve]],
        patience_s: float,
    ) -> None:
        self.world_size = int(_metadata(tails[min(tails)])["world_size"])
        self.steps = StepFollower(self.world_size)
        self.recent = RecentSteps(self.world_size)
        self._curves_of = curves_of
        self.operations = RecentOperations()
        self.summaries: dict[int, Summaries] = {}
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
        """Of the first rank that says so; full where there are no summaries."""
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


def _rank_state(
    rank: int, tail: TraceTail, world: _World, here: Here, job: JobTail | None
) -> RankState:
    metadata = _metadata(tail)
    process, lives = here.process(metadata)
    summaries = world.summaries[rank]
    plain, sent = world.compressed.get(rank, (0.0, 0.0))
    common: dict[str, Any] = {
        "rank": rank,
        "host": str(metadata["machine"]["hostname"]),
        "is_local": here.is_local(metadata),
        "status": _status(tail, lives),
        "since_step_s": _since_step_s(rank, tail, world, here),
        "plain_bytes": plain,
        "sent_bytes": sent,
        "dropped": tail.dropped,
        "trace_bytes": tail.length_bytes,
        "process": process,
        "gradients": gradients.newest(job.directory, rank) if job is not None else None,
    }
    if summaries.newest is not None:
        names = metadata.get("ops", OPS)
        return RankState(
            step=summaries.newest.steps.count,
            total=summaries.total,
            recent=summaries.recent,
            operations=summaries.operations(names),
            waited_for_s=_waited_for_s(rank, world),
            **common,
        )
    return RankState(
        step=world.steps.last_step,
        total=world.recent.total(rank),
        recent=world.recent.recent(rank),
        operations=world.operations.of_rank(rank),
        waited_for_s=world.recent.waited_for_s(rank) if world.recent.ranks else math.nan,
        **common,
    )


def _waited_for_s(rank: int, world: _World) -> float:
    """By the other ranks' summaries; NaN where one has none, or split nothing."""
    others = [found for of, found in world.summaries.items() if of != rank]
    newest = [found.newest for found in others if found.newest is not None]
    if len(newest) != world.world_size - 1 or not all(each.arrivals_known for each in newest):
        return math.nan
    return ns_to_s(sum(found.waited_for_ns().get(rank, 0) for found in others))


def _status(tail: TraceTail, lives: bool | None) -> str:
    if tail.ended:
        return "ended"
    return {True: "running", False: "gone", None: ""}[lives]


def _since_step_s(rank: int, tail: TraceTail, world: _World, here: Here) -> float:
    """NaN where the rank's times are by another clock, or it keeps no records."""
    metadata = _metadata(tail)
    if not here.shares_clock(metadata) or tail.summary is not None or tail.ended:
        return math.nan
    since = world.last_step_ns.get(rank) or int(metadata["clock"]["monotonic_ns"])
    return ns_to_s(max(0, time.monotonic_ns() - since))


def _metadata(tail: TraceTail) -> dict[str, Any]:
    assert tail.metadata is not None  # JobTail has those alone
    return tail.metadata


def _bare(tail: TraceTail) -> Trace:
    """Without records, which summaries do not need."""
    return Trace(
        path=tail.path,
        metadata=_metadata(tail),
        groups=tail.groups,
        records=np.empty(0, dtype=RECORD_DTYPE),
        complete=tail.ended,
        dropped=tail.dropped,
        problems=(),
    )
