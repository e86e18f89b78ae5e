"""Traces waiting to the processes where it began, across communicators.

A process that comes late to one communicator may have waited in another communicator. If one rank
of a tensor-parallel group is slow, all ranks of this group come late to their data-parallel groups.
Suppose that in a part of the run, a process makes each other rank of a communicator wait for a time
``d``, and that this process waits in its other communicators for a time ``s`` in all. Then
``max(0, d - s) / d`` of the waiting began with this process. The remaining waiting is passed on to
the processes for which this process waited, in proportion to its waiting for each process. These
processes pass it on in the same way.

If it is not known for whom a process waited, its waiting counts for no process. This happens in a
broadcast, in a reduce, and in a message without its partner's record. If the process's own record
of a call is lost, its waiting in this call is estimated, and counts for no process either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.inspector.communicators import (
    InspectedCommunicator,
    InspectedJob,
    per_block,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Waiting is passed on from process to process at most this many times. After that, it counts for
#: the process that it has reached.
_MOST_PASSES = 8
_NEGLIGIBLE = 1e-3
#: Largest number of processes for which waiting is kept for each pair of processes. The table then
#: takes 512 MiB.
_MOST_PAIRS = 8192


@dataclass(frozen=True)
class InspectedOrigins:
    """Waiting of a job in µs, by the process where the waiting began."""

    #: As ``[block, process]``, summed over the processes that waited.
    began_us: Floats
    #: Waiting of each process for known ranks, as ``[block, process]``.
    waited_us: Floats
    #: As ``[waiting process, process]``, summed over the run; None for very large jobs.
    pairs_us: Floats | None


@dataclass(frozen=True)
class WaitingGroup:
    """Waiting of the processes of one communicator."""

    key: tuple[str | int, ...]
    process: Ints
    #: Waiting for each member, in µs, as ``[block, member]``.
    caused: Floats
    #: Waiting of each member, in µs, as ``[block, member]``.
    waited: Floats
    #: True if it is known for which ranks the members waited.
    is_known: bool = True
    #: A member's waiting in one group does not make the member late in another group with the same
    #: ``together_key``. If empty, ``key`` is used instead.
    together_key: tuple[str | int, ...] = ()


@dataclass(frozen=True)
class _Entries:
    communicator: Ints
    process: Ints
    together: Ints
    others: Ints
    caused: Floats
    waited: Floats


def origins(job: InspectedJob) -> InspectedOrigins:
    """Finds where the waiting of a job began."""
    return traced(groups_of(job), len(job.processes))


def traced(groups: Sequence[WaitingGroup], count: int) -> InspectedOrigins:
    """Finds where the waiting of ``count`` processes began. All groups have the same blocks."""
    entries = _entries(groups)
    in_blocks = zip(entries.caused, entries.waited, strict=True)
    began = [
        _carried_back(entries, *block, block[0][np.newaxis], count).sum(axis=0)
        for block in in_blocks
    ]
    caused, waited = entries.caused.sum(axis=0), entries.waited.sum(axis=0)
    by_process = np.zeros((count, len(entries.caused)))
    for group in groups:
        if group.is_known:
            np.add.at(by_process, group.process, group.waited.T)
    pairs = None
    if count <= _MOST_PAIRS:
        of_communicator = np.bincount(entries.communicator, caused)
        row = np.cumsum(of_communicator > 0)[entries.communicator] - 1
        seen = np.zeros((np.count_nonzero(of_communicator), len(caused)))
        causing = np.flatnonzero(of_communicator[entries.communicator])
        seen[row[causing], causing] = caused[causing]
        began_in = _carried_back(entries, caused, waited, seen, count)
        pairs = _pairs(entries.process[causing], row[causing], waited[causing], began_in)
    return InspectedOrigins(np.array(began), by_process.T.copy(), pairs)


def groups_of(job: InspectedJob) -> list[WaitingGroup]:
    """Returns groups with the waiting in each communicator.

    Separate groups hold waiting for unknown ranks, and estimates for calls whose records are lost.
    """
    found = []
    for each in job.communicators:
        key = (each.id, each.ranks)
        caused, waited = (
            per_block(each.split, name, job.blocks, len(each.recorded))
            for name in ("caused_us", "waited_us")
        )
        found.append(WaitingGroup(key, each.process, caused, waited))
        for operations in each.operations if each.ranks > 1 else ():
            waits = operations.waits
            excess = waits.unpaired_us if operations.is_split else waits.waited_us
            if excess.any():
                nobodys = np.zeros_like(excess)
                named = (*key, operations.kind)
                found.append(WaitingGroup(named, each.process, nobodys, excess, False))
        found.extend(_lost(each, key, job.blocks))
    return found


def _lost(
    communicator: InspectedCommunicator, key: tuple[str | int, ...], blocks: int
) -> Iterator[WaitingGroup]:
    """Yields groups with the estimated waiting in calls whose records are lost.

    After an operation such as a reduce, a rank that waited comes late to the next call of the same
    communicator. All ranks leave a split operation together.
    """
    for is_split, together_key in ((True, key), (False, ())):
        waited = np.zeros((blocks, len(communicator.recorded)))
        for operations in communicator.operations:
            if operations.is_split == is_split and operations.waits.lost_wait_us.size:
                waited += operations.waits.lost_wait_us
        if waited.any():
            lost_key = (*key, "lost", is_split)
            nobodys = np.zeros_like(waited)
            yield WaitingGroup(lost_key, communicator.process, nobodys, waited, False, together_key)


def _entries(groups: Sequence[WaitingGroup]) -> _Entries:
    sizes = [len(group.process) for group in groups]
    process = np.concatenate([group.process for group in groups])
    numbers: dict[tuple[str | int, ...], int] = {}
    keys = [numbers.setdefault(g.together_key or g.key, len(numbers)) for g in groups]
    pairs = np.repeat(keys, sizes) * (int(process.max(initial=0)) + 1) + process
    return _Entries(
        np.repeat(np.arange(len(sizes)), sizes),
        process,
        np.unique(pairs, return_inverse=True)[1].reshape(-1),
        np.repeat(np.maximum(1, np.array(sizes) - 1), sizes),
        np.concatenate([group.caused for group in groups], axis=1),
        np.concatenate([group.waited for group in groups], axis=1),
    )


def _carried_back(
    entries: _Entries, caused: Floats, waited: Floats, mass: Floats, processes: int
) -> Floats:
    """Returns waiting by the process where it began, as ``[row, process]``.

    Args:
        entries: processes in communicators.
        caused: waiting that each entry caused, in some part of the run.
        waited: waiting of each entry in this part.
        mass: ``[row, entry]``: waiting to trace back, a subset of ``caused`` in each row.
        processes: number of processes.
    """
    elsewhere = np.bincount(entries.process, waited, processes)[entries.process]
    elsewhere = elsewhere - np.bincount(entries.together, waited)[entries.together]
    in_communicator = np.bincount(entries.communicator, caused)
    # Waiting is not passed on to a communicator in which no process causes any waiting.
    causing = np.flatnonzero(in_communicator[entries.communicator])
    communicators, process, together, others = (
        column[causing]
        for column in (entries.communicator, entries.process, entries.together, entries.others)
    )
    caused, waited, elsewhere = caused[causing], waited[causing], elsewhere[causing]
    mass = mass[:, causing]
    delay = caused / others
    passed = np.where(delay > 0, np.minimum(1.0, elsewhere / np.where(delay > 0, delay, 1.0)), 0.0)
    part = caused / in_communicator[communicators]
    began = np.zeros((len(mass), processes))
    least = _NEGLIGIBLE * mass.sum()
    for turn in range(_MOST_PASSES + 1):
        on = mass * (passed if turn < _MOST_PASSES else 0.0)
        is_last = on.sum() <= least
        stays = mass if is_last else mass - on
        mass = np.zeros_like(on)
        for row in np.flatnonzero(stays.any(axis=1) | on.any(axis=1)).tolist():
            began[row] += np.bincount(process, stays[row], processes)
            per_wait = on[row] / np.where(elsewhere > 0, elsewhere, 1.0)
            of_process = np.bincount(process, per_wait, processes)
            of_together = np.bincount(together, per_wait)
            arriving = waited * (of_process[process] - of_together[together])
            mass[row] = np.bincount(communicators, arriving)[communicators] * part
        if is_last:
            break
    return began


def _pairs(process: Ints, communicator: Ints, waited: Floats, began: Floats) -> Floats:
    """Returns waiting in µs as ``[waiting process, process where it began]``, for the whole run.

    All members of a communicator are assumed to wait for the same processes.

    Args:
        process: process of each entry.
        communicator: communicator of each entry, as a row of ``began``.
        waited: waiting of each entry.
        began: ``[communicator, process]``: where the waiting in a communicator began.
    """
    total = began.sum(axis=1, keepdims=True)
    shares = began / np.where(total > 0, total, 1.0)
    by_communicator = np.zeros((began.shape[1], len(began)))
    np.add.at(by_communicator, (process, communicator), waited)
    pairs: Floats = by_communicator @ shares
    return pairs
