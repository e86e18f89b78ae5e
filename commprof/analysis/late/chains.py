"""Describes the chains of waiting ranks that lead to the culprits of a hang.

Ranks that wait in the same operations for the same ranks share a chain. A job with many groups has
too many chains to read. Then ranks are described by their distance from the culprits, and
operations that differ only in their group are described together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from commprof.analysis.late.circles import chain_to
from commprof.analysis.late.dumped_diagnosis import Chain
from commprof.analysis.late.standing import PendingOperation, Waits, Words
from commprof.text import counted, named_ranks

_MOST_CHAINS = 8
#: Largest number of ranges of ranks in a sentence on many groups.
_MOST_RANGES = 8


def chains_to(
    waiting: Sequence[int], waits: Mapping[int, Waits], culprits: Sequence[int], words: Words
) -> tuple[Chain, ...]:
    """Returns the chains of waits that lead from ranks to the culprits.

    Args:
        waiting: the ranks that may wait.
        waits: result of ``waits_of``.
        culprits: ranks at which the chains end.
        words: describes groups and operations.
    """
    shared: dict[tuple[str, ...], list[int]] = {}
    for rank in waiting:
        way = [] if rank in culprits else chain_to(rank, waits, culprits)
        if way:
            last = dict(waits[way[-1][0]])[way[-1][1]]
            ends = named_ranks([rank for rank in last if rank in culprits])
            links = tuple(
                f"in {words.operation(op)} for {_next(way, at, ends)}"
                for at, (_, op) in enumerate(way)
            )
            shared.setdefault(links, []).append(rank)
    if len(shared) > _MOST_CHAINS:
        return tuple(_by_distance(waiting, waits, culprits, words))
    return tuple(
        Chain(tuple(ranks), f"{_subject(ranks)} " + ", which waits ".join(links))
        for links, ranks in sorted(shared.items(), key=lambda item: item[1])
    )


def _next(way: Sequence[tuple[int, PendingOperation]], at: int, ends: str) -> str:
    return ends if at + 1 == len(way) else f"rank {way[at + 1][0]}"


def _subject(ranks: Sequence[int], most: int = 2 * _MOST_RANGES) -> str:
    return f"{named_ranks(ranks, most)} wait{'s' * (len(ranks) == 1)}"


def _by_distance(
    waiting: Sequence[int], waits: Mapping[int, Waits], culprits: Sequence[int], words: Words
) -> Iterator[Chain]:
    """Yields chains of ranks with the same distance from the culprits, the nearest ranks first."""
    reached, left = {*culprits}, [rank for rank in waiting if rank not in culprits]
    while left:
        #: By name and sequence number of operations: groups, waiting ranks, awaited ranks, and one
        #: operation.
        found: dict[tuple[str, int], tuple[set[str], list[int], set[int], PendingOperation]] = {}
        for rank in left:
            for operation, absent in waits[rank]:
                if ends := reached & {*absent}:
                    key = operation.op, operation.seq if operation.peer < 0 else -1
                    parts = found.setdefault(key, (set(), [], set(), operation))
                    parts[0].add(operation.group)
                    parts[1].append(rank)
                    parts[2].update(ends)
                    break
        for groups, ranks, ends, operation in found.values():
            where = words.operation(operation)
            if len(groups) > 1:
                number = f" number {operation.seq}" if operation.peer < 0 else ""
                where = f"{operation.op}{number} of {counted(len(groups), 'group')}"
            elif operation.peer >= 0 and len(ranks) > 1:
                where = f"{operation.op} of {words.group(operation.group)}"
            who = named_ranks(ends, _MOST_RANGES)
            yield Chain(tuple(ranks), f"{_subject(ranks, _MOST_RANGES)} in {where} for {who}")
        new = {rank for _, ranks, _, _ in found.values() for rank in ranks}
        if not new:
            return
        reached, left = new, [rank for rank in left if rank not in new]
