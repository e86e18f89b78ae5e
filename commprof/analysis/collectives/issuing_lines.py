"""Lines of the script that issued a group's collectives.

The lines show where ranks took different paths before a mismatch.

If a rank leaves out or adds a call, its later calls are compared with the wrong calls of the other
ranks. This goes unnoticed as long as the compared calls have the same operation and size; but
different lines issued them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commprof.text import CALLED_AT

#: Maps a collective's sequence number in its group to the line at which each rank issued it.
LinesByNumber = Mapping[int, Mapping[int, str]]


@dataclass(frozen=True)
class OwnLine:
    """A line at which only some ranks of a group issue collectives."""

    #: The ranks that issue collectives at ``line``, sorted.
    ranks: tuple[int, ...]
    line: str
    #: Number of collectives that a rank issued at ``line`` before the mismatch: the largest number
    #: among ``ranks``.
    calls: int


def own_line(lines: LinesByNumber, at_mismatch: Mapping[int, str], seq: int) -> OwnLine | None:
    """Finds the line of a mismatch at which only some of the ranks issued earlier collectives.

    An example is a line that only the rank that evaluates reaches. Whenever these ranks issued an
    earlier collective at this line, the other ranks must have issued it at lines that all ranks
    use. Otherwise the ranks may just take different branches of an ``if``, which is no fault.

    Args:
        lines: known lines of the group's collectives.
        at_mismatch: each rank's line in the mismatch, as far as known.
        seq: sequence number of the mismatch.

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

    The search goes back from the mismatch to the last collective that all ranks issued at one line.

    If a rank leaves out a call, and the next calls have the same operation and size, the ranks'
    calls are shifted against each other. The mismatch is only the first call that looks different.
    If the ranks were at this combination of lines before too, as in branches of an ``if``, this is
    no shift.

    Args:
        lines: known lines of the group's collectives.
        seq: sequence number of the mismatch.

    Returns:
        The sequence number and each rank's line. None in each of these cases: in the last
        collective before the mismatch, the ranks were at one line; the lines of this collective are
        known for fewer than two ranks; the same combination of lines occurred before; no earlier
        collective is known in which the ranks were at one line.
    """

    def of(number: int) -> tuple[tuple[int, str], ...]:
        return tuple(sorted(lines.get(number, {}).items()))

    def differ(number: int) -> bool:
        return len({line for _, line in of(number)}) > 1

    first = seq
    while differ(first - 1):
        first -= 1
    if len(of(first - 1)) < 2:
        return None  # the ranks may always have issued at different lines
    usual = {of(number) for number in lines if number < first and differ(number)}
    while first < seq and of(first) in usual:
        first += 1
    return (first, of(first)) if first < seq else None


def is_shift(lines: LinesByNumber, first: int) -> bool:
    """True if a rank issued another collective at a line that some other rank used for ``first``.

    If not, there may be no shift: at ``first`` the ranks may just be in branches of an ``if``, such
    as one for the root of a broadcast and one for the others, and only a later call differs.

    lines: as for :func:`shifted_since`. first: the sequence number that this function returned.
    """
    at_first = lines.get(first, {})
    return any(
        line in at_first.values() and at_first.get(rank) != line
        for number, by_rank in lines.items()
        if number != first
        for rank, line in by_rank.items()
    )


def innermost(paths: Mapping[int, str]) -> dict[int, str]:
    """Returns the lines that issued a collective, by rank; ``paths`` as ``call_path`` returns."""
    return {rank: path.split(CALLED_AT, 1)[0] for rank, path in paths.items()}


def lines_of_parts(
    paths: Mapping[int, str], parts: Sequence[Sequence[int]]
) -> tuple[tuple[int, str], ...]:
    """Returns each rank's line at a sequence number at which the ranks' collectives differ.

    All ranks may have issued them at one line of a helper function. Then the lines from which the
    helper was called are added, unless they differ between ranks that issued the same collective.

    Args:
        paths: by rank, the lines of the script's frames as ``call_path`` returns them; without
            ranks whose frames are not known.
        parts: sets of ranks; the ranks of each set issued the same collective.
    """
    lines = innermost(paths)
    apart = dict(told_apart(sorted(paths.items())))
    if all(len({apart[rank] for rank in ranks if rank in apart}) <= 1 for ranks in parts):
        lines = apart
    return tuple(sorted(lines.items()))


def told_apart(paths: Sequence[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """Returns each rank's line; if all ranks are at one line, also a line that tells them apart.

    This is the innermost calling line at which the ranks differ. ``paths``: by rank, the lines of
    the script's frames as ``call_path`` returns them.
    """
    by_rank = [(rank, path.split(CALLED_AT)) for rank, path in paths]
    depth = min((len(path) for _, path in by_rank), default=0)
    levels = range(depth)
    level = next((i for i in levels if len({path[i] for _, path in by_rank}) > 1), 0)
    return tuple(
        (rank, f"{path[0]}, called at {path[level]}" if level else path[0])
        for rank, path in by_rank
    )
