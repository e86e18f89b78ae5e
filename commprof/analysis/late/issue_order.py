"""Waits that arise because a backend runs operations in the order of issue.

NCCL is such a backend: it runs the operations of a communicator in the order in which a rank issued
them. So an operation that a rank has issued may have to wait for an earlier operation of this rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from commprof.analysis.late.standing import PendingOperation, Standing, Waits, oldest_first

#: Group, "send" or "recv" ("" for a collective, and for a receive from any rank), peer, and
#: sequence number of an operation.
Key = tuple[str, str, int, int]


def key_of(operation: PendingOperation) -> Key:
    """Returns a key that distinguishes a rank's pending operations, except receives from any."""
    op = operation.op if operation.peer >= 0 else ""
    return operation.group, op, operation.peer, operation.seq


def queued_behind(state: Standing) -> frozenset[Key]:
    """Returns a rank's pending operations that cannot run before another pending operation.

    A collective counts only if it is queued behind a message. If it is queued behind another
    collective, the rank's delay already shows in that earlier collective.
    """
    launched = [
        (operation, operation.launch)
        for operation in state.pending.values()
        if operation.launch is not None
    ]
    if not any(operation.peer >= 0 for operation, _ in launched):
        return frozenset()
    # By queue: number of the first launch (key False), and of the first message (key True).
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
    """Lists by rank the waits that are caused by the order in which operations were issued.

    All ranks must have issued all pending operations. A rank waits in its oldest pending operation
    for the ranks on which another operation is older. Empty if the launch of an operation is None,
    as for backends that run operations independently of the order of issue.
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
