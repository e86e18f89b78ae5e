"""Finds step boundaries: declared by the script, or at updates or backward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.trace import schema
from commprof.trace.packed import records_of
from commprof.trace.schema import Kind, Phase, Records

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Events at which a trace's steps may end; see ``step_marks``.
SOURCES = DECLARED, UPDATE, BACKWARD = "declared", "update", "backward"


@dataclass(frozen=True)
class StepMarks:
    """Step boundaries in order of time."""

    #: DECLARED, UPDATE or BACKWARD; DECLARED also if there are no steps.
    source: str
    time_ns: Ints
    step: Ints
    #: True if ``step`` ends at the boundary, False if it only begins.
    ends: Mask
    thread: Ints


def chosen_marks(ends: Mask, seq: npt.NDArray[Any], rank: Ints, ranks: int) -> tuple[Mask, Mask]:
    """Chooses the step boundaries of each rank among all recorded boundaries.

    If the script declared any end of a step, boundaries at updates are ignored.

    Args:
        ends: True for a boundary at which a step ends.
        seq: source of each boundary, such as ``schema.STEP_DECLARED``.
        rank: index of each boundary's rank.
        ranks: number of ranks.

    Returns:
        A mask of the chosen boundaries, and a mask of the ranks whose scripts declared boundaries.
        Both masks are False for a rank without a boundary at which a step ends.
    """
    declared = seq == schema.STEP_DECLARED
    by_script, ended = (
        np.bincount(rank[mask], minlength=ranks) > 0 for mask in (ends & declared, ends)
    )
    return np.where(by_script[rank], declared, ended[rank]), by_script


def complete_steps(step: Ints, ends: Mask, rank: Ints) -> Ints:
    """Returns the rows of the boundaries that end a complete step.

    A step is complete if it begins at the boundary directly before its end. This fails for a step
    whose first boundary was dropped by a full ring.
    """
    begun = step + ends  # index of the step that begins at each boundary
    complete = ends[1:] & (begun[:-1] == step[1:]) & (rank[:-1] == rank[1:])
    rows: Ints = 1 + np.flatnonzero(complete)
    return rows


def step_marks(records: Records) -> StepMarks:
    """Returns the step boundaries of a trace, see :func:`chosen_marks`.

    If the whole trace has no boundary at which a step ends, each backward pass that issued a
    collective ends a step.
    """
    marks = records_of(records, Kind.STEP)
    ends, one_rank = marks["aux"] == 1, np.zeros(len(marks), dtype=np.int64)
    source = DECLARED
    if ends.any():
        chosen, (by_script,) = chosen_marks(ends, marks["seq"], one_rank, 1)
        marks = marks.compress(chosen)
        source = DECLARED if by_script else UPDATE
    elif len(marks):
        times = communicating_backwards(records, int(marks["thread"][0]))
        if len(times):
            return _at_backwards(marks, times)
    return StepMarks(
        source=source,
        time_ns=marks["timestamp_ns"].astype(np.int64),
        step=marks["op_id"].astype(np.int64),
        ends=marks["aux"] == 1,
        thread=marks["thread"].astype(np.int64),
    )


def communicating_backwards(records: Records, thread: int) -> Ints:
    """Returns the end times of the thread's backward passes that issued a collective, in ns."""
    return first_issues(records, thread)[0]


def first_issues(records: Records, thread: int) -> tuple[Ints, Records]:
    """Finds the thread's backward passes that issued a collective.

    Returns the end time of each pass in ns, and the record of its first collective.
    """
    phases = records_of(records, Kind.PHASE)
    phases = phases.compress((phases["aux"] == Phase.BACKWARD) & (phases["thread"] == thread))
    issues = records_of(records, Kind.ISSUE)
    issues = issues.compress(issues["value"] > 0)
    issued = issues["timestamp_ns"]  # ascending, because records are in order of time
    first = np.searchsorted(issued, phases["timestamp_ns"], side="left")
    last = np.searchsorted(issued, phases["value"], side="right")
    found = last > first
    return phases["value"][found].astype(np.int64), issues.take(first[found])


def _at_backwards(marks: Records, passes_ns: Ints) -> StepMarks:
    """Returns steps that end at the ends of backward passes.

    Args:
        marks: where capture began or resumed; a step also begins there.
        passes_ns: ends of the backward passes.
    """
    begins_ns = marks["timestamp_ns"].astype(np.int64)
    passes_ns = passes_ns[passes_ns > begins_ns[0]]
    step = np.append(np.searchsorted(passes_ns, begins_ns), np.arange(len(passes_ns)))
    time_ns = np.append(begins_ns, passes_ns)
    order = np.argsort(time_ns, kind="stable")
    return StepMarks(
        source=BACKWARD,
        time_ns=time_ns[order],
        step=step[order],
        ends=order >= len(begins_ns),
        thread=np.full(len(order), int(marks["thread"][0]), dtype=np.int64),
    )
