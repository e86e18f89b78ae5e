"""Finds lines of a script at which ranks took different paths before a mismatch.

If a rank leaves out or adds a call, its later calls are compared with the wrong calls of the other
ranks. The compared calls may have the same operation and size by chance, but different lines issued
these calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commprof.text import CALLED_AT

#: For each sequence number of a group, the line at which each rank issued the collective.
LinesByNumber = Mapping[int, Mapping[int, str]]


@dataclass(frozen=True)
class OwnLine:
    """A line at which only some ranks of a group issue collectives."""

    #: The ranks that issue collectives at ``line``, sorted.
    ranks: tuple[int, ...]
    line: str
    #: Largest number of collectives that one of ``ranks`` issued at ``line`` before the mismatch.
    calls: int


def own_line(lines: LinesByNumber, at_mismatch: Mapping[int, str], seq: int) -> OwnLine | None:
    """Finds the line of a mismatch at which only some of the ranks issued earlier collectives.

    An example is a line that only the evaluating rank reaches. When these ranks issued a collective
    at this line, the other ranks must have been at lines that all ranks use. Otherwise the ranks
    may just take different branches of an ``if``, which is no fault.

    Args:
        lines: known lines of the group's collectives.
        at_mismatch: known lines of the ranks in the mismatch.
        seq: sequence number of the mismatch.

    Returns:
        The line; None if there is no such line, or if there are several.
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
    """Finds the earlier collective from which on the ranks issued calls at different lines.

    If a rank leaves out a call, and the next calls have the same operation and size, the ranks'
    calls are shifted against each other. The mismatch is only the first call that looks different.
    There is no shift if the ranks were at the same combination of lines before, as in branches of
    an ``if``.

    Args:
        lines: known lines of the group's collectives.
        seq: sequence number of the mismatch.

    Returns:
        The sequence number and each rank's line; None if no shift was found.
    """

    def of(number: int) -> tuple[tuple[int, str], ...]:
        return tuple(sorted(lines.get(number, {}).items()))

    def differ(number: int) -> bool:
        return len({line for _, line in of(number)}) > 1

    first = seq
    while differ(first - 1):
        first -= 1
    if len(of(first - 1)) < 2:
        return None  # the ranks may always have been at different lines
    usual = {of(number) for number in lines if number < first and differ(number)}
    while first < seq and of(first) in usual:
        first += 1
    return (first, of(first)) if first < seq else None


def is_shift(lines: LinesByNumber, first: int) -> bool:
    """True if a rank issued another collective at a line that some other rank used for ``first``.

    If not, the ranks may just have been in different branches of an ``if`` at ``first``.

    Args:
        lines: known lines of the group's collectives.
        first: the sequence number that :func:`shifted_since` returned.
    """
    at_first = lines.get(first, {})
    return any(
        line in at_first.values() and at_first.get(rank) != line
        for number, by_rank in lines.items()
        if number != first
        for rank, line in by_rank.items()
    )


def innermost(paths: Mapping[int, str]) -> dict[int, str]:
    """Returns the line at which each rank issued a collective, from texts of ``call_path``."""
    return {rank: path.split(CALLED_AT, 1)[0] for rank, path in paths.items()}


def lines_of_parts(
    paths: Mapping[int, str], parts: Sequence[Sequence[int]]
) -> tuple[tuple[int, str], ...]:
    """Returns each rank's line in a mismatch.

    If all ranks are at one line of a helper function, the lines that called the helper are added.
    These lines are not added if they differ between ranks that issued the same collective.

    Args:
        paths: for each rank, the text of ``call_path``; without ranks whose frames are unknown.
        parts: sets of ranks; the ranks of each set issued the same collective.
    """
    lines = innermost(paths)
    apart = dict(told_apart(sorted(paths.items())))
    if all(len({apart[rank] for rank in ranks if rank in apart}) <= 1 for ranks in parts):
        lines = apart
    return tuple(sorted(lines.items()))


def told_apart(paths: Sequence[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """Returns each rank's line; if all ranks are at one line, a calling line is added.

    The added line is the innermost calling line at which the ranks differ. ``paths`` holds the
    ranks and their texts of ``call_path``.
    """
    by_rank = [(rank, path.split(CALLED_AT)) for rank, path in paths]
    depth = min((len(path) for _, path in by_rank), default=0)
    levels = range(depth)
    level = next((i for i in levels if len({path[i] for _, path in by_rank}) > 1), 0)
    return tuple(
        (rank, f"{path[0]}, called at {path[level]}" if level else path[0])
        for rank, path in by_rank
    )
