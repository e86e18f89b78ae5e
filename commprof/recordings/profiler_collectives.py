"""Joins the kernels of a device that belong to one collective.

A collective may have several kernels, for example one for each phase of its algorithm. Two
successive kernels of a process group belong to one collective if they have the same operation and
the same c10d number (``Seq``); if ranges or operators of c10d around both launches are known, one
must be common to both. If the number was not recorded, the same range or operator of c10d must have
launched both kernels. Each replay of a CUDA graph repeats the numbers of its collectives,
so kernels of different replays are not joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from commprof.recordings.profiler_call_columns import CallColumns, in_columns
from commprof.recordings.profiler_calls import Call
from commprof.trace.lookup import distinct

#: Messages and unknown operations, which some ranks of the group may not issue.
OF_FEW: Final = ("send", "recv", "recv_any_source", "other")


def as_collectives(kernels: CallColumns) -> CallColumns:
    """Returns the collectives in order of their begin.

    Args:
        kernels: the kernels of one device, each as a call of its own, in order of their begin.
    """
    if not _may_join(kernels):
        return kernels
    joined_calls: list[list[Call]] = []
    last: dict[tuple[str, tuple[int, ...]], list[Call]] = {}
    for kernel in kernels:
        group = kernel.group, kernel.group_ranks
        before = last.get(group)
        if before is not None and _are_one(before[-1], kernel):
            before.append(kernel)
            continue
        last[group] = [kernel]
        joined_calls.append(last[group])
    return in_columns(kernels.kinds, map(_joined, joined_calls))


def _may_join(kernels: CallColumns) -> bool:
    numbers: dict[tuple[str, str, tuple[int, ...]], int] = {}
    of_kind = np.full(len(kernels.kinds.kinds), -1, np.int64)
    for number in distinct(kernels.kind).tolist():
        kind = kernels.kinds.kinds[number]
        if kind.op not in OF_FEW:
            key = kind.op, kind.group, kind.group_ranks
            of_kind[number] = numbers.setdefault(key, len(numbers))
    alike, seq, replay = of_kind[kernels.kind], kernels.seq, kernels.replay
    first = np.full(len(alike), -1) if kernels.launching is None else kernels.launching.first
    for number in numbers.values():
        rows = np.flatnonzero(alike == number)
        before, after = rows[:-1], rows[1:]
        same = (seq[before] == seq[after]) & (replay[before] == replay[after])
        are_known = (first[before] >= 0) & (first[after] >= 0)
        may = np.where(seq[before] >= 0, True, are_known & (first[before] == first[after]))
        if (same & may).any():
            return True
    return False


def _are_one(first: Call, second: Call) -> bool:
    # Different messages of a rank may share ranges and numbers, so messages are never joined.
    if first.op != second.op or first.op in OF_FEW:
        return False
    if first.seq != second.seq or first.replay != second.replay:
        return False
    if first.launched_in and second.launched_in:
        if first.seq < 0:
            return first.launched_in[0] == second.launched_in[0]
        return bool({*first.launched_in} & {*second.launched_in})
    return first.seq >= 0


def _joined(kernels: Sequence[Call]) -> Call:
    if len(kernels) == 1:
        return kernels[0]
    telling = max(kernels, key=lambda kernel: (kernel.dtype != "", not kernel.guessed))
    return replace(
        telling,
        launch_ns=min(kernel.launch_ns for kernel in kernels),
        begin_ns=kernels[0].begin_ns,
        end_ns=max(kernel.end_ns for kernel in kernels),
        kernels=tuple((kernel.begin_ns, kernel.end_ns) for kernel in kernels),
    )
