"""The usual order of a step's events, and every recorded step in that order.

A wait that found its collective complete may take too short to be recorded. Another step, or
another rank, had to wait there: so a wait that is missing lies where it does in the others, between
the events around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from commprof.predict.sharded.cycles import Event, RankCycle

Floats = npt.NDArray[np.float64]


def usual_events(found: Sequence[RankCycle]) -> tuple[Event, ...]:
    """An order with all events of the cycles that follow it; those that contradict are not in it.

    Each cycle may lack other waits, so that no single one has them all. What one cycle has before
    another event is before it in the result, beginning with the orders that most cycles have.
    """
    before: dict[Event, set[Event]] = {}
    result: tuple[Event, ...] = ()
    for events, _ in Counter(each.events for each in found).most_common():
        if _places(events, result) is not None:
            continue
        grown = {event: {*earlier} for event, earlier in before.items()}
        for event in events:
            grown.setdefault(event, set())
        for first, second in pairwise(events):
            grown[second].add(first)
        try:
            result = tuple(TopologicalSorter(grown).static_order())
        except CycleError:
            continue
        before = grown
    return result


def _places(events: Sequence[Event], order: Sequence[Event]) -> npt.NDArray[np.int64] | None:
    """Where events stand in an order; None where one does not, or they come in another order."""
    place = {event: number for number, event in enumerate(order)}
    if not all(event in place for event in events):
        return None
    at = np.array([place[event] for event in events], dtype=np.int64)
    return None if (np.diff(at) <= 0).any() else at


def in_usual_order(found: RankCycle, events: Sequence[Event]) -> Floats | None:
    """``[3, events]``: own time, update and extra, NaN where missing.

    None where the cycle's events come in another order.
    """
    at = _places(found.events, events)
    if at is None:
        return None
    values = np.full((3, len(events)), np.nan)
    values[:, at] = found.own_ns, found.update_ns, found.extra_ns
    return values


def filled(table: Floats) -> Floats:
    """``[cycles, events]`` of times that grow, with what is missing put where it usually lies."""
    padded = np.concatenate([np.zeros((len(table), 1)), table], axis=1)
    result = padded.copy()
    for event in np.flatnonzero(np.isnan(padded).any(axis=0)).tolist():
        for cycle in np.flatnonzero(np.isnan(padded[:, event])).tolist():
            known = np.flatnonzero(~np.isnan(padded[cycle]))
            before = known[known < event].max()
            after = known[known > event].min(initial=len(padded[cycle]) - 1)
            if np.isnan(padded[cycle, after]):  # nothing follows in this cycle
                result[cycle, event] = padded[cycle, before]
                continue
            begin, end = padded[cycle, [before, after]]
            result[cycle, event] = begin + (end - begin) * _share(padded, before, event, after)
    return result[:, 1:]


def _share(table: Floats, before: int, event: int, after: int) -> float:
    """How far an event lies between two others, in the median of the cycles that have all three."""
    length = table[:, after] - table[:, before]
    part = (table[:, event] - table[:, before])[length > 0] / length[length > 0]
    part = part[~np.isnan(part)]
    return float(np.clip(np.median(part), 0, 1)) if len(part) else 0.0
