"""Lines of the script that issued a group's collectives: where ranks parted before a mismatch.

Collectives that look alike hide a call that one rank left out or added: its later calls are
compared with others of the same operation and size. The lines that issued them tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The line of each rank, by the number of the collective in its group.
LinesByNumber = Mapping[int, Mapping[int, str]]


@dataclass(frozen=True)
class OwnLine:
    """A line at which only some ranks of a group issue collectives, and other ranks none."""

    #: Sorted.
    ranks: tuple[int, ...]
    line: str
    #: Largest number of earlier collectives that one of the ranks issued there.
    calls: int


def own_line(lines: LinesByNumber, at_mismatch: Mapping[int, str], seq: int) -> OwnLine | None:
    """Finds the line of a mismatch at which only some ranks issued collectives before it.

    An example is one rank that evaluates alone. The other ranks must have been at lines that all
    share in these collectives: ranks that always issue a collective at lines of their own, as in
    the branches of an ``if``, are no sign.

    Args:
        lines: the lines of all collectives of the group that are known.
        at_mismatch: the line of each rank in the mismatch, as far as known.
        seq: number of the mismatch.

    Returns:
        The line; None if there is none, or if there are several.
    """
    users: dict[str, set[int]] = {}
    for number, by_rank in lines.items():
        if number < seq and len(by_rank) > 1:
            for rank, line in by_rank.items():
                users.setdefault(line, set()).add(rank)
    everyone = {rank for ranks in users.values() for rank in ranks}
    shared = {line for line, ranks in users.items() if ranks == everyone}
    candidates = []
    for line in {*at_mismatch.values()} - shared:
        ranks = {rank for rank, own in at_mismatch.items() if own == line}
        calls = dict.fromkeys(ranks, 0)
        others_shared = True
        for number, by_rank in lines.items():
            if number < seq and line in by_rank.values():
                there = {rank for rank, own in by_rank.items() if own == line}
                others_shared &= all(own in shared for own in by_rank.values() if own != line)
                for rank in there & ranks:
                    calls[rank] += 1
        if users.get(line) == ranks and others_shared and ranks < everyone:
            candidates.append(OwnLine(tuple(sorted(ranks)), line, max(calls.values())))
    return candidates[0] if len(candidates) == 1 else None


def shifted_since(lines: LinesByNumber, seq: int) -> tuple[int, tuple[tuple[int, str], ...]] | None:
    """Finds the first of the collectives before a mismatch that ranks issued at different lines.

    If a rank leaves out a call whose successors have its operation and size, all of its calls are
    those that follow until one looks different. Ranks that always issue a collective at lines of
    their own, as in the branches of an ``if``, have done so before, which is no shift.

    Args:
        lines: the line of each rank, by the number of the collective in its group.
        seq: number of the mismatch.

    Returns:
        The number and each rank's line; None if the lines of the collective before the mismatch
        are the same, not known of several ranks, or usual, or if no earlier collective is known
        that ranks issued at one line.
    """

    def of(number: int) -> tuple[tuple[int, str], ...]:
        return tuple(sorted(lines.get(number, {}).items()))

    def differ(number: int) -> bool:
        return len({line for _, line in of(number)}) > 1

    first = seq
    while differ(first - 1):
        first -= 1
    if len(of(first - 1)) < 2:
        return None  # the ranks may always have been at lines of their own
    usual = {of(number) for number in lines if number < first and differ(number)}
    while first < seq and of(first) in usual:
        first += 1
    return (first, of(first)) if first < seq else None
