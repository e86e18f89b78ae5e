"""Whether candidates of a trial took turns in recorded steps, which then are not one setting's."""

from __future__ import annotations

from typing import Any

import numpy as np

from commprof.trace import columns
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun


def in_turns(run: WorldRun) -> bool:
    """Whether a trial began in some rank's trace."""
    return any(trial_of(trace) is not None for trace in run.traces.values())


def trial_of(trace: Trace) -> dict[str, Any] | None:
    """The trial that began in this trace; None where there was none.

    Metadata go on into later traces of the same process: such a trial began in no step of them.
    """
    trial: dict[str, Any] | None = trace.metadata.get("trial")
    if trial is None:
        return None
    steps = columns.steps(trace)
    at = np.flatnonzero(steps.index == trial["first_step"])
    began = int(trial["begin_monotonic_ns"])
    inside = (steps.begin_ns[at] <= began) & (began < steps.end_ns[at])
    return trial if inside.any() else None
