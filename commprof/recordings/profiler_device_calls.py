"""Finds the communication kernels of a device, and describes the call of each kernel.

The operation is taken from the kernel's arguments, or else from c10d's range around the launch
(``nccl:all_reduce``). If there is no such range, the operation is derived from the kernel's name.
NCCL may use the same kernel name for several operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_call_columns import CallColumns, CallKinds, Launching, kinds_of
from commprof.recordings.profiler_calls import Call, described, launches, sizes_of
from commprof.recordings.profiler_coalesced import members_of_groups, merged
from commprof.recordings.profiler_events import ProfilerEvents
from commprof.recordings.profiler_kinds import COLLECTIVE
from commprof.recordings.profiler_named import (
    ABSENT,
    EventTable,
    EventTexts,
    NamedEvents,
    joined,
)
from commprof.recordings.profiler_words import operation
from commprof.trace.lookup import numbered
from commprof.trace.schema import NO_SEQ

Ints = npt.NDArray[np.int64]

#: Largest depth of nested ranges that is searched. c10d's ranges are three or four deep.
_DEEPEST: Final = 64


def device_calls(events: ProfilerEvents, device: int, world_size: int) -> CallColumns:
    """Returns the communication kernels of one device, in order of their start times.

    Copies between devices count too if c10d launched them, because collectives may run on copy
    engines.
    """
    kernels = _in_order(events.communication, device)
    copies = _in_order(events.between_devices, device)
    both = joined((kernels, copies))
    launched_ns, thread = launches(events, both.correlation)
    ranges, texts = _ranges_of(events), events.ranges.texts
    around = _around(ranges, both, thread, launched_ns, texts)
    kinds = kinds_of(events)
    kind = _kinds(texts, kinds, both, ranges, around, world_size)
    seq = _numbers(both, ranges, around)
    _describe_groups(events, kinds, kind, seq, both, ranges, around, world_size)
    columns = {
        "seq": seq,
        "launch_ns": np.where(launched_ns >= 0, launched_ns, both.begin_ns),
        "launch_thread": thread,
        "begin_ns": both.begin_ns,
        "end_ns": both.end_ns,
        "device": both.device,
        "replay": _replays(events, both.correlation),
    }
    calls = CallColumns(kinds, kind, columns, Launching(around.best, around.inside))
    if not len(copies.name):
        return calls
    is_theirs = ~calls.of_kind(_is_guessed, np.bool_)
    is_theirs[: len(kernels.name)] = True
    rows = np.flatnonzero(is_theirs)
    return calls.rows(rows[np.lexsort((both.end_ns[rows], both.begin_ns[rows]))])


def _replays(events: ProfilerEvents, correlation: Ints) -> Ints:
    """Returns the correlation id of the graph launch that ran each kernel, or -1.

    A launch that was not recorded counts as a graph launch if it ran several kernels.
    """
    graphs = np.asarray(events.graph_launched, np.int64)
    lost = np.setdiff1d(correlation[correlation > 0], np.asarray(events.launched, np.int64))
    if len(lost):
        of_kernels = np.append(correlation, np.asarray(events.kernels.tag, np.int64))
        launched, kernels = np.unique(of_kernels[np.isin(of_kernels, lost)], return_counts=True)
        graphs = np.append(graphs, launched[kernels > 1])
    return np.where(np.isin(correlation, graphs) & (correlation >= 0), correlation, -1)


def _in_order(events: NamedEvents, device: int) -> EventTable:
    table = events.table.rows(events.table.device == device)
    return table.rows(np.lexsort((table.end_ns, table.begin_ns)))


def _is_guessed(kind: Call) -> bool:
    return kind.guessed


def _is_operation(name: str) -> bool:
    return operation(name) != "other"


def _ranges_of(events: ProfilerEvents) -> EventTable:
    """Returns c10d's ranges and operators.

    If the arguments of an operator name a collective, the operator gets the collective's name.
    """
    issued, texts = events.issued.table, events.issued.texts
    kind_of: dict[int, int] = texts.known.setdefault(COLLECTIVE, {})
    different, argument_row = numbered(issued.arguments)
    for number in different.tolist():
        if number not in kind_of:
            name = texts.arguments[number].get(COLLECTIVE)
            kind_of[number] = texts.name(name) if isinstance(name, str) else -1
    renamed = np.array([kind_of[number] for number in different.tolist()], np.int64)[argument_row]
    named = issued._replace(name=np.where(renamed >= 0, renamed, issued.name))
    return joined((events.ranges.table.rows(events.backend_range_rows), named))


class _Around(NamedTuple):
    """Rows of c10d's ranges in which each kernel was launched; -1 stands for no range."""

    #: Ranges around the launch of each kernel, innermost first, ``[depth, kernel]``.
    inside: Ints
    #: The innermost range around the launch that names an operation. If there is none, it is the
    #: range with the kernel's External id.
    best: Ints
    #: True if ``best`` is around the launch.
    is_inside: npt.NDArray[np.bool_]


def _around(
    ranges: EventTable, kernels: EventTable, thread: Ints, launched_ns: Ints, texts: EventTexts
) -> _Around:
    order = np.lexsort((-ranges.end_ns, ranges.begin_ns, ranges.thread))
    begin_ns, end_ns = ranges.begin_ns[order], ranges.end_ns[order]
    threads, firsts = np.unique(ranges.thread[order], return_index=True)
    ends = [*firsts[1:].tolist(), len(order)][: len(firsts)]
    row, parent = np.full(len(thread), -1, np.int64), np.full(len(order), -1, np.int64)
    for one, first, end in zip(threads.tolist(), firsts.tolist(), ends, strict=True):
        mine = thread == one
        range_row = np.searchsorted(begin_ns[first:end], launched_ns[mine], side="right") - 1
        row[mine] = np.where(range_row >= 0, range_row + first, -1)
        parents = _parents(begin_ns[first:end], end_ns[first:end])
        parent[first:end] = np.where(parents >= 0, parents + first, -1)
    depths = []
    for _ in range(_DEEPEST):
        is_open = row >= 0
        if not is_open.any():
            break
        is_open &= launched_ns <= end_ns[row]
        if is_open.any():
            depths.append(np.where(is_open, order[row], -1))
        row = np.where(row >= 0, parent[row], -1)
    inside = np.stack(depths) if depths else np.zeros((0, len(thread)), np.int64)
    tells = texts.mask(_is_operation)[ranges.name]
    best = np.full(len(thread), -1, np.int64)
    for rows in inside:
        telling = (best < 0) & (rows >= 0)
        telling[telling] = tells[rows[telling]]
        best[telling] = rows[telling]
    is_inside = best >= 0
    if not is_inside.all():
        best = np.where(is_inside, best, _numbered_as(kernels, ranges, tells))
    return _Around(inside, best, is_inside)


def _numbered_as(kernels: EventTable, ranges: EventTable, tells: npt.NDArray[np.bool_]) -> Ints:
    """Returns the range with each kernel's External id; -1 if there is none.

    ``tells`` is True for the ranges that are searched. An External id that is equal to the kernel's
    correlation id is ignored, because it identifies the kernel's launch and not a range.
    """
    rows = np.flatnonzero(tells & (ranges.external_id > 0))
    by_number = dict(zip(ranges.external_id[rows].tolist(), rows.tolist(), strict=True))
    range_row = np.array([by_number.get(n, -1) for n in kernels.external_id.tolist()], np.int64)
    is_its = (range_row >= 0) & (kernels.external_id != kernels.correlation)
    is_its[is_its] = ranges.begin_ns[range_row[is_its]] <= kernels.begin_ns[is_its]
    return np.where(is_its, range_row, -1)


def _parents(begin_ns: Ints, end_ns: Ints) -> Ints:
    """Returns the row of the innermost range around the begin of each range; -1 if none."""
    parents = np.arange(-1, len(begin_ns) - 1)
    is_after_all = np.maximum.accumulate(end_ns)[:-1] < begin_ns[1:]
    parents[1:][is_after_all] = -1
    # If the preceding range has ended, a range around the preceding range is open.
    for row in 1 + np.flatnonzero((end_ns[:-1] < begin_ns[1:]) & ~is_after_all):
        parent, begin = parents[row - 1], begin_ns[row]
        while end_ns[parent] < begin:
            parent = parents[parent]
        parents[row] = parent
    return parents


def _kinds(
    texts: EventTexts,
    kinds: CallKinds,
    kernels: EventTable,
    ranges: EventTable,
    around: _Around,
    world_size: int,
) -> Ints:
    """Returns the kind of each kernel's call.

    Kernels have the same kind if the kernels have equal names and arguments, and the ranges around
    their launches have equal names and arguments, too.
    """
    known: dict[bytes, int] = texts.known.setdefault((len(around.inside), world_size), {})
    chosen = np.concatenate((around.best[None], np.where(around.is_inside, around.inside, -1)))
    told = [kernels.name, kernels.arguments, around.is_inside.astype(np.int64)]
    for rows in chosen:
        has_range = rows >= 0
        for column in (ranges.name, ranges.arguments):
            numbers = np.full(len(rows), -1, np.int64)
            numbers[has_range] = column[rows[has_range]]
            told.append(numbers)
    keys = np.stack(told, axis=1)
    data, size = keys.tobytes(), keys.shape[1] * keys.itemsize
    kind = []
    for row, at in enumerate(range(0, len(data), size)):
        key = data[at : at + size]
        number = known.get(key)
        if number is None:
            number = known[key] = kinds.number(_kind(texts, keys[row].tolist(), world_size))
        kind.append(number)
    return np.array(kind, np.int64)


def _kind(texts: EventTexts, key: Sequence[int], world_size: int) -> Call:
    """Makes a call from a kernel and the ranges around its launch.

    ``key`` consists of pairs of indices in ``texts``, for a name and its arguments. The first pair
    is that of the kernel; the ranges ``best`` and ``inside`` of ``_Around`` follow. A missing range
    has indices of -1. ``key[2]`` is not an index: it is 1 if ``best`` is around the launch, else 0.
    """
    kernel, kernel_name = texts.arguments[key[1]], texts.names[key[0]]
    best, *inside = (pair for pair in zip(key[3::2], key[4::2], strict=True))
    told: dict[str, Any] = {}
    range_name = None
    if best[0] >= 0:
        range_name = texts.names[best[0]]
        for name, arguments in reversed(inside):
            told |= texts.arguments[arguments] if name >= 0 else {}
        told |= texts.arguments[best[1]]
    names = kernel.get(COLLECTIVE), range_name
    telling = next((n for n in names if isinstance(n, str) and operation(n) != "other"), None)
    whole = {**sizes_of(told), **told, **kernel}
    call = described(telling or kernel_name, whole, world_size)
    return replace(call, guessed=telling is None)


def _describe_groups(
    events: ProfilerEvents,
    kinds: CallKinds,
    kind: Ints,
    seq: Ints,
    kernels: EventTable,
    ranges: EventTable,
    around: _Around,
    world_size: int,
) -> None:
    """Sets ``kind`` and ``seq`` of the kernels that serve several calls."""
    if not len(around.inside):
        return
    innermost, texts = around.inside[0], events.ranges.texts
    members = members_of_groups(events, ranges, innermost)
    for row in np.flatnonzero(np.isin(innermost, [*members])).tolist():
        name = texts.arguments[int(kernels.arguments[row])].get(COLLECTIVE)
        if isinstance(name, str) and _is_operation(name):
            continue
        rows = members[int(innermost[row])]
        calls = [_call_of(texts, ranges, member, world_size) for member in rows]
        kind[row] = kinds.number(merged(calls, kinds.kinds[kind[row]]))
        first = int(ranges.seq[rows[0]])
        seq[row] = first if 0 <= first < NO_SEQ else -1


def _call_of(texts: EventTexts, ranges: EventTable, row: int, world_size: int) -> Call:
    told = texts.arguments[int(ranges.arguments[row])]
    return described(told[COLLECTIVE], {**sizes_of(told), **told}, world_size)


def _numbers(kernels: EventTable, ranges: EventTable, around: _Around) -> Ints:
    seq = np.full(len(kernels.name), ABSENT, np.int64)
    outermost_first = around.inside[::-1]
    for rows in (*np.where(around.is_inside, outermost_first, -1), around.best):
        of_range = rows >= 0
        of_range[of_range] = ranges.seq[rows[of_range]] != ABSENT
        seq[of_range] = ranges.seq[rows[of_range]]
    seq = np.where(kernels.seq != ABSENT, kernels.seq, seq)
    return np.where((seq >= 0) & (seq < NO_SEQ), seq, -1)
