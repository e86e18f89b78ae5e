"""Finds the process group of each collective on the host.

Operators and ranges of gloo do not name their group. torch lists a rank's groups in each trace, and
the tensors of a collective may show how many ranks take part. If exactly one listed group fits, the
collective belongs to this group. Otherwise the group is not known, and the collective cannot be
matched with collectives of other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from commprof.recordings.profiler_calls import Call, output_bytes
from commprof.trace.documents import MOST_RANKS


@dataclass(frozen=True)
class ListedGroup:
    """A process group in a trace's ``distributedInfo``."""

    name: str
    description: str
    ranks: tuple[int, ...]
    size: int
    #: Names of its backends and of their device types, in lower case; empty if not recorded.
    backends: frozenset[str]


def listed_groups(about: dict[str, Any]) -> list[ListedGroup] | None:
    """Returns the groups that a trace's ``distributedInfo`` lists; None if it lists none."""
    listed = about.get("pg_config")
    if not isinstance(listed, list) or not listed:
        return None
    groups = []
    for entry in listed:
        if not isinstance(entry, dict):
            return None
        backends = str(entry.get("backend_config", "")).lower().replace(":", ",").split(",")
        ranks = entry.get("ranks")
        if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
            ranks = []
        size = entry.get("pg_size")
        size = size if type(size) is int and 0 < size <= MOST_RANKS else len(ranks)
        members = tuple(ranks) if len(ranks) == size else ()
        name, description = entry.get("pg_name"), entry.get("pg_desc")
        groups.append(
            ListedGroup(
                name if isinstance(name, str) else "",
                description if isinstance(description, str) else "",
                members,
                size,
                frozenset(filter(None, backends)),
            )
        )
    return groups


def with_group(
    call: Call, listed: Sequence[ListedGroup] | None, rank: int, world_size: int
) -> Call:
    """Returns the call with its group and the sizes that follow from the group, if known.

    Args:
        call: a call; its ``group_size`` is 0 if neither tensors nor metadata show it.
        listed: see :func:`listed_groups`.
        rank: global rank that made the call.
        world_size: number of ranks of the job; 0 if not known.
    """
    if call.group:
        return _with_sizes(call)
    if call.group_size > world_size:
        call = replace(call, group_size=0)
    if listed is None and not world_size:
        return of_unknown_job(call)
    everyone = ListedGroup("", "", tuple(range(world_size)), world_size, frozenset())
    if listed is None:
        # In a job of two ranks, or if the call's group is as large as the job, the group has all
        # ranks.
        listed = [everyone] if world_size <= 2 or call.group_size == world_size else []
    fitting = [
        group
        for group in listed
        if call.group_size in (0, group.size)
        and (rank in group.ranks or not group.ranks)
        and (call.backend in group.backends or not call.backend or not group.backends)
    ]
    sizes = {group.size for group in fitting}
    members = {group.ranks for group in fitting}
    size = call.group_size or (sizes.pop() if len(sizes) == 1 else 0)
    if len(members) != 1 or members == {()}:
        return _with_sizes(replace(call, group_size=size, group_known=False))
    (ranks,) = members
    only = fitting[0] if len(fitting) == 1 else replace(fitting[0], name="", description="")
    return _with_sizes(
        replace(
            call,
            group=only.name,
            group_description=only.description,
            group_size=size,
            group_ranks=ranks,
        )
    )


def of_unknown_job(call: Call) -> Call:
    """Returns the call; its group counts as unknown if the group's size is unknown."""
    return call if call.group_size else _with_sizes(replace(call, group_known=False))


def _with_sizes(call: Call) -> Call:
    """Computes sizes that were not recorded; sets all sizes to 0 if that is not possible."""
    op, ranks = call.op, call.group_size
    output_lacks = call.bytes_out < 0
    input_lacks = call.bytes_in == 0 < call.bytes_out
    needs_ranks = (
        op in ("gather", "scatter")
        or (op.startswith("all_gather") and output_lacks)
        or (op.startswith("reduce_scatter") and input_lacks)
    )
    if needs_ranks and ranks == 0:
        return replace(call, dtype="", elements=0, bytes_in=0, bytes_out=0)
    if op.startswith("reduce_scatter") and input_lacks:
        return replace(call, elements=call.elements * ranks, bytes_in=call.bytes_out * ranks)
    if output_lacks:
        return replace(call, bytes_out=output_bytes(op, call.bytes_in, ranks))
    return call
