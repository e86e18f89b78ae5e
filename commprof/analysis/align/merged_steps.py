"""Steps that hold several iterations, because a script left an update out."""

from __future__ import annotations

import numpy as np

from commprof.trace.columns import Ints, Steps
from commprof.trace.found_steps import UPDATE, communicating_backwards
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind, Phase


def merged_steps(trace: Trace, steps: Steps) -> Ints:
    """Indices of found steps that are several iterations in one.

    A step is one if it holds m >= 2 times the usual number of backward passes that
    communicated, and fewer than m times the usual number of updates. Usual is what more than
    half of all steps hold; without such a number nothing can be told, and nothing is named.
    """
    none = np.empty(0, dtype=np.int64)
    if steps.source != UPDATE or len(steps) == 0:
        return none
    thread = int(steps.thread[0])
    records = trace.records
    updates = records[
        (records["kind"] == Kind.PHASE)
        & (records["aux"] == Phase.OPTIMIZER)
        & (records["thread"] == thread)
    ]["value"].astype(np.int64)
    passes = _within(steps, communicating_backwards(records, thread))
    updated = _within(steps, updates)
    usual_passes, usual_updates = _usual(passes), _usual(updated)
    if not usual_passes or not usual_updates:
        return none
    times = passes // usual_passes
    several = (times >= 2) & (passes % usual_passes == 0)
    return steps.index[several & (updated < times * usual_updates)]


def _within(steps: Steps, ends_ns: Ints) -> Ints:
    """How many of these moments each step holds; a step holds its own end."""
    ends_ns = np.sort(ends_ns)
    first = np.searchsorted(ends_ns, steps.begin_ns, side="right")
    return (np.searchsorted(ends_ns, steps.end_ns, side="right") - first).astype(np.int64)


def _usual(counts: Ints) -> int:
    """The number that more than half of them are; 0 without one."""
    values, times = np.unique(counts, return_counts=True)
    most = int(np.argmax(times))
    return int(values[most]) if 2 * times[most] > len(counts) else 0
