"""Joins the replicas of a job into one world, if each replica has its own launcher.

Libraries that survive failures, such as torchft, train the same model in several replicas. Each
replica records as a separate job, into another ``job_N`` of the same directory. A process that is
killed and started again adds one more ``job_N``. Two jobs trained together if they share a process
group that has a ``Group.token``: the replicas themselves make such groups. The world has the ranks
of all replicas, one replica after the other.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from commprof.errors import TraceError
from commprof.trace import columns
from commprof.trace.documents import Group
from commprof.trace.lookup import row_containing
from commprof.trace.reader import Trace, read_trace
from commprof.trace.run.endings import attempt_paths, holds_traces, rank_problems
from commprof.trace.schema import Kind
from commprof.units import ns_to_s


@dataclass(frozen=True)
class Life:
    """One start of a replica, with the traces of its ranks."""

    replica: int
    #: Name that torchft gave the replica; empty if unknown.
    label: str
    directory: Path
    #: Traces by rank within the replica.
    traces: dict[int, Trace]
    #: Wall-clock times in seconds: start of the first trace, and last record of any rank.
    begin_s: float
    end_s: float

    @property
    def steps(self) -> int:
        """Number of steps that all ranks of the replica completed."""
        return min(len(columns.steps(trace)) for trace in self.traces.values())

    @property
    def ending(self) -> str:
        """Sentences on ranks that were disturbed or did not end normally; empty if none."""
        return "; ".join(rank_problems(list(self.traces.values())))


@dataclass(frozen=True)
class Replicas:
    """All lives of a job's replicas, and a world with one life of each replica.

    The world contains the last life of each replica that communicated with another replica. If
    there is no such life, the world contains the replica's last life.
    """

    #: Sorted by replica, then by time.
    lives: tuple[Life, ...]
    #: Traces of the world, by rank in the world. Rank, world size, groups and step numbers in these
    #: traces are changed to those of the world.
    traces: dict[int, Trace]


def replicas_of(run: Path) -> Replicas | None:
    """Reads the replicas that recorded into a directory and its ``job_N``; None if there are none.

    Raises:
        OSError: a directory cannot be read.
    """
    jobs = sorted(run.glob("job_*"), key=lambda job: (len(job.name), job.name))
    directories = list(filter(holds_traces, [run, *jobs]))
    if len(directories) < 2:
        return None
    found = [
        (path, attempt)
        for place in directories
        for attempt, paths in attempt_paths(place).items()
        for path in paths.values()
    ]
    stamps = [(stat.st_mtime_ns, stat.st_size) for stat in (os.stat(path) for path, _ in found)]
    return _read_once(os.path.abspath(run), tuple(found), tuple(stamps))


@functools.lru_cache(maxsize=1)
def _read_once(
    _run: str, found: tuple[tuple[Path, int], ...], _stamps: tuple[tuple[int, int], ...]
) -> Replicas | None:
    """Reads and joins replicas; ``_run`` and ``_stamps`` are only keys of the cache."""
    starts: dict[_Start, dict[int, Trace]] = {}
    for path, attempt in found:
        with suppress(TraceError, OSError):  # a report on the job alone names the error
            trace = read_trace(path)
            starts.setdefault((path.parent, attempt), {})[trace.rank] = trace
    lives = _together(starts)
    if len({life.directory for life in lives}) < 2:
        return None
    chains = _chains(lives)
    numbered = [
        replace(life, replica=number) for number, chain in enumerate(chains) for life in chain
    ]
    return Replicas(tuple(numbered), _world([_told_life(chain, lives) for chain in chains]))


def _told_life(chain: Sequence[Life], lives: Sequence[Life]) -> Life:
    """Returns the life of a replica that becomes part of the world; see :class:`Replicas`."""
    others = {key for life in lives if life not in chain for key in _calls(life)}
    return next((life for life in reversed(chain) if _calls(life) & others), chain[-1])


def _calls(life: Life) -> set[tuple[str, int]]:
    return {key for trace in life.traces.values() for key in _steps_of_calls(trace)}


#: Directory of traces, and index of the attempt.
_Start: TypeAlias = "tuple[Path, int]"


def _together(starts: dict[_Start, dict[int, Trace]]) -> list[Life]:
    """Returns the first directory's lives, and all lives that shared groups link to these."""
    tokens = {
        start: {g.token for trace in traces.values() for g in trace.groups.values() if g.token}
        for start, traces in starts.items()
    }
    joined = list(starts)[:1]
    for start in joined:  # the loop appends to this list
        joined += [
            other
            for other in starts
            if other not in joined and (other[0] == start[0] or tokens[other] & tokens[start])
        ]
    return [_life(start[0], starts[start]) for start in joined]


def _life(directory: Path, traces: dict[int, Trace]) -> Life:
    begin_s, end_s = [], []
    for trace in traces.values():
        clock = trace.metadata["clock"]
        offset_ns = clock["realtime_ns"] - clock["monotonic_ns"]
        last = int(trace.records["timestamp_ns"][-1]) if len(trace.records) else 0
        begin_s.append(ns_to_s(clock["realtime_ns"]))
        end_s.append(ns_to_s(max(last, clock["monotonic_ns"]) + offset_ns))
    label = str(next(iter(traces.values())).metadata.get("replica") or "")
    return Life(0, label, directory, dict(sorted(traces.items())), min(begin_s), max(end_s))


def _chains(lives: Sequence[Life]) -> list[list[Life]]:
    """Returns the lives of each replica, in order of time.

    Two lives belong to the same replica if the first ended before the second began, and if both
    have the same label. If a label is unknown, both must have the same ``_place``.
    """
    chains: list[list[Life]] = []
    for life in sorted(lives, key=lambda life_of: life_of.begin_s):
        before = [c for c in chains if c[-1].end_s <= life.begin_s and _is_same(c[-1], life)]
        if before:
            max(before, key=lambda chain: chain[-1].end_s).append(life)
        else:
            chains.append([life])
    return sorted(chains, key=lambda chain: (_place(chain[-1])[1], chain[0].begin_s))


def _is_same(life: Life, other: Life) -> bool:
    if life.label and other.label:
        return life.label == other.label
    return _place(life) == _place(other)


def _place(life: Life) -> tuple[int, int]:
    """Returns size and own rank of the largest group between replicas; (0, 0) without a group."""
    groups = [g for trace in life.traces.values() for g in trace.groups.values() if g.token]
    largest = max(groups, key=lambda group: (group.size, group.id), default=None)
    return (0, 0) if largest is None else (largest.size, largest.rank)


def _world(lives: Sequence[Life]) -> dict[int, Trace]:
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
    return group if group.token else replace(group, name=f"{group.name} of replica {replica}")


def _with_common_steps(traces: Sequence[Trace]) -> list[Trace]:
    """Renumbers steps so that a collective between replicas has the same step number on all ranks.

    Each process counts steps from its own start. A rank that such collectives do not link with the
    first rank, directly or through other ranks, keeps its numbers.
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
        _shifted(trace, shift[position] - lowest) if position in shift else trace
        for position, trace in enumerate(traces)
    ]


def _pairs(found: Sequence[dict[tuple[str, int], int]]) -> list[tuple[int, int]]:
    reached, pairs = [0], []
    for known in reached:  # the loop appends to this list
        for new in range(len(found)):
            if new not in reached and found[known].keys() & found[new].keys():
                reached.append(new)
                pairs.append((known, new))
    return pairs


def _steps_of_calls(trace: Trace) -> dict[tuple[str, int], int]:
    """Returns the step of each collective between replicas, by token and sequence number."""
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
