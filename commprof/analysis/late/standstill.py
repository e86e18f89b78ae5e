"""Which ranks a job that stands still waits for: one rule for running jobs and for recorded ones.

A rank that has issued an operation waits for every rank that it needs there and that has not issued
it: for all of the group, or where the operation has a root for fewer, see
:mod:`commprof.analysis.align.matching`. Following these waits leads to ranks that wait for nobody:
they did not arrive. If the waits lead in a circle, ranks issue the operations of several groups in
different orders. A rank at which a collective is pending that other ranks have completed is behind
them: since the collective completed there, every rank had arrived, and nothing of another rank
holds it up. The same holds for one that all have issued and that runs on other ranks' devices and
not on this one's. What is pending before it decides: a rank is only behind if this holds for the
oldest operation that it has pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from commprof.analysis.align.matching import needed_ranks
from commprof.trace.documents import Group
from commprof.trace.schema import OPS, comes_before

#: They complete on no rank before all ranks have arrived. A broadcast's root may be done early.
_SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


@dataclass(frozen=True)
class Operation:
    """An operation that a rank handed to its process group."""

    op: str
    #: c10d's name of the group; the rank's own number, as text, where the trace does not name it.
    group: str
    #: The group's collective number; of a message its number between its two ranks; -1 if unknown.
    seq: int
    #: Other end of a message, as rank in the group; -1 of a collective.
    peer: int
    bytes_in: int
    bytes_out: int
    issue_ns: int
    #: Of DDP's gradients: which all-reduce of its backward pass it is, from 0; -1 of others.
    bucket: int
    #: Whether a backward pass issued it; for the reader of ``hang_N.json``.
    in_backward: bool
    #: Whether its completion may never be recorded: by gloo of some operations, and on devices.
    silent: bool = False
    #: Whether it runs, by what the device told; None where nothing tells when operations start.
    started: bool | None = None
    #: Rank in the group that it gives to or takes from; -1 without one, and where it is not known.
    root: int = -1

    def __str__(self) -> str:
        """In words."""
        bucket = f", bucket {self.bucket}" if self.bucket >= 0 else ""
        number = f"number {self.seq}" if self.seq >= 0 else "of unknown number"
        return f"{self.op} {number} of group {self.group!r}{bucket}"


class Standing(Protocol):
    """Interface of the state of one rank in a job that stands still."""

    @property
    def rank(self) -> int:
        """The rank's global number."""

    @property
    def world_size(self) -> int:
        """Ranks of the job."""

    @property
    def pending(self) -> Mapping[int, Operation]:
        """Operations that the rank has issued and that are not known to be complete."""

    @property
    def next_seq(self) -> Mapping[str, int]:
        """Number of the rank's next collective, by the group's name."""

    @property
    def next_message(self) -> Mapping[tuple[str, str, int], int]:
        """Number of the rank's next message, by group's name, "send" or "recv", and peer."""

    @property
    def groups(self) -> Mapping[str, Group]:
        """Groups that the rank is known to belong to, by name."""


#: Operations that a rank has pending, oldest first, each with the ranks that it waits for there.
Waits = Sequence[tuple[Operation, tuple[int, ...]]]


@dataclass(frozen=True)
class Cause:
    """Why a job stands still."""

    #: "absent": ranks did not arrive; "behind": ranks have not completed what others have;
    #: "circle": ranks wait for each other; "arrived": everybody did.
    kind: str
    #: The culprits by rank; all ranks of the circle; empty where everybody arrived.
    ranks: tuple[int, ...]
    #: The operations that the ranks behind have not completed, or not begun, by rank.
    behind: Mapping[int, Operation]


def waits_of(state: Standing, states: Sequence[Standing]) -> Waits:
    """Lists what a rank has pending that other ranks have not issued, oldest first."""
    result = []
    for operation in _oldest_first(state):
        absent = tuple(
            other.rank
            for other in states
            if other.rank != state.rank and _misses(other, operation, state)
        )
        if absent:
            result.append((operation, absent))
    return result


def find_cause(states: Sequence[Standing], waits: Mapping[int, Waits]) -> Cause:
    """Finds the ranks that the others wait for, from ``waits_of`` each of the states."""
    behind = {
        state.rank: operation
        for state in states
        if (operation := _behind_in(state, states)) is not None
    }
    absent = sorted({rank for found in waits.values() for _, ranks in found for rank in ranks})
    by_rank = {state.rank: state for state in states}
    free = [
        rank
        for rank in absent
        if rank not in behind and not waits[rank] and not _joins(by_rank[rank], behind, by_rank)
    ]
    if free or behind:
        return Cause("absent" if free else "behind", tuple(sorted({*free, *behind})), behind)
    if absent:
        return Cause("circle", tuple(absent), {})
    return Cause("arrived", (), {})


def chain_to(
    rank: int, waits: Mapping[int, Waits], ranks: Sequence[int]
) -> list[tuple[int, Operation]]:
    """Finds the shortest chain of waits from a rank to one of ``ranks``, with its operations.

    The last entry's operation is the one that a named rank is missing from; empty without a way.
    """
    ways: dict[int, list[tuple[int, Operation]]] = {rank: []}
    queue = [rank]
    for current in queue:
        for operation, absent in waits.get(current, ()):
            way = [*ways[current], (current, operation)]
            if set(absent) & set(ranks):
                return way
            for other in absent:
                if other not in ways:
                    ways[other] = way
                    queue.append(other)
    return []


def _oldest_first(state: Standing) -> list[Operation]:
    return sorted(state.pending.values(), key=lambda one: one.issue_ns)


def _misses(other: Standing, operation: Operation, issuer: Standing) -> bool:
    """Whether another rank takes part in the operation and has not issued it."""
    if operation.seq < 0:
        return False
    group = other.groups.get(operation.group)
    mine = issuer.groups.get(operation.group)
    if group is None:
        # It has never used the group: only the group of all ranks is known to include it.
        includes_all = mine is not None and mine.size == other.world_size
        return includes_all and operation.peer < 0 and _is_needed(other.rank, operation, mine)
    if operation.peer < 0:
        late = _before(other.next_seq.get(operation.group), operation)
        return late and _is_needed(group.rank, operation, mine)
    if mine is None or group.rank != operation.peer:
        return False
    counterpart = "recv" if operation.op == "send" else "send"
    return _before(other.next_message.get((operation.group, counterpart, mine.rank)), operation)


def _is_needed(rank: int, operation: Operation, own: Group | None) -> bool:
    """Whether the issuer, which ``own`` describes, needs this rank of the group."""
    if own is None or operation.root < 0 or not max(rank, own.rank) < own.size:
        return True
    code, is_gloo = OPS.index(operation.op), own.backend == "gloo"
    return bool(needed_ranks(code, operation.root, own.size, is_gloo)[own.rank, rank])


def _before(next_seq: int | None, operation: Operation) -> bool:
    """Whether the operation is still to come for a rank; next_seq: None where it issued none."""
    return next_seq is None or not comes_before(operation.seq, next_seq)


def _behind_in(state: Standing, states: Sequence[Standing]) -> Operation | None:
    """The oldest operation that is pending, if it is a collective that others have completed."""
    oldest = next(iter(_oldest_first(state)), None)
    if oldest is None or oldest.peer >= 0 or oldest.silent or oldest.seq < 0:
        return None
    if not oldest.op.startswith(_SYNCHRONISING):
        return None
    members = [one for one in states if one is not state and oldest.group in one.groups]
    if any(_misses(other, oldest, state) for other in members):
        return None
    there = [_found_pending(other, oldest) for other in members]
    done = any(one is None for one in there)
    runs = oldest.started is False and any(one is not None and one.started for one in there)
    return oldest if done or runs else None


def _found_pending(state: Standing, operation: Operation) -> Operation | None:
    for one in state.pending.values():
        if one.peer < 0 and (one.group, one.seq) == (operation.group, operation.seq):
            return one
    return None


def _joins(
    state: Standing, behind: Mapping[int, Operation], by_rank: Mapping[int, Standing]
) -> bool:
    """Whether a rank has an operation pending with one that is behind, and so waits for it."""
    for operation in state.pending.values():
        for rank in behind:
            group = by_rank[rank].groups.get(operation.group)
            if group is not None and operation.peer in (-1, group.rank):
                return True
    return False
