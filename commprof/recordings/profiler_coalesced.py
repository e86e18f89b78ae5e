"""Finds the calls of c10d that NCCL runs together, as one group.

Between ``_start_coalescing`` and ``_end_coalescing``, c10d only collects calls;
``batch_isend_irecv`` is an example. ``ncclGroupEnd`` then launches one or a few kernels for all
calls, in a range such as ``nccl:coalesced``. The kernels do not name the calls, and the operators
of the calls end before the range begins. If the first collective of a group has sequence number n,
all further collectives of the group have number n + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_calls import MOST_BYTES, Call
from commprof.recordings.profiler_events import COLUMNS_OF_DEVICE, ProfilerEvents
from commprof.recordings.profiler_kinds import COLLECTIVE
from commprof.recordings.profiler_named import EventTable, EventTexts
from commprof.trace.schema import OPS

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_MESSAGES: Final = ("send", "recv")
_GROUP: Final = "Process Group Name"


def members_of_groups(
    events: ProfilerEvents, ranges: EventTable, innermost: Ints
) -> dict[int, list[int]]:
    """Returns the operators of the calls in each group, in order of issue.

    Args:
        events: the trace's events.
        ranges: c10d's ranges and operators.
        innermost: for each kernel, the row of the innermost range around its launch, or -1.

    Returns:
        Rows of operators in ``ranges``, by the row of the range that launched the group's kernels.
    """
    texts = events.ranges.texts
    ends_group = texts.mask(_ends_group)
    if not ends_group.any():
        return {}
    ends_group = ends_group[ranges.name]
    launching = np.unique(innermost[innermost >= 0])
    launching = launching[ends_group[launching]]
    if not len(launching):
        return {}
    is_call = _names_collective(ranges, texts)
    members: dict[int, list[int]] = {}
    for thread in np.unique(ranges.thread[launching]).tolist():
        mine = ranges.thread == thread
        calls = np.flatnonzero(mine & is_call)
        calls = calls[np.argsort(ranges.begin_ns[calls], kind="stable")]
        has_kernel = _launch_communication(events, thread, ranges.rows(calls))
        begins_ns = np.sort(ranges.begin_ns[mine & ends_group])
        for row in launching[ranges.thread[launching] == thread].tolist():
            begin_ns = int(ranges.begin_ns[row])
            before = int(np.searchsorted(begins_ns, begin_ns)) - 1
            since_ns = int(begins_ns[before]) if before >= 0 else -1
            last = int(np.searchsorted(ranges.end_ns[calls], begin_ns, side="right"))
            first = int(np.searchsorted(ranges.begin_ns[calls], since_ns))
            while last > first and not has_kernel[last - 1]:
                first_row = int(calls[last - 1])
                group = members.setdefault(row, [])
                if group and not _precedes(ranges, texts, first_row, group):
                    break
                group.insert(0, first_row)
                last -= 1
    return members


def _names_collective(ranges: EventTable, texts: EventTexts) -> Mask:
    different, row = np.unique(ranges.arguments, return_inverse=True)
    names = [isinstance(texts.arguments[n].get(COLLECTIVE), str) for n in different.tolist()]
    return np.array(names, np.bool_)[row]


def _launch_communication(events: ProfilerEvents, thread: int, calls: EventTable) -> Mask:
    """True for operators that launched a kernel which may be communication.

    A kernel may be communication if it was recorded as communication or was not recorded.
    """
    ids = np.frombuffer(events.launched, np.int64)
    mine = np.frombuffer(events.launching_thread, np.int64) == thread
    for name in COLUMNS_OF_DEVICE:
        tags = getattr(events, name).tag
        if len(tags):
            mine &= ~np.isin(ids, np.frombuffer(tags, np.int64))
    launched_ns = np.sort(np.frombuffer(events.launched_ns, np.int64)[mine])
    until = np.searchsorted(launched_ns, calls.end_ns, side="right")
    since = np.searchsorted(launched_ns, calls.begin_ns)
    launches: Mask = until > since
    return launches


def _precedes(ranges: EventTable, texts: EventTexts, row: int, members: Sequence[int]) -> bool:
    """True if an operator's call may belong to a group, directly before the given members.

    The operator and the first member must have the same process group. The operator's sequence
    number must be unknown, equal to the first member's number, or less by 1. It may be less by 1
    only if the first two members have equal numbers.
    """
    later = members[0]
    groups = [texts.arguments[int(ranges.arguments[call])].get(_GROUP) for call in (row, later)]
    if groups[0] != groups[1]:
        return False
    seq, next_seq = int(ranges.seq[row]), int(ranges.seq[later])
    if seq < 0 or next_seq < 0 or seq == next_seq:
        return True
    is_second = len(members) == 1 or int(ranges.seq[members[1]]) == next_seq
    return seq == next_seq - 1 and is_second


def merged(calls: Sequence[Call], kernel: Call) -> Call:
    """Returns one call for a kernel that serves several calls; the sizes are added.

    Args:
        calls: the calls of the group, as their operators describe them.
        kernel: the call that was made from the kernel alone.
    """
    op, first, has_one_peer = kernel.op, calls[0], _have_one_peer(calls)
    if kernel.guessed:
        op = _operation(calls)
    sent, received, is_told = [*calls], [*calls], all(call.dtype for call in calls)
    if op == "other":  # different operations: sizes are known only if all are messages
        sent, received = ([call for call in calls if call.op == name] for name in _MESSAGES)
        is_told &= len(sent) + len(received) == len(calls)
    if not is_told:
        sent, received = [], []
    is_output_known = all(call.bytes_out >= 0 for call in received)
    return replace(
        first,
        op=kernel.op if op == "other" else op,
        peer=first.peer if has_one_peer else 0,
        root_known=first.root_known and has_one_peer,
        dtype=", ".join(dict.fromkeys(call.dtype for call in calls)) if is_told else "",
        elements=sum(call.elements for call in sent),
        bytes_in=min(sum(call.bytes_in for call in sent), MOST_BYTES),
        bytes_out=min(sum(call.bytes_out for call in received), MOST_BYTES)
        if is_output_known
        else -1,
        guessed=op == "other" and kernel.guessed,
    )


def _operation(calls: Sequence[Call]) -> str:
    """Returns the common operation of a group's calls; "other" if the operations differ.

    Messages to several ranks count as "other".
    """
    ops = {call.op for call in calls}
    op = calls[0].op
    if len(ops) > 1 or (op in _MESSAGES and not _have_one_peer(calls)):
        return "other"
    whole = f"{op}_coalesced"
    return whole if len(calls) > 1 and whole in OPS else op


def _have_one_peer(calls: Sequence[Call]) -> bool:
    return len({call.peer for call in calls}) == 1


def _ends_group(name: str) -> bool:
    """True for the range in which NCCL launches the kernels of a group."""
    return name.lower().endswith(":coalesced")
