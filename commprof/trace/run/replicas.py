"""Replicas of a job that separate launchers started, joined into one world.

Libraries that survive failures, such as torchft, train the same model in several replicas. Each
replica has a launcher of its own, and so records as a job of its own, into another ``job_N`` of the
same directory. A process that is killed and started again leaves one more. What brings them
together are the groups that the replicas make themselves (``Group.token``): jobs that share one
trained together. The replicas' ranks, one replica after the other, become the ranks of the world.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from commprof.errors import TraceError
from commprof.trace import columns
from commprof.trace.documents import Group
from commprof.trace.lookup import row_containing
from commprof.trace.reader import Trace, read_trace
from commprof.trace.run.endings import last_attempt, rank_problems
from commprof.trace.schema import Kind
from commprof.units import ns_to_s


@dataclass(frozen=True)
class Life:
    """One start of a replica: its ranks, from their first record to their last."""

    #: Number of the replica, from 0.
    replica: int
    #: torchft's name of the replica; empty if none is known.
    label: str
    directory: Path
    #: Traces by the rank that the replica's own launcher gave.
    traces: dict[int, Trace]
    #: Wall-clock times of the first and last record of any rank, in seconds.
    begin_s: float
    end_s: float

    @property
    def steps(self) -> int:
        """Number of steps that all ranks of the replica completed."""
        return min(len(columns.steps(trace)) for trace in self.traces.values())

    @property
    def ending(self) -> str:
        """What ended a rank that did not end normally; empty if all did."""
        return "; ".join(rank_problems(list(self.traces.values())))


@dataclass(frozen=True)
class Replicas:
    """All lives of a job's replicas, and the world that the last lives make."""

    #: By replica, then in order of time.
    lives: tuple[Life, ...]
    #: Traces of each replica's last life by rank in the world. Rank, world size, groups and the
    #: numbers of steps are those of the world.
    traces: dict[int, Trace]

    @property
    def last_lives(self) -> list[Life]:
        """The last life of each replica."""
        return list({life.replica: life for life in self.lives}.values())


def replicas_of(run: Path) -> Replicas | None:
    """Reads the replicas that recorded into a directory and its ``job_N``; None if there are none.

    Raises:
        OSError: a directory cannot be read.
    """
    directories = [run, *sorted(run.glob("job_*"), key=lambda job: (len(job.name), job.name))]
    paths = [path for place in directories for path in last_attempt(place).values()]
    if len({path.parent for path in paths}) < 2:
        return None
    stamps = tuple((path, (stat := os.stat(path)).st_mtime_ns, stat.st_size) for path in paths)
    return _read_once(os.path.abspath(run), stamps)


@functools.lru_cache(maxsize=1)
def _read_once(_run: str, stamps: tuple[tuple[Path, int, int], ...]) -> Replicas | None:
    """Reads and joins replicas, and caches them; the arguments' times and sizes are only keys."""
    jobs: dict[Path, dict[int, Trace]] = {}
    for path, _, _ in stamps:
        with suppress(TraceError, OSError):  # the report of that job alone says why
            trace = read_trace(path)
            jobs.setdefault(path.parent, {})[trace.rank] = trace
    chains = _chains(_together(jobs))
    if len(chains) < 2 and not any(len(chain) > 1 for chain in chains):
        return None
    lives = tuple(
        replace(life, replica=number) for number, chain in enumerate(chains) for life in chain
    )
    return Replicas(lives, _world([chain[-1] for chain in chains]))


def _together(jobs: dict[Path, dict[int, Trace]]) -> list[Life]:
    """Returns the job of the first directory and all that it trained with, also by others."""
    tokens = {
        place: {g.token for trace in traces.values() for g in trace.groups.values() if g.token}
        for place, traces in jobs.items()
    }
    joined = list(jobs)[:1]
    for place in joined:  # grows
        joined += [other for other in jobs if other not in joined and tokens[other] & tokens[place]]
    return [_life(place, jobs[place]) for place in joined]


def _life(place: Path, traces: dict[int, Trace]) -> Life:
    begin_s, end_s = [], []
    for trace in traces.values():
        clock = trace.metadata["clock"]
        offset_ns = clock["realtime_ns"] - clock["monotonic_ns"]
        last = int(trace.records["timestamp_ns"][-1]) if len(trace.records) else 0
        begin_s.append(ns_to_s(clock["realtime_ns"]))
        end_s.append(ns_to_s(max(last, clock["monotonic_ns"]) + offset_ns))
    label = str(next(iter(traces.values())).metadata.get("replica") or "")
    return Life(0, label, place, dict(sorted(traces.items())), min(begin_s), max(end_s))


def _chains(lives: Sequence[Life]) -> list[list[Life]]:
    """Returns the lives of each replica, in order of time; replicas in order of their group's rank.

    A life continues a replica that has ended before and has the same name or, where names are not
    known, had the same rank in its groups.
    """
    chains: list[list[Life]] = []
    for life in sorted(lives, key=lambda each: each.begin_s):
        before = [c for c in chains if c[-1].end_s <= life.begin_s and _is_same(c[-1], life)]
        if before:
            max(before, key=lambda chain: chain[-1].end_s).append(life)
        else:
            chains.append([life])
    return sorted(chains, key=lambda chain: (_place(chain[-1])[1], chain[0].begin_s))


def _is_same(one: Life, other: Life) -> bool:
    if one.label and other.label:
        return one.label == other.label
    return _place(one) == _place(other)


def _place(life: Life) -> tuple[int, int]:
    """Returns size, and the replica's rank, of the largest group that it made last."""
    groups = [g for trace in life.traces.values() for g in trace.groups.values() if g.token]
    largest = max(groups, key=lambda group: (group.size, group.id), default=None)
    return (0, 0) if largest is None else (largest.size, largest.rank)


def _world(lives: Sequence[Life]) -> dict[int, Trace]:
    """Returns the lives' traces with rank, world size, groups and steps of the world."""
    size = sum(_world_size(life) for life in lives)
    traces, first = [], 0
    for number, life in enumerate(lives):
        for rank, trace in life.traces.items():
            metadata = {**trace.metadata, "rank": first + rank, "world_size": size}
            groups = {key: _named(group, number) for key, group in trace.groups.items()}
            traces.append(replace(trace, metadata=metadata, groups=groups))
        first += _world_size(life)
    return {trace.rank: trace for trace in _with_common_steps(traces)}


def _world_size(life: Life) -> int:
    return next(iter(life.traces.values())).world_size


def _named(group: Group, replica: int) -> Group:
    """Distinguishes a group within one replica from those of other replicas, by its name."""
    return group if group.token else replace(group, name=f"{group.name} of replica {replica}")


def _with_common_steps(traces: Sequence[Trace]) -> list[Trace]:
    """Numbers the steps so that collectives of one step are in the same step on all ranks.

    Each process counts steps from its own start. A rank without a collective in common with others
    keeps its numbers.
    """
    found = [_steps_of_calls(trace) for trace in traces]
    shift: dict[int, int] = {0: 0}
    for known, new in _pairs(found):
        ours, theirs = found[known], found[new]
        common = ours.keys() & theirs.keys()
        apart = np.median([ours[key] - theirs[key] for key in common])
        shift[new] = shift[known] + round(float(apart))
    lowest = min(shift.values())
    return [
        _shifted(trace, shift[place] - lowest) if place in shift else trace
        for place, trace in enumerate(traces)
    ]


def _pairs(found: Sequence[dict[tuple[str, int], int]]) -> list[tuple[int, int]]:
    """Returns pairs of a numbered rank and one that shares calls with it, until none is left."""
    reached, pairs = [0], []
    for known in reached:  # grows
        for new in range(len(found)):
            if new not in reached and found[known].keys() & found[new].keys():
                reached.append(new)
                pairs.append((known, new))
    return pairs


def _steps_of_calls(trace: Trace) -> dict[tuple[str, int], int]:
    """Returns the step in which each call of a group with a token was issued, by token and seq."""
    steps, table = columns.steps(trace), columns.collectives(trace)
    row = row_containing(steps.begin_ns, steps.end_ns, table.issue_ns)
    tokens = {group.id: group.token for group in trace.groups.values() if group.token}
    return {
        (tokens[group], seq): int(steps.index[at])
        for group, seq, at in zip(table.group.tolist(), table.seq.tolist(), row, strict=True)
        if at >= 0 and group in tokens
    }


def _shifted(trace: Trace, steps: int) -> Trace:
    if steps == 0:
        return trace
    records = trace.records.copy()
    records["op_id"][records["kind"] == Kind.STEP] += np.uint64(steps)
    return replace(trace, records=records)
