"""Tells the starts of a job apart that wrote logs of the same communicators into one folder.

NCCL derives a communicator's id from random bytes, but not if ``NCCL_COMM_ID`` is set: then a job
that is started again uses the same ids, and counts its calls from the beginning again. Each rank
then has one process per start. In the order of their dumps, the first processes of all ranks belong
to the first start, and so on. If a rank left no log in some starts, its processes belong to the
starts whose dumps are nearest, if possible by the clock of the same host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commprof._reading import InspectorMember


def by_start(
    processes: Mapping[int, Sequence[InspectorMember]],
) -> list[dict[int, InspectorMember]]:
    """Returns the members of a communicator by rank, for each start of the job.

    Args:
        processes: of each rank, the members that the rank's processes logged; at least one each.
    """
    count = max(len(members) for members in processes.values())
    in_order = {
        rank: sorted(members, key=lambda member: (member.dumped_us[0], member.pid))
        for rank, members in processes.items()
    }
    starts: list[dict[int, InspectorMember]] = [{} for _ in range(count)]
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
    return [dict(sorted(start.items())) for start in starts]


def _apart_us(member: InspectorMember, others: Collection[InspectorMember]) -> int:
    """Returns the time between a member's dumps and the nearest ones; negative if they overlap."""
    of_host = [other for other in others if other.host == member.host]
    begin_us, end_us = member.dumped_us
    return min(
        max(other.dumped_us[0] - end_us, begin_us - other.dumped_us[1])
        for other in of_host or others
    )
