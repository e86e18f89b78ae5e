"""Describes ranks that wait for each other in a circle, and finds the ranks that differ.

The ranks of a circle wait in different operations. Ranks outside of the majority count as
different. Without a majority, ranks that did not repeat their own earlier steps count as different.

A majority counts only if every rank of the circle belongs to the groups of all these operations. It
does not count if an operation is a message, because a send and its receive are meant to differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commprof.analysis.collectives.mismatches import usual_after, who_differs
from commprof.analysis.late.standing import PendingOperation, Standing, Waits, Words
from commprof.text import listed, named_ranks, plural

_MOST_DESCRIBED = 4
#: At most this many calls are compared with a rank's earlier steps, beginning with the oldest call
#: in which the rank waits.
_MOST_COMPARED = 16
#: Cause and remedy of a circle in which no rank differs, by the operation in which all ranks wait.
_ORDERS = {
    "send": (
        "every rank sends before it receives, so let one rank receive first, or use "
        "batch_isend_irecv"
    ),
    "recv": "every rank receives before it sends, so let one rank send first",
}


@dataclass(frozen=True)
class Circle:
    """Ranks that wait for each other, and the operations in which they wait."""

    #: Each operation with the ranks that wait in it, the most common first.
    waiting: tuple[tuple[PendingOperation, tuple[int, ...]], ...]
    #: Ranks that differ from the majority, or else from their own earlier steps; empty if no rank
    #: differs, or if all ranks differ from their earlier steps.
    told_ranks: tuple[int, ...]
    by_majority: bool
    #: True if every rank has issued all of these operations, but in different orders. Each rank
    #: waits in the operation that it issued first.
    issued: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of the circle, sorted."""
        return tuple(sorted(rank for _, ranks in self.waiting for rank in ranks))

    def of_rank(self, rank: int) -> PendingOperation:
        """The operation in which a rank waits."""
        return next(operation for operation, ranks in self.waiting if rank in ranks)

    def difference(self, words: Words, lines: Mapping[int, str]) -> str:
        """Returns a predicate: in which operations the ranks wait, and which ranks differ.

        For example: "wait for each other: rank 1 waits in X where rank 0 waits in Y; rank 1 differs
        from ...". If the ranks have issued all operations, it begins with "issued their common
        calls in different orders".

        lines: known lines of code, by rank.
        """
        told = {*self.told_ranks}
        odd = [part for part in self.waiting if told & {*part[1]}] or self.waiting[1:]
        rest = [part for part in self.waiting if part not in odd]

        def said(parts: Sequence[tuple[PendingOperation, tuple[int, ...]]]) -> str:
            texts = []
            for operation, ranks in parts[:_MOST_DESCRIBED]:
                line = next((f" ({lines[rank]})" for rank in ranks if rank in lines), "")
                verb = "waits in" if len(ranks) == 1 else "wait in"
                verb = "first issued" if self.issued else verb
                texts.append(f"{named_ranks(ranks)} {verb} {words.operation(operation)}{line}")
            more = len(parts) - len(texts)
            return listed(
                [*texts, *([f"{more} more {plural(more, 'group')} of ranks"] * (more > 0))]
            )

        where = f"{said(odd)} where {said(rest)}" if rest else said(odd)
        who = who_differs(self.told_ranks, self.by_majority)
        if self.issued:
            return f"issued their common calls in different orders: {where}; {who}"
        return f"wait for each other: {where}; {self._order or who}"

    @property
    def _order(self) -> str:
        # If sequence numbers differ, the ranks have not made equally many calls, so the order of
        # the calls is not the cause.
        alike = {(operation.op, operation.seq) for operation, _ in self.waiting}
        if self.told_ranks or len(alike) != 1:
            return ""
        ((op, _),) = alike
        return _ORDERS.get(op, "")


def circle_of(
    ranks: Sequence[int], waits: Mapping[int, Waits], by_rank: Mapping[int, Standing]
) -> Circle:
    """Describes a circle of waiting ranks.

    Args:
        ranks: the ranks of the circle.
        waits: result of ``waits_of``.
        by_rank: states of the ranks.
    """
    inside = {*ranks}
    parts: dict[tuple[str, str, int, int], tuple[PendingOperation, list[int]]] = {}
    for rank in sorted(ranks):
        operation = next(one for one, absent in waits[rank] if inside & {*absent})
        key = operation.op, operation.group, operation.seq, operation.peer
        parts.setdefault(key, (operation, []))[1].append(rank)
    ordered = sorted(parts.values(), key=lambda part: (-len(part[1]), part[1][0]))
    waiting = tuple((operation, tuple(found)) for operation, found in ordered)
    groups = {operation.group for operation, _ in waiting}
    comparable = all(operation.peer < 0 for operation, _ in waiting) and all(
        groups <= {*by_rank[rank].groups} for rank in ranks
    )
    if comparable and 2 * len(waiting[0][1]) > len(ranks):
        told = tuple(sorted(rank for _, found in waiting[1:] for rank in found))
        return Circle(waiting, told, by_majority=True)
    told = tuple(
        rank
        for operation, found in waiting
        for rank in found
        if _differs_from_its_steps(by_rank[rank], operation)
    )
    return Circle(waiting, tuple(sorted(told)) if len(told) < len(ranks) else (), by_majority=False)


def _differs_from_its_steps(state: Standing, operation: PendingOperation) -> bool:
    """True if a rank, from ``operation`` on, issued other operations than it usually issues."""
    since = sum(one.issue_ns >= operation.issue_ns for one in state.pending.values())
    calls = [*state.recent]
    for place in range(max(0, len(calls) - since), len(calls))[:_MOST_COMPARED]:
        usual = usual_after(calls[:place])
        if usual is not None and usual != calls[place]:
            return True
    return False


def chain_to(
    rank: int, waits: Mapping[int, Waits], ranks: Sequence[int]
) -> list[tuple[int, PendingOperation]]:
    """Finds the shortest chain of waits from a rank to one of ``ranks``, with its operations.

    Each entry is a rank and the operation in which this rank waits for the next entry's rank. The
    last entry's rank waits for a rank of ``ranks``. Empty if there is no chain.
    """
    ways: dict[int, list[tuple[int, PendingOperation]]] = {rank: []}
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
