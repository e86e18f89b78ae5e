"""Steps of a job, found from calls that repeat in NCCL Inspector's logs.

The logs have no steps. But a training step makes the same calls each time: if the collectives of a
communicator repeat a sequence of several kinds or sizes, each repetition (turn) is a step, or a
part of a step such as a micro-batch. Of several communicators, the one with the fewest turns
defines the steps, if the numbers of turns of all others are multiples of its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from commprof.analysis.inspector.kinds import SPLIT, UNSPLIT, size_factor

if TYPE_CHECKING:
    from commprof._reading import InspectorMember

#: Number of turns (repetitions) that may be cut off at the two ends of a log together.
_EDGES = 2
_FEWEST_TURNS = 3


@dataclass(frozen=True)
class RepeatedCalls:
    """The sequence of collectives that a communicator repeats."""

    communicator: str
    #: c10d's name and nccl-tests' size of each call; the first call may be anywhere in a step.
    calls: tuple[tuple[str, int], ...]
    turns: int
    #: Number of calls before the first turn, such as calls of the set-up.
    calls_before: int

    @property
    def text(self) -> str:
        """The calls in words; equal calls in a row are counted."""
        words = []
        for (op, size_bytes), same in groupby(self.calls):
            times = len(list(same))
            words.append(f"{f'{times} ' if times > 1 else ''}{op} of {size_bytes} B")
        return ", ".join(words)


def repeated_calls(
    label: str, ranks: int, members: Iterable[InspectorMember]
) -> RepeatedCalls | None:
    """Returns the sequence that a communicator repeats; None if there is none, or calls are lost.

    Args:
        label: the communicator's name.
        ranks: its size.
        members: its members; the first one whose log has no gap is used.
    """
    for member in members:
        calls, turns, before = member.sequence()
        if calls:
            named = tuple(
                ({**SPLIT, **UNSPLIT}.get(kind, kind), size_bytes * size_factor(kind, ranks))
                for kind, size_bytes in calls
            )
            return RepeatedCalls(label, named, turns, before)
    return None


def steps_of(found: Sequence[RepeatedCalls | None]) -> RepeatedCalls | None:
    """Returns the sequence whose turns are the job's steps; None if it is not known.

    Args:
        found: the sequence of each communicator with collectives; None where nothing repeats.
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
