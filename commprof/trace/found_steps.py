"""Step boundaries of a loop that declared none: at updates, else at backward passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.trace import schema
from commprof.trace.schema import Kind, Phase, Records

Ints = npt.NDArray[np.int64]

#: Where a trace's steps end; see ``step_marks``.
SOURCES = DECLARED, UPDATE, BACKWARD = "declared", "update", "backward"


@dataclass(frozen=True)
class StepMarks:
    """Boundaries in order of time, as the records of kind STEP hold them."""

    #: DECLARED, UPDATE or BACKWARD; DECLARED also where there is no step at all.
    source: str
    time_ns: Ints
    step: Ints
    #: Whether ``step`` ends here, or only begins.
    ends: npt.NDArray[np.bool_]
    thread: Ints


def step_marks(records: Records) -> StepMarks:
    """Returns the step boundaries that count.

    What the script declared wins over what was found at updates. Where the whole trace has
    neither, each backward pass that communicated ends a step.
    """
    marks = records[records["kind"] == Kind.STEP]
    ends = marks["aux"] == 1
    declared = marks["seq"] == schema.STEP_DECLARED
    source = DECLARED
    if (ends & declared).any():
        marks = marks[declared]
    elif ends.any():
        source = UPDATE
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
    """Ends of the thread's backward passes in which a collective was issued, in ns."""
    phases = records[
        (records["kind"] == Kind.PHASE)
        & (records["aux"] == Phase.BACKWARD)
        & (records["thread"] == thread)
    ]
    issues = records[(records["kind"] == Kind.ISSUE) & (records["value"] > 0)]
    issued = issues["timestamp_ns"]  # ordered, as all records
    first = np.searchsorted(issued, phases["timestamp_ns"], side="left")
    last = np.searchsorted(issued, phases["value"], side="right")
    return phases["value"][last > first].astype(np.int64)


def _at_backwards(marks: Records, times: Ints) -> StepMarks:
    """Steps between the ends of backward passes; the first begins with capture."""
    begin, thread = int(marks["timestamp_ns"][0]), int(marks["thread"][0])
    after = times[times > begin]
    count = len(after)
    return StepMarks(
        source=BACKWARD,
        time_ns=np.concatenate(([begin], after)),
        step=np.concatenate(([0], np.arange(count))),
        ends=np.concatenate(([False], np.ones(count, dtype=bool))),
        thread=np.full(count + 1, thread, dtype=np.int64),
    )
