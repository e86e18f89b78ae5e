"""The usual order of a step's events, and every recorded step in that order.

A wait that found its collective complete may take too short to be recorded. Another step, or
another rank, had to wait there: so a wait that is missing lies where it does in the others, between
the events around it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from commprof.predict.sharded.cycles import Event, RankCycle

Floats = npt.NDArray[np.float64]

#: Orders that are tried, those with the most events first.
_MOST_TRIED = 20


def usual_events(found: Sequence[RankCycle]) -> tuple[Event, ...]:
    """The order of events that most cycles follow; of several the one with the most events."""
    longest = sorted({each.events for each in found}, key=len, reverse=True)[:_MOST_TRIED]
    return max(
        longest,
        key=lambda events: sum(in_usual_order(each, events) is not None for each in found),
    )


def in_usual_order(found: RankCycle, events: Sequence[Event]) -> Floats | None:
    """``[3, events]``: own time, update and extra, NaN where missing.

    None where the cycle's events come in another order.
    """
    place = {event: number for number, event in enumerate(events)}
    if not all(event in place for event in found.events):
        return None
    at = np.array([place[event] for event in found.events], dtype=np.int64)
    if (np.diff(at) <= 0).any():
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
