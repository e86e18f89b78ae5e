"""Reads the summaries of other hosts instead of their ranks' traces, in always-on mode.

The monitor of each host follows the ranks of its host and writes one summary for them. Only
``commprof top`` and the monitor on rank 0's host read these summaries.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from commprof.analysis.summaries import SummaryPart, host_part
from commprof.files import replace_file
from commprof.monitor.figures.hosts import WrittenBy, host_content, rank_states
from commprof.monitor.follow import JobTail, TraceTail
from commprof.monitor.state import JobState, RankState
from commprof.trace.host_summary import (
    HostSummaries,
    SeenHost,
    path_of,
    running_hosts,
)
from commprof.trace.run.processes import Here
from commprof.units import ns_to_s

#: Time that other hosts have to write their first summary. In this time, their ranks are not
#: followed.
_GRACE_S: Final = 20.0
#: Largest number of traces to follow on hosts whose next summary is overdue. Each trace takes about
#: 1 MB.
_MOST_FOLLOWED: Final = 256


@dataclass(frozen=True)
class OtherHost:
    """A host with a usable summary."""

    seen: SeenHost
    part: SummaryPart
    states: tuple[RankState, ...]


class OtherHosts:
    """Reads other hosts' summaries, and decides which ranks' traces need not be followed."""

    def __init__(self, job: JobTail, here: Here, is_monitor: bool) -> None:
        """Reads nothing yet.

        Args:
            job: the traces of the job.
            here: this host.
            is_monitor: True for the monitor of a host, False for ``commprof top``.
        """
        self._job = job
        self._here = here
        self._is_monitor = is_monitor
        self._files = HostSummaries(job.directory)
        self._until_s = math.inf
        #: Ranks whose traces were written on other hosts.
        self._elsewhere: set[int] = set()
        #: True once a summary of the running job was found.
        self._used = False
        self.seen: tuple[SeenHost, ...] = ()
        #: The hosts in ``seen`` whose figures can be used.
        self.usable: tuple[OtherHost, ...] = ()

    def look(self) -> None:
        """Reads the summaries of other hosts, and stops following the traces of their ranks."""
        tails = self._job.tails
        local = {rank for rank, tail in tails.items() if self._is_local(tail)}
        self.seen, self.usable = (), ()
        if self._is_monitor and local:
            self._look_from_a_host(tails, local)
        elif self._used or running_hosts(self._job.directory):
            self._used = True
            self._read(None)
            # One trace is always followed: it shows the job's size, and whether the job runs.
            ranks = self._ranks_elsewhere() - local
            self._job.leave(ranks - {min(ranks, default=0)})
            if self._is_monitor:  # no rank of this host is known yet: the next look begins anew
                self.seen, self.usable, self._used = (), (), False

    def _look_from_a_host(self, tails: dict[int, TraceTail], local: set[int]) -> None:
        if not all(tails[rank].summary is not None for rank in local):
            return  # the job records in full mode, or has just begun
        if self._until_s == math.inf:
            self._until_s = time.monotonic() + _GRACE_S
        first = tails[min(local)].metadata
        assert first is not None
        if local.issuperset(range(first["world_size"])):
            return
        # A rank without a trace may still begin on this host, so it does not count as a rank of
        # another host.
        self._elsewhere = (self._elsewhere | tails.keys()) - local
        if 0 not in local:
            self._job.leave(self._elsewhere)
            return
        self._read(self._own_path(tails, local))
        summarised = self._ranks_elsewhere() - local
        if time.monotonic() < self._until_s:
            written = {rank for host in self.usable for rank in host.part.ranks}
            summarised |= self._elsewhere - written
        self._job.leave(summarised)

    def write(
        self,
        state: JobState,
        parts: Sequence[SummaryPart],
        tails: dict[int, TraceTail],
        next_s: float,
    ) -> None:
        """Writes this host's summary.

        Args:
            state: the newest state of the job.
            parts: the summaries of the ranks of this host, at least one.
            tails: traces of all followed ranks.
            next_s: the next summary is written within this many seconds.

        Raises:
            OSError: the file cannot be written.
        """
        by_rank = {part.ranks[0]: part for part in parts}
        ranks = [rank for rank in state.ranks if rank.rank in by_rank]
        chosen = {rank.rank for rank in ranks}
        metadata = [tails[rank].metadata or {} for rank in sorted(chosen)]
        by = WrittenBy(
            host=ranks[0].host,
            attempt=max(of_rank["restart_count"] for of_rank in metadata),
            began_s=min(ns_to_s(of_rank["clock"]["realtime_ns"]) for of_rank in metadata),
            time_s=state.time_s,
            next_s=next_s,
            world_size=state.world_size,
            backend=state.backend,
            mode=state.mode,
        )
        content = host_content(ranks, [by_rank[rank.rank] for rank in ranks], by)
        replace_file(self._own_path(tails, chosen), content)

    def instead_of(self, tails: dict[int, TraceTail]) -> list[OtherHost]:
        """Returns the hosts whose summaries are used instead of traces.

        If a host's next summary is overdue, the host is in the result only if some of its ranks
        are not followed. Its figures are old, so they count only in totals.
        """
        followed = {rank for rank, tail in tails.items() if tail.summary is not None}
        return [
            host
            for host in self.usable
            if not host.seen.missing or not followed.issuperset(host.part.ranks)
        ]

    def _read(self, own: Path | None) -> None:
        self.seen = tuple(self._files.look(own))
        usable: list[OtherHost] = []
        for host in self.seen:
            if host.summary is None or self._is_of_another_job(host.summary.world_size):
                continue
            try:
                part = host_part(host.summary, host.summary.waits)
                usable.append(OtherHost(host, part, tuple(rank_states(host, {}))))
            except ValueError as error:
                damaged = replace(host, missing=True, problem=f"its figures are damaged: {error}")
                self.seen = tuple(damaged if seen is host else seen for seen in self.seen)
        self.usable = tuple(usable)

    def _is_of_another_job(self, world_size: int) -> bool:
        sizes = {(tail.metadata or {}).get("world_size") for tail in self._job.tails.values()}
        return bool(sizes) and world_size not in sizes

    def _ranks_elsewhere(self) -> set[int]:
        """Returns the ranks that need not be followed, because their hosts wrote summaries.

        If a host's next summary is overdue, its ranks may still run. So up to ``_MOST_FOLLOWED``
        ranks of such hosts are followed.
        """
        ranks: set[int] = set()
        room = _MOST_FOLLOWED
        for host in self.usable:
            if self._is_monitor and self._here.is_on(host.part.host[0]):
                continue
            if host.seen.missing and len(host.part.ranks) <= room:
                room -= len(host.part.ranks)
            else:
                ranks.update(host.part.ranks)
        return ranks

    def _own_path(self, tails: dict[int, TraceTail], local: set[int]) -> Path:
        machine = (tails[min(local)].metadata or {})["machine"]
        return path_of(self._job.directory, machine["hostname"], machine["boot_id"])

    def _is_local(self, tail: TraceTail) -> bool:
        return tail.metadata is not None and self._here.is_local(tail.metadata)


def waited_for_s(parts: Sequence[SummaryPart], world_size: int) -> dict[int, float]:
    """Returns the time that ranks waited for each rank; empty if some times are not known."""
    known = sum(len(part.ranks) for part in parts if part.summary.arrivals_known)
    if known < world_size:
        return {}
    total = dict.fromkeys(range(world_size), 0)
    for part in parts:
        for _, rank, waited_ns in part.summary.waited_for.cells.tolist():
            if rank in total:
                total[rank] += waited_ns
    return {rank: ns_to_s(waited_ns) for rank, waited_ns in total.items()}
