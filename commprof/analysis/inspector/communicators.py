"""Splits the times in NCCL Inspector's logs into waiting and transfer, for each communicator.

``csrc/inspector/waits.h`` states the rule: kernels of one collective end together, so the shortest
time of all ranks is the transfer, and the rank with this time came last.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from commprof.analysis.inspector.kinds import MESSAGE_PAIR, MESSAGES, SPLIT
from commprof.analysis.inspector.starts import Logged, by_start
from commprof.analysis.inspector.steps import RepeatedCalls, repeated_calls
from commprof.recordings.inspector import InspectorLogs
from commprof.text import counted, named_ranks

if TYPE_CHECKING:
    from commprof._reading import InspectorMember, InspectorWaits

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: A run is divided into parts (blocks) with equal numbers of calls. There are ``_FEWEST_BLOCKS`` to
#: ``_MOST_BLOCKS`` parts. If possible, each part has ``_CALLS_A_BLOCK`` calls or more, because the
#: parts of two communicators begin at slightly different times.
_MOST_BLOCKS, _FEWEST_BLOCKS, _CALLS_A_BLOCK = 200, 12, 8


@dataclass(frozen=True)
class Process:
    """A process of the job. It usually drives one GPU."""

    host: str
    #: -1 if the logs do not give it.
    pid: int

    @property
    def label(self) -> str:
        """Host and process id, for reports."""
        return f"{self.host or 'unknown host'} pid {self.pid}" if self.pid >= 0 else self.host


@dataclass(frozen=True)
class Operations:
    """Operations of one kind on one communicator."""

    #: NCCL's name, or "SendRecv" for messages.
    kind: str
    waits: InspectorWaits
    #: True if waiting was separated from transfer.
    is_split: bool
    graph_captured: int


@dataclass(frozen=True)
class InspectedCommunicator:
    """A communicator with the processes that recorded it."""

    #: NCCL's id. If a job was started again with the same ids, the number of the start is appended.
    id: str
    #: Name that the job gave to the communicator; "" if none.
    name: str
    #: Size of the communicator, as NCCL reports it.
    ranks: int
    nodes: int
    #: Ranks in the communicator that left a log.
    recorded: tuple[int, ...]
    #: For each rank in ``recorded``, the index of its process in ``InspectedJob.processes``.
    process: npt.NDArray[np.int64]
    operations: tuple[Operations, ...]
    #: Number of records that NCCL Inspector's ring buffers lost. Logs before format v4.1 do not
    #: contain it.
    dropped: int
    #: Number of records. The key is the operation, NCCL's size in bytes, and the algorithm with its
    #: protocol, such as "RING/LL". Empty if the format does not name algorithms.
    algorithms: dict[tuple[str, int, str], int]

    @property
    def label(self) -> str:
        """Name, or the id if there is no name."""
        return self.name or self.id

    @property
    def missing(self) -> int:
        """Number of ranks that left no log."""
        return self.ranks - len(self.recorded)

    @property
    def split(self) -> list[InspectorWaits]:
        """Waits of all split operations."""
        return [each.waits for each in self.operations if each.is_split]


def per_block(waits: Sequence[InspectorWaits], name: str, blocks: int, ranks: int) -> Floats:
    """Sums ``caused_us`` or ``waited_us`` over kinds of operations, as ``[block, rank]``."""
    total = np.zeros((blocks, ranks))
    for one in waits:
        total += getattr(one, name)
    return total


@dataclass(frozen=True)
class InspectedJob:
    """All communicators of a job."""

    processes: tuple[Process, ...]
    communicators: tuple[InspectedCommunicator, ...]
    blocks: int
    problems: tuple[str, ...]
    #: For each communicator with collectives, the calls that repeat; None if no calls repeat.
    repeated: tuple[RepeatedCalls | None, ...] = ()


class Splitter(Protocol):
    """Splits operations of a communicator's members into waiting and transfer."""

    def collectives(
        self, members: Sequence[InspectorMember], kind: str, ranks: int, blocks: int
    ) -> InspectorWaits:
        """Splits operations in which every rank waits for all others."""

    def messages(self, members: Sequence[InspectorMember], blocks: int) -> InspectorWaits:
        """Splits sends and recvs."""

    def unsplit(self, members: Sequence[InspectorMember], kind: str) -> InspectorWaits:
        """Sums up operations whose waiting is not known."""


class _WholeLogs:
    def collectives(
        self, members: Sequence[InspectorMember], kind: str, ranks: int, blocks: int
    ) -> InspectorWaits:
        from commprof._reading import inspector_collectives

        return inspector_collectives(members, kind, ranks, blocks)

    def messages(self, members: Sequence[InspectorMember], blocks: int) -> InspectorWaits:
        from commprof._reading import inspector_messages

        return inspector_messages(members, blocks)

    def unsplit(self, members: Sequence[InspectorMember], kind: str) -> InspectorWaits:
        from commprof._reading import inspector_unsplit

        return inspector_unsplit(members, kind)


#: Members of each communicator, by rank; the key of a communicator is its id and its size.
ById = dict[tuple[str, int], dict[int, "InspectorMember"]]


def members_by_id(members: Iterable[InspectorMember]) -> tuple[ById, list[str]]:
    """Returns the members of each communicator, and caveats about them.

    Logs of the same process are joined. If a job was started again with the same ids, each start
    has communicators of its own.
    """
    from commprof._reading import inspector_join

    logged: dict[tuple[str, int], dict[int, dict[Process, list[InspectorMember]]]] = {}
    for member in members:
        of_rank = logged.setdefault((member.id, member.ranks), {}).setdefault(member.rank, {})
        of_rank.setdefault(Process(member.host, member.pid), []).append(member)
    by_id: ById = {}
    again: list[tuple[str, int]] = []
    overlapping = 0
    for (communicator_id, ranks), processes in logged.items():
        joined: dict[int, list[Logged]] = {}
        for rank, of_rank in processes.items():
            for logs in of_rank.values():
                if len(logs) > 1:
                    whole = inspector_join(logs)
                    overlapping += len(logs) - len(whole)
                    logs = whole
                dumped_us = logs[0].dumped_us[0], logs[-1].dumped_us[1]
                joined.setdefault(rank, []).append(Logged(logs[0], *dumped_us))
        starts = by_start(joined)
        for number, start in enumerate(starts, 1):
            of_start = f"{communicator_id} of start {number}" if number > 1 else communicator_id
            by_id[of_start, ranks] = start
        if len(starts) > 1:
            again.append((communicator_id, len(starts)))
    return by_id, [*_overlapping(overlapping), *_again(again)]


def _overlapping(logs: int) -> Iterator[str]:
    if logs:
        yield (
            f"left out: {counted(logs, 'log')} with dumps that overlap the dumps in another log of "
            "the same rank and process, as in copies of a log. The longest of these logs is used"
        )


def _again(communicators: Sequence[tuple[str, int]]) -> Iterator[str]:
    if communicators:
        communicator_id, starts = max(communicators, key=lambda started: started[1])
        were = "was" if len(communicators) == 1 else "were"
        yield (
            f"{counted(len(communicators), 'communicator')} {were} made again by other processes "
            f"(a rank of {communicator_id} had {starts} processes): a job was probably started "
            "again with the same NCCL_COMM_ID. Each start counts as a communicator of its own. The "
            "times of the dumps show to which start a log belongs"
        )


def split_job(logs: InspectorLogs) -> InspectedJob:
    """Splits every communicator's times into waiting and transfer."""
    by_id, problems = members_by_id(logs.members)
    calls = max(count for member in logs.members for count, _ in member.kinds.values())
    blocks = min(_MOST_BLOCKS, max(_FEWEST_BLOCKS, calls // _CALLS_A_BLOCK))
    processes: dict[Process, int] = {}
    communicators = split_communicators(by_id, processes, _WholeLogs(), blocks)
    repeated = tuple(
        repeated_calls(one.label, one.ranks, [member for _, member in sorted(ranks.items())])
        for one, ranks in zip(communicators, by_id.values(), strict=True)
        if any(each.kind != MESSAGE_PAIR for each in one.operations)
    )
    problems += _missing(communicators) or _apart(communicators, len(processes))
    problems += _of_several_ranks(communicators)
    return InspectedJob(tuple(processes), communicators, blocks, tuple(problems), repeated)


def split_communicators(
    by_id: ById, processes: dict[Process, int], splitter: Splitter, blocks: int
) -> tuple[InspectedCommunicator, ...]:
    """Splits the operations of each communicator, using several threads.

    Args:
        by_id: the members.
        processes: indices of the processes; new processes are added.
        splitter: how to split.
        blocks: number of parts into which the run is divided.
    """
    places = {
        key: np.array(
            [
                processes.setdefault(Process(member.host, member.pid), len(processes))
                for _, member in sorted(ranks.items())
            ],
            dtype=np.int64,
        )
        for key, ranks in by_id.items()
    }

    def split(key: tuple[str, int]) -> InspectedCommunicator:
        members = [member for _, member in sorted(by_id[key].items())]
        return _communicator(*key, members, places[key], splitter, blocks)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return tuple(pool.map(split, by_id))


def _communicator(
    communicator_id: str,
    ranks: int,
    members: Sequence[InspectorMember],
    process: npt.NDArray[np.int64],
    splitter: Splitter,
    blocks: int,
) -> InspectedCommunicator:
    return InspectedCommunicator(
        id=communicator_id,
        name=next((member.name for member in members if member.name), ""),
        ranks=ranks,
        nodes=members[0].nodes,
        recorded=tuple(member.rank for member in members),
        process=process,
        operations=tuple(_operations(ranks, members, splitter, blocks)),
        dropped=sum(member.dropped for member in members),
        algorithms=_algorithms(members),
    )


def _algorithms(members: Sequence[InspectorMember]) -> dict[tuple[str, int, str], int]:
    total: Counter[tuple[str, int, str]] = Counter()
    for member in members:
        for kind, size_bytes, name, records in member.algorithms:
            total[kind, size_bytes, name] += records
    return dict(total)


def _operations(
    ranks: int, members: Sequence[InspectorMember], splitter: Splitter, blocks: int
) -> list[Operations]:
    captured: Counter[str] = Counter()
    for member in members:
        captured.update({kind: count for kind, (_, count) in member.kinds.items()})
        captured.update(dict.fromkeys(member.kinds, 0))
    made = []
    for kind in sorted(set(captured) - {*MESSAGES}):
        # If a kind is not in SPLIT, it is not known for whom a rank waits. Time beyond the shortest
        # time of all ranks then counts as waiting for unknown ranks.
        if ranks > 1:
            waits = splitter.collectives(members, kind, ranks, blocks)
        else:
            waits = splitter.unsplit(members, kind)
        made.append(Operations(kind, waits, kind in SPLIT and ranks > 1, captured[kind]))
    if set(captured) & {*MESSAGES}:
        waits = splitter.messages(members, blocks)
        captured_messages = sum(captured[kind] for kind in MESSAGES)
        made.append(Operations(MESSAGE_PAIR, waits, True, captured_messages))
    return made


def _missing(communicators: Sequence[InspectedCommunicator]) -> list[str]:
    lacking = [each for each in communicators if each.missing]
    if not lacking:
        return []
    most = max(lacking, key=lambda each: each.missing)
    absent = sorted(set(range(most.ranks)) - {*most.recorded})
    shown = (
        f"{named_ranks(absent)} of {most.label}"
        if len(absent) <= 8
        else (f"{len(absent)} of the {most.ranks} ranks of {most.label}")
    )
    return [
        f"{counted(len(lacking), 'communicator')} {'lacks' if len(lacking) == 1 else 'lack'} the "
        f"logs of some ranks ({shown}). In such a communicator, the true waiting may be longer "
        "than shown, and the true transfer shorter. A rank without a log may have come later than "
        "the ranks that are named"
    ]


def process_sets(communicators: Sequence[InspectedCommunicator], processes: int) -> Ints:
    """Returns a number for each process, equal for processes that communicators connect."""
    sets = list(range(processes))

    def set_of(process: int) -> int:
        while sets[process] != process:
            process = sets[process]
        return process

    for communicator in communicators:
        first, *others = communicator.process.tolist()
        for other in others:
            sets[set_of(other)] = set_of(first)
    return np.array([set_of(process) for process in range(processes)], dtype=np.int64)


def _apart(communicators: Sequence[InspectedCommunicator], processes: int) -> list[str]:
    _, sizes = np.unique(process_sets(communicators, processes), return_counts=True)
    if len(sizes) == 1:
        return []
    return [
        f"the processes form {len(sizes)} sets that share no communicator; the largest set has "
        f"{sizes.max()} of the {processes} processes. All means are over all processes. If the "
        "sets are different jobs or runs, put the logs of each job or run into its own folder"
    ]


def _of_several_ranks(communicators: Sequence[InspectedCommunicator]) -> list[str]:
    several: set[int] = set()
    for communicator in communicators:
        processes, ranks = np.unique(communicator.process, return_counts=True)
        several.update(processes[ranks > 1].tolist())
    if not several:
        return []
    return [
        f"{len(several)} of the processes have several ranks in one communicator, because a "
        "process drives several GPUs. All ranks of a process count together, so a process may wait "
        "for itself"
    ]
