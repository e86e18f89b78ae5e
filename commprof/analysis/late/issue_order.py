"""Operations on backends that run the operations of each communicator in the order of issue.

NCCL is such a backend. A rank may have issued its part of an operation that still cannot run,
because it is behind another operation of the rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from commprof.analysis.late.standing import PendingOperation, Standing, Waits, oldest_first

#: A rank's pending operation: group, "send" or "recv" or nothing, peer, and sequence number.
Key = tuple[str, str, int, int]


def key_of(operation: PendingOperation) -> Key:
    """Returns a key that distinguishes a rank's pending operations."""
    op = operation.op if operation.peer >= 0 else ""
    return operation.group, op, operation.peer, operation.seq


def queued_behind(state: Standing) -> frozenset[Key]:
    """Returns a rank's pending operations that run only after another of its pending operations.

    A collective counts only if it is queued behind a message. If it is queued behind another
    collective of its group, the rank's delay already shows in that earlier collective.
    """
    launched = [
        (operation, operation.launch)
        for operation in state.pending.values()
        if operation.launch is not None
    ]
    if not any(operation.peer >= 0 for operation, _ in launched):
        return frozenset()
    #: Number of the first launch, by queue and a flag; if the flag is True, of the first launch of
    #: messages.
    first: dict[tuple[str, bool], int] = {}
    for operation, launch in launched:
        for of_messages in (False, True) if operation.peer >= 0 else (False,):
            key = launch.queue, of_messages
            first[key] = min(first.get(key, launch.number), launch.number)
    return frozenset(
        key_of(operation)
        for operation, launch in launched
        if not operation.started
        and first.get((launch.queue, operation.peer < 0), launch.number) < launch.number
    )


def order_waits(states: Sequence[Standing]) -> dict[int, Waits]:
    """Lists the waits that the order of issue causes once all ranks issued all pending operations.

    A rank waits in its oldest pending operations for the ranks on which these are not the oldest.
    Empty if the backend of an operation runs operations independently of their order.
    """
    if any(operation.launch is None for state in states for operation in state.pending.values()):
        return {}
    later: dict[Key, list[int]] = {}
    heads: dict[int, list[PendingOperation]] = {}
    for state in states:
        pending = oldest_first(state)
        heads[state.rank] = [
            operation
            for operation in pending
            if operation.started or operation.launch == pending[0].launch
        ]
        oldest = {key_of(operation) for operation in heads[state.rank]}
        for operation in pending:
            if operation.peer < 0 and key_of(operation) not in oldest:
                later.setdefault(key_of(operation), []).append(state.rank)
    return {
        rank: [
            (operation, tuple(ranks))
            for operation in operations
            if (ranks := later.get(key_of(operation)))
        ]
        for rank, operations in heads.items()
    }
