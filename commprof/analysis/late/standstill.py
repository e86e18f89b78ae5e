"""Finds the ranks that a hanging job waits for, in a running job or in its recordings.

An operation needs all ranks of its group, or fewer if the operation has a root (see
:mod:`commprof.analysis.align.matching`). A rank that has issued an operation waits for the needed
ranks that have not issued it. Following these waits leads to ranks that wait for no other rank.
These ranks did not arrive.

If the waits form a circle, ranks issued the operations of several groups in different orders. The
culprits are then found as in a mismatch, see :mod:`commprof.analysis.late.circles`.

A backend such as NCCL runs the operations of a communicator in the order of issue. So rank A also
waits for rank B if B has issued an operation, but an earlier operation of the communicator is still
pending on B. (For a collective, only an earlier message counts.) The order of issue can also cause
a circle of waits after all ranks have issued all pending operations.

If a pending collective is not the same on all ranks, this mismatch is the cause. If all ranks have
arrived at the pending operations, an earlier mismatch of the same group is the cause.

A rank is behind in two cases. In the first case, its oldest pending operation is a collective that
other ranks have completed. In the second case, all ranks have issued this collective, but it runs
only on the devices of other ranks. Both cases require a collective that no rank can complete before
all ranks have arrived. So no other rank delays the rank that is behind.
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

    #: "mismatch": ranks issued different collectives.
    #: "absent": ranks did not arrive.
    #: "behind": ranks have not completed operations that other ranks have completed.
    #: "circle": ranks wait for each other.
    #: "arrived": all ranks arrived.
    #: "unmatched": the other end of a pending message is not known.
    kind: str
    #: The culprits, sorted. All ranks of a circle if its culprit is not known. Empty for "arrived"
    #: and "unmatched", and for a mismatch whose culprit is not known.
    ranks: tuple[int, ...]
    #: By rank that is behind: the operation that the rank has not completed or not begun.
    behind: Mapping[int, PendingOperation]
    mismatch: Mismatch | None = None
    circle: Circle | None = None
    #: An all-to-all at which all ranks arrived, but which cannot complete. None if there is none.
    unfit: Unfit | None = None


@dataclass(frozen=True)
class Unfit:
    """An all-to-all that cannot complete: its ranks do not send as many bytes as they expect."""

    operation: PendingOperation
    sent_bytes: int
    expected_bytes: int

    @property
    def sentence(self) -> str:
        """The reason why the all-to-all cannot complete, as a main clause."""
        return (
            f"its ranks send {self.sent_bytes} bytes in total, but expect {self.expected_bytes} "
            "bytes, so the ranks gave sizes that do not match"
        )


@dataclass(frozen=True)
class Accused:
    """A rank that other ranks wait for."""

    rank: int
    #: The reason, as a predicate: "is dead: process 7 is gone".
    what: str
    #: The same reason, as a predicate in the plural: "are dead".
    of_several: str
    #: True if the rank is behind, see the module's docstring.
    behind: bool = False

    @property
    def why(self) -> str:
        """The reason, as a sentence."""
        return f"rank {self.rank} {self.what}"


def reasons(accused: Iterable[Accused]) -> list[str]:
    """Returns the reasons as sentences. Ranks with the same reason share one sentence."""
    return clauses((one.rank, one.what, one.of_several) for one in accused)


def accused_of(
    cause: Cause, waits: Mapping[int, Waits], words: Words, absent: Callable[[int], Accused]
) -> tuple[Accused, ...]:
    """Describes what each culprit did or did not do.

    Args:
        cause: the cause.
        waits: result of ``waits_of``.
        words: puts groups and operations into words.
        absent: describes a rank that did not arrive.
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
    """Returns by rank the operations in which the rank waits, the oldest operation first.

    Each operation comes with the ranks that the rank waits for in it.
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
    """Finds ranks that have not issued an operation; searches once per operation."""

    def __init__(self, states: Sequence[Standing]) -> None:
        self._states = states
        self._by_place: dict[tuple[str, int], list[Standing]] = {}
        self._users: dict[str, list[Standing]] = {}
        self._world_sizes = {state.world_size for state in states}
        for state in states:
            for name, group in state.groups.items():
                self._by_place.setdefault((name, group.rank), []).append(state)
                self._users.setdefault(name, []).append(state)
        #: By group, sequence number and group size: states and numbers of the ranks that have not
        #: issued the operation.
        self._found: dict[tuple[str, int, int], tuple[list[Standing], tuple[int, ...]]] = {}
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
        """Returns the ranks that issued the operation, but must run another operation first.

        Empty if ``issuer`` must also run another operation first.
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
    """Finds the cause of a hang, and the culprits.

    Args:
        states: states of the ranks.
        waits: result of ``waits_of``.
        mismatches: collectives that were not the same on all ranks.
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
        # ``absent`` may also hold ranks outside of the circle. Only from a rank of the circle does
        # a chain of waits lead back to the rank.
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
    """Finds an all-to-all at which all ranks arrived, but which cannot complete."""
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

    ``before``: True to accept also the latest mismatch before a pending collective of its group.
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
    own, theirs = issuer.groups.get(operation.group), other.groups.get(operation.group)
    place = other.rank if theirs is None else theirs.rank
    return _is_late(other, operation, own) and _is_needed(place, operation, own)


def _is_late(other: Standing, operation: PendingOperation, own: Group | None) -> bool:
    """True if a rank takes part in the operation and has not issued it.

    ``own``: the group as the issuing rank describes it.
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
    """True if the issuing rank cannot complete the operation before ``rank`` arrives.

    ``rank``: rank in the group. ``own``: the group as the issuing rank describes it.
    """
    if own is None or operation.root < 0 or not max(rank, own.rank) < own.size:
        return True
    code, is_gloo = OPS.index(operation.op), own.backend == "gloo"
    return bool(needed_ranks(code, operation.root, own.size, is_gloo)[own.rank, rank])


def _before(next_seq: int | None, operation: PendingOperation) -> bool:
    """True if a rank has not issued the operation yet.

    ``next_seq``: number of the rank's next operation; None if the rank has issued none.
    """
    return next_seq is None or not comes_before(operation.seq, next_seq)


def _behind_in(
    state: Standing,
    users: Mapping[str, Sequence[Standing]],
    pending: Mapping[tuple[int, str, int], PendingOperation],
) -> PendingOperation | None:
    """Returns a rank's oldest pending operation if the rank is behind; else None.

    The module's docstring defines when a rank is behind. ``users``: states of the ranks by group.
    ``pending``: collectives by rank, group and sequence number.
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
    """True if a rank that is behind takes part in one of this rank's pending operations."""
    for operation in state.pending.values():
        for rank in behind:
            group = by_rank[rank].groups.get(operation.group)
            if group is not None and operation.peer in (-1, group.rank):
                return True
    return False
