"""Finds the steps of a job from repeated calls in NCCL Inspector's logs.

The logs do not mark steps, but each training step makes the same calls. If the collectives of a
communicator repeat a sequence of several kinds or sizes, each repetition (turn) is a step, or a
part of a step such as a micro-batch. The communicator with the fewest turns defines the steps. The
numbers of turns of all other communicators must be multiples of its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from commprof.analysis.inspector.kinds import SPLIT, UNSPLIT, size_factor

if TYPE_CHECKING:
    from commprof._reading import InspectorMember

#: A log may lack up to this number of turns (repetitions), at its begin and end together.
_EDGES = 2
_FEWEST_TURNS = 3


@dataclass(frozen=True)
class RepeatedCalls:
    """The sequence of collectives that a communicator repeats."""

    communicator: str
    #: c10d's name and nccl-tests' size of each call. The first call need not begin a step.
    calls: tuple[tuple[str, int], ...]
    turns: int

    @property
    def text(self) -> str:
        """The calls in words, such as "2 all_reduce of 1024 B"."""
        words = []
        for (op, size_bytes), same in groupby(self.calls):
            times = len(list(same))
            words.append(f"{f'{times} ' if times > 1 else ''}{op} of {size_bytes} B")
        return ", ".join(words)


def repeated_calls(
    label: str, ranks: int, members: Iterable[InspectorMember]
) -> RepeatedCalls | None:
    """Returns the sequence of calls that a communicator repeats; None if it is not known.

    Args:
        label: the communicator's name.
        ranks: the communicator's size.
        members: the communicator's members. The first member with a known sequence is used.
    """
    for member in members:
        calls, turns, _ = member.sequence()
        if calls:
            named = tuple(
                ({**SPLIT, **UNSPLIT}.get(kind, kind), size_bytes * size_factor(kind, ranks))
                for kind, size_bytes in calls
            )
            return RepeatedCalls(label, named, turns)
    return None


def steps_of(found: Sequence[RepeatedCalls | None]) -> RepeatedCalls | None:
    """Returns the sequence whose turns are the job's steps; None if it is not known.

    Args:
        found: the sequence of each communicator with collectives; None if no calls repeat.
    """
    several = [one for one in found if one is not None and len(set(one.calls)) > 1]
    if not several or None in found:
        return None
    step = min(several, key=lambda one: one.turns)
    if step.turns < _FEWEST_TURNS:
        return None
    for one in found:
        assert one is not None
        times = round(one.turns / step.turns)
        if times < 1 or abs(one.turns - times * step.turns) > times * _EDGES:
            return None
    return step
