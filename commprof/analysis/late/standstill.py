"""Ranks that a hanging job waits for: one rule for running jobs and for recorded ones.

An operation needs all ranks of its group, or fewer if the operation has a root, see
:mod:`commprof.analysis.align.matching`. A rank that has issued an operation waits for the needed
ranks that have not issued it. Following these waits leads to ranks that wait for no other rank:
these ranks did not arrive. If the waits form a circle, ranks issued the operations of several
groups in different orders; the ranks that differ are found as in a mismatch, see
:mod:`commprof.analysis.late.circles`.

With a backend such as NCCL, ranks issue operations before these run, and the operations of a
communicator run in the order of issue. So a rank A also waits for a rank B that has issued its part
of an operation, if on B an earlier operation (for a collective: an earlier message) of the same
communicator is still pending. The waits also form a circle if all ranks have issued all pending
operations, but issued the operations of several groups in different orders: calls that are not
asynchronous run one after the other, even if their groups differ.

If a pending collective is not the same on all ranks, this mismatch is the cause, not an absent rank
or the network. An earlier mismatch of the same group is the cause if all ranks have arrived at the
pending operations.

A rank is behind if its oldest pending operation is a collective that other ranks have completed.
A rank is also behind if all ranks have issued the collective, and the collective runs on the device
of another rank but not on the device of this rank. Both rules use only collectives that no rank can
complete before all ranks have arrived. So no other rank delays the rank that is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from commprof.analysis.align.matching import needed_ranks
from commprof.analysis.collectives.mismatches import Mismatch
from commprof.analysis.late.circles import Circle, chain_to, circle_of
from commprof.analysis.late.issue_order import key_of, order_waits, queued_behind
from commprof.analysis.late.standing import (
    COUNTERPART,
    PendingOperation,
    Standing,
    Waits,
    Words,
    oldest_first,
)
from commprof.text import clauses, named_ranks
from commprof.trace.documents import Group
from commprof.trace.operations import SYNCHRONISING, family
from commprof.trace.schema import OPS, comes_before


@dataclass(frozen=True)
class Cause:
    """Cause of a hang."""

    #: "mismatch": ranks issued different collectives; "absent": ranks did not arrive; "behind":
    #: ranks have not completed operations that other ranks have completed; "circle": ranks wait for
    #: each other; "arrived": all ranks arrived; "unmatched": it is not known who takes part in a
    #: pending message, such as a receive from any rank.
    kind: str
    #: The culprits, sorted. All ranks of a circle if no culprit can be told; empty if all ranks
    #: arrived, or if unmatched.
    ranks: tuple[int, ...]
    #: For each rank that is behind, the operation that it has not completed or not begun.
    behind: Mapping[int, PendingOperation]
    #: The mismatch that is the cause; None if the cause is another. A mismatch does not always show
    #: which ranks are the culprits.
    mismatch: Mismatch | None = None
    #: The circle in which ranks wait for each other, if that is the cause.
    circle: Circle | None = None
    #: An all-to-all at which all ranks arrived, but which cannot complete, because the ranks do not
    #: send as many bytes in all as they expect. None if there is none.
    unfit: Unfit | None = None


@dataclass(frozen=True)
class Unfit:
    """An all-to-all in which the number of bytes sent by all ranks is not the number expected."""

    operation: PendingOperation
    sent_bytes: int
    expected_bytes: int

    @property
    def sentence(self) -> str:
        """What does not fit, as a main clause."""
        return (
            f"its ranks send {self.sent_bytes} bytes in all and expect {self.expected_bytes}, so "
            "the sizes that some rank gives do not fit those of another"
        )


@dataclass(frozen=True)
class Accused:
    """A rank that other ranks wait for."""

    rank: int
    #: The reason, as a predicate: "is dead: process 7 is gone".
    what: str
    #: The reason, as the predicate of several ranks that share it: "are dead".
    of_several: str
    #: True if the rank arrived at an operation but has not completed it, as other ranks have.
    behind: bool = False

    @property
    def why(self) -> str:
        """The reason, as a sentence."""
        return f"rank {self.rank} {self.what}"


def reasons(accused: Iterable[Accused]) -> list[str]:
    """Returns the reasons as sentences; ranks that share a reason share a sentence."""
    return clauses((one.rank, one.what, one.of_several) for one in accused)


def accused_of(
    cause: Cause, waits: Mapping[int, Waits], words: Words, absent: Callable[[int], Accused]
) -> tuple[Accused, ...]:
    """Describes for each culprit what it did or did not do.

    Args:
        cause: the cause.
        waits: result of ``waits_of``.
        words: puts groups and operations into words.
        absent: called with a rank that did not arrive; describes where this rank is.
    """
    return tuple(_accused(rank, cause, waits, words) or absent(rank) for rank in cause.ranks)


def _accused(rank: int, cause: Cause, waits: Mapping[int, Waits], words: Words) -> Accused | None:
    if cause.mismatch is not None:
        number = f"as number {cause.mismatch.seq} of {words.group(cause.mismatch.group)}"
        issued = f"issued {cause.mismatch.of_rank(rank)} {number}"
        return Accused(rank, issued, issued)
    if cause.circle is not None and cause.circle.issued:
        issued = words.operation(cause.circle.of_rank(rank))
        what = f"issued {issued} before the operation that the others issued first"
        return Accused(rank, what, what)
    if cause.circle is not None:
        operation, others = waits[rank][0]
        where = f"in {words.operation(operation)} for {named_ranks(others)}"
        return Accused(rank, f"waits {where}", f"wait {where}")
    if rank in cause.behind:
        operation = cause.behind[rank]
        verb = "begun" if operation.started is False else "completed"
        what = f"not {verb} {words.operation(operation)}, but other ranks have"
        return Accused(rank, f"has {what}", f"have {what}", behind=True)
    return None


def waits_of(states: Sequence[Standing]) -> dict[int, Waits]:
    """Lists for each rank the operations in which it waits for other ranks, oldest first.

    Each operation comes with the ranks that the rank waits for.
    """
    late = _LateRanks(states)
    return {
        state.rank: [
            (operation, absent)
            for operation in oldest_first(state)
            if (absent := late.to(operation, state))
        ]
        for state in states
    }


class _LateRanks:
    """Finds ranks that have not issued an operation; all ranks that wait in it share one search."""

    def __init__(self, states: Sequence[Standing]) -> None:
        self._states = states
        self._by_place: dict[tuple[str, int], list[Standing]] = {}
        self._users: dict[str, list[Standing]] = {}
        self._world_sizes = {state.world_size for state in states}
        for state in states:
            for name, group in state.groups.items():
                self._by_place.setdefault((name, group.rank), []).append(state)
                self._users.setdefault(name, []).append(state)
        #: By group, sequence number and group size: states of the ranks that have not issued the
        #: operation, and the numbers of these ranks.
        self._found: dict[tuple[str, int, int], tuple[list[Standing], tuple[int, ...]]] = {}
        #: By rank, the pending operations that run only after another pending operation of the
        #: rank; ranks without such operations are left out.
        self._queued = {state.rank: keys for state in states if (keys := queued_behind(state))}

    def to(self, operation: PendingOperation, issuer: Standing) -> tuple[int, ...]:
        """Returns the ranks that ``issuer`` waits for in the operation."""
        behind = self._behind(operation, issuer)
        if operation.peer >= 0:
            others = self._by_place.get((operation.group, operation.peer), [])
        else:
            others, ranks = self._late(operation, issuer.groups.get(operation.group))
            if operation.root < 0 and issuer.rank not in ranks and not behind:
                return ranks
        late = tuple(
            other.rank
            for other in others
            if other.rank != issuer.rank and _misses(other, operation, issuer)
        )
        return tuple(sorted({*late, *behind})) if behind else late

    def _behind(self, operation: PendingOperation, issuer: Standing) -> list[int]:
        """Returns the ranks that have issued their part of the operation behind another operation.

        On these ranks the operation cannot run yet. Empty if it cannot run on ``issuer`` either.
        """
        group = issuer.groups.get(operation.group)
        if not self._queued or operation.launch is None or group is None:
            return []
        if key_of(operation) in self._queued.get(issuer.rank, ()):
            return []
        if operation.peer < 0:
            key = key_of(operation)
            ranks = [rank for rank, keys in self._queued.items() if key in keys]
        else:
            key = operation.group, COUNTERPART[operation.op], group.rank, operation.seq
            others = self._by_place.get((operation.group, operation.peer), [])
            ranks = [other.rank for other in others if key in self._queued.get(other.rank, ())]
        return [rank for rank in ranks if rank != issuer.rank]

    def _late(
        self, operation: PendingOperation, own: Group | None
    ) -> tuple[list[Standing], tuple[int, ...]]:
        key = operation.group, operation.seq, own.size if own is not None else -1
        if key not in self._found:
            # A rank that never used the group is known to be a member only if the group has all
            # ranks of the job.
            of_all = own is not None and own.size in self._world_sizes
            others = self._states if of_all else self._users.get(operation.group, [])
            late = [other for other in others if _is_late(other, operation, own)]
            self._found[key] = late, tuple(other.rank for other in late)
        return self._found[key]


def find_cause(
    states: Sequence[Standing], waits: Mapping[int, Waits], mismatches: Sequence[Mismatch] = ()
) -> Cause:
    """Finds the ranks that the others wait for, or whose collectives do not match.

    Args:
        states: states of the ranks.
        waits: result of ``waits_of``.
        mismatches: collectives that were not the same on all ranks. A pending mismatch is the
            cause. A mismatch before a pending collective of its group is the cause if all ranks
            arrived.
    """
    mixed = _mismatched(states, mismatches)
    if mixed is not None:
        return Cause("mismatch", mixed.told_ranks, {}, mixed)
    pending: dict[tuple[int, str, int], PendingOperation] = {}
    for state in states:
        for one in state.pending.values():
            if one.peer < 0:
                pending.setdefault((state.rank, one.group, one.seq), one)
    users: dict[str, list[Standing]] = {}
    for state in states:
        for name in state.groups:
            users.setdefault(name, []).append(state)
    behind = {
        state.rank: operation
        for state in states
        if (operation := _behind_in(state, users, pending)) is not None
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
        # ``absent`` may also hold ranks that wait for the circle. Only for the circle's own ranks
        # does a chain of waits lead back to the rank itself.
        ranks = [rank for rank in absent if chain_to(rank, waits, [rank])]
        circle = circle_of(ranks, waits, by_rank)
        return Cause("circle", circle.told_ranks or circle.ranks, {}, circle=circle)
    if any(one.seq < 0 for state in states for one in state.pending.values()):
        return Cause("unmatched", (), {})
    mixed = _mismatched(states, mismatches, before=True)
    if mixed is not None:
        return Cause("mismatch", mixed.told_ranks, {}, mixed)
    orders = order_waits(states)
    crossed = [rank for rank in orders if chain_to(rank, orders, [rank])]
    if crossed:
        circle = replace(circle_of(crossed, orders, by_rank), issued=True)
        return Cause("circle", circle.told_ranks or circle.ranks, {}, circle=circle)
    return Cause("arrived", (), {}, unfit=_unfit(states))


def _unfit(states: Sequence[Standing]) -> Unfit | None:
    """Finds an all-to-all that is pending on all ranks of its group and cannot complete.

    It cannot complete if the bytes that its ranks send do not add up to the bytes that they expect.
    """
    pending: dict[tuple[str, int, int], list[PendingOperation]] = {}
    for state in states:
        for operation in state.pending.values():
            group = state.groups.get(operation.group)
            if family(operation.op) == "all_to_all" and operation.seq >= 0 and group is not None:
                key = operation.group, operation.seq, group.size
                pending.setdefault(key, []).append(operation)
    for (_, _, size), parts in pending.items():
        if len(parts) == size and all(min(part.bytes_in, part.bytes_out) >= 0 for part in parts):
            sent_bytes = sum(part.bytes_in for part in parts)
            expected_bytes = sum(part.bytes_out for part in parts)
            if sent_bytes != expected_bytes:
                return Unfit(parts[0], sent_bytes, expected_bytes)
    return None


def _mismatched(
    states: Sequence[Standing], mismatches: Sequence[Mismatch], before: bool = False
) -> Mismatch | None:
    """Returns the first mismatch that is pending on a rank; None if there is none.

    before: True to accept also the latest mismatch before a pending collective of its group.
    """
    mismatches = sorted(mismatches, key=lambda mismatch: mismatch.seq)
    if before:
        mismatches = [*{mismatch.group: mismatch for mismatch in mismatches}.values()]
    pending = [
        (one.group, one.seq)
        for state in states
        for one in state.pending.values()
        if one.peer < 0 and one.seq >= 0
    ]
    for mismatch in mismatches:
        number = mismatch.group, mismatch.seq
        earlier = before and any(
            group == mismatch.group and comes_before(mismatch.seq, seq) for group, seq in pending
        )
        if number in pending or earlier:
            return mismatch
    return None


def _misses(other: Standing, operation: PendingOperation, issuer: Standing) -> bool:
    """True if another rank takes part in the operation, is needed, and has not issued it."""
    own, theirs = issuer.groups.get(operation.group), other.groups.get(operation.group)
    place = other.rank if theirs is None else theirs.rank
    return _is_late(other, operation, own) and _is_needed(place, operation, own)


def _is_late(other: Standing, operation: PendingOperation, own: Group | None) -> bool:
    """True if a rank takes part in the operation and has not issued it.

    ``own`` is the ``Group`` as the issuing rank describes it; for a collective, only its size
    matters.
    """
    if operation.seq < 0:
        return False
    group = other.groups.get(operation.group)
    if group is None:
        # The rank has never used the group: only the group of all ranks is known to include the
        # rank.
        return operation.peer < 0 and own is not None and own.size == other.world_size
    if operation.peer < 0:
        return _before(other.next_seq.get(operation.group), operation)
    if own is None or group.rank != operation.peer:
        return False
    counterpart = COUNTERPART[operation.op]
    if counterpart == "recv" and operation.group in other.receives_any:
        return False  # a receive from any rank may be the receive of this message
    return _before(other.next_message.get((operation.group, counterpart, own.rank)), operation)


def _is_needed(rank: int, operation: PendingOperation, own: Group | None) -> bool:
    """True if the rank that issued the operation cannot complete it before ``rank`` arrives.

    ``rank`` is a rank in the group, and ``own`` the ``Group`` as the issuing rank describes it.
    Every rank is needed if the operation has no root, or if its root or group is unknown.
    """
    if own is None or operation.root < 0 or not max(rank, own.rank) < own.size:
        return True
    code, is_gloo = OPS.index(operation.op), own.backend == "gloo"
    return bool(needed_ranks(code, operation.root, own.size, is_gloo)[own.rank, rank])


def _before(next_seq: int | None, operation: PendingOperation) -> bool:
    """True if a rank has yet to issue the operation.

    ``next_seq`` is the sequence number of the rank's next collective in the operation's group, or
    of its next message; None if the rank has issued none.
    """
    return next_seq is None or not comes_before(operation.seq, next_seq)


def _behind_in(
    state: Standing,
    users: Mapping[str, Sequence[Standing]],
    pending: Mapping[tuple[int, str, int], PendingOperation],
) -> PendingOperation | None:
    """Returns a rank's oldest pending operation if the rank is behind; else None.

    The module's docstring defines when a rank is behind.

    Args:
        state: the rank's state.
        users: the states of the ranks of each group, by its name.
        pending: each rank's pending collectives, by rank, group and sequence number.
    """
    oldest = next(iter(oldest_first(state)), None)
    if oldest is None or oldest.peer >= 0 or oldest.silent or oldest.seq < 0:
        return None
    if family(oldest.op) not in SYNCHRONISING:
        return None
    members = [one for one in users.get(oldest.group, ()) if one is not state]
    if any(_misses(other, oldest, state) for other in members):
        return None
    there = [pending.get((other.rank, oldest.group, oldest.seq)) for other in members]
    done = any(one is None for one in there)
    runs = oldest.started is False and any(one is not None and one.started for one in there)
    return oldest if done or runs else None


def _joins(
    state: Standing, behind: Mapping[int, PendingOperation], by_rank: Mapping[int, Standing]
) -> bool:
    """True if one of a rank's pending operations involves another rank that is behind."""
    for operation in state.pending.values():
        for rank in behind:
            group = by_rank[rank].groups.get(operation.group)
            if group is not None and operation.peer in (-1, group.rank):
                return True
    return False
