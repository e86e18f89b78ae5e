"""Separates the logs of a job that was started several times with the same communicator ids.

NCCL derives a communicator's id from random bytes. But if ``NCCL_COMM_ID`` is set, a job that is
started again uses the same ids. Each rank then has one process per start. The processes of a rank
are assigned to the starts in the order of their dumps. If a rank left no log in some starts, its
processes are assigned to the starts with the nearest dumps.

Jobs on several hosts also have the same ids if each job uses the address 127.0.0.1. So if each host
has one process of every rank, the processes of each host are one start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from commprof._reading import InspectorMember


class Logged(NamedTuple):
    """Log of one process about one communicator; several logs are joined."""

    member: InspectorMember
    begin_us: int
    #: Time of the last dump in all logs of the process; ``member`` has the times of the first log.
    end_us: int


def by_start(processes: Mapping[int, Sequence[Logged]]) -> list[dict[int, InspectorMember]]:
    """Returns the members of a communicator by rank, for each start of the job.

    Args:
        processes: logs of the processes of each rank; each rank has at least one process.
    """
    count = max(len(members) for members in processes.values())
    hosts = [sorted(log.member.host for log in members) for members in processes.values()]
    has_own_host = len(set(hosts[0])) == count and all(of_rank == hosts[0] for of_rank in hosts)
    in_order = {
        rank: sorted(
            members,
            key=lambda log: (log.member.host if has_own_host else "", log.begin_us, log.member.pid),
        )
        for rank, members in processes.items()
    }
    starts: list[dict[int, Logged]] = [{} for _ in range(count)]
    for rank, members in in_order.items():
        if len(members) == count:
            for start, member in zip(starts, members, strict=True):
                start[rank] = member
    complete = [list(start.values()) for start in starts]
    for rank, members in in_order.items():
        if len(members) < count:
            first = 0
            for index, member in enumerate(members):
                left_after = len(members) - index - 1
                possible = range(first, count - left_after)
                number = min(possible, key=lambda start: _apart_us(member, complete[start]))
                starts[number][rank] = member
                first = number + 1
    return [{rank: start[rank].member for rank in sorted(start)} for start in starts]


def _apart_us(logged: Logged, others: Collection[Logged]) -> int:
    """Returns the gap between a process's dumps and the nearest other dumps; negative for overlap.

    Processes on other hosts count only if no other process is on the same host.
    """
    of_host = [other for other in others if other.member.host == logged.member.host]
    return min(
        max(other.begin_us - logged.end_us, logged.begin_us - other.end_us)
        for other in of_host or others
    )
