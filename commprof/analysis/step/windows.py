"""Divides a long run into windows of steps, to limit memory.

A run with more than ``LONG_CALLS`` calls is analysed one window at a time. All ranks have the same
windows. A window also holds records of the steps before and after it, because waiting and calls may
cross the borders of steps.

Parts of steps, waits and their causes come from all windows. Figures that need all calls together,
such as medians over calls, come from a sample of steps: some stretches of consecutive steps, spread
evenly over the run. If there are very many steps, parts of steps are kept only for a second, larger
sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.found_steps import BACKWARD
from commprof.trace.packed import PackedRecords, packed
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind, Records

#: A run is long if all ranks together have more calls than this.
LONG_CALLS = 1_000_000
#: Number of calls of all ranks in a window.
WINDOW_CALLS = 400_000
#: Number of calls of all ranks in the sample of steps.
SAMPLE_CALLS = 250_000
#: Largest number of rows (steps times ranks) in the tables of the steps' parts.
KEPT_ROWS = 1 << 19
#: The parts of about this many steps or more are kept, even if they exceed ``KEPT_ROWS`` rows.
KEPT_STEPS = 5000
#: Number of stretches of kept steps, if not all steps are kept.
_KEPT_STRETCHES = 64
#: Largest number of stretches in the sample, and least number of steps in a stretch.
_STRETCHES, _FEWEST_STEPS = 5, 8
#: A window also holds the records of this many earlier steps: waiting that was passed from rank to
#: rank may have begun two steps earlier.
_BEFORE = 2
#: A window also holds the records of this many later steps, in which calls may end.
_AFTER = 1
_EVER_NS = 2**63 - 1


@dataclass(frozen=True)
class StepWindows:
    """The windows and the sample of a long run's steps."""

    #: Indices of the steps that all ranks completed, ascending.
    steps: Ints
    #: Mean number of calls of all ranks in a step.
    calls: float

    def windows(self) -> list[Ints]:
        """Returns the indices of the steps in each window."""
        size = max(1, int(WINDOW_CALLS / self.calls))
        return [self.steps[at : at + size] for at in range(0, len(self.steps), size)]

    def kept(self, ranks: int) -> list[Ints]:
        """Returns the indices of the steps whose parts are kept, one array per stretch.

        If the parts of all steps are kept, all steps are one stretch.
        """
        most = max(KEPT_STEPS, KEPT_ROWS // ranks)
        if len(self.steps) <= most:
            return [self.steps]
        shares = np.array_split(self.steps, _KEPT_STRETCHES)  # the first share begins with warm-up
        return [share[: max(1, most // _KEPT_STRETCHES)] for share in shares]

    def sample(self, measured: Ints) -> list[Ints]:
        """Chooses a sample of the ``measured`` steps; returns the step numbers of each stretch."""
        steps = max(1, min(int(SAMPLE_CALLS / self.calls), len(measured)))
        count = max(1, min(_STRETCHES, steps // _FEWEST_STEPS))
        size = steps // count
        shares = np.array_split(measured, count)  # the middle of each share is a stretch
        begins = [(len(share) - size) // 2 for share in shares]
        return [
            self._longest_row(share[at : at + size])
            for share, at in zip(shares, begins, strict=True)
        ]

    def _longest_row(self, steps: Ints) -> Ints:
        """Returns the longest run of steps without a gap."""
        gaps = np.flatnonzero(np.diff(np.searchsorted(self.steps, steps)) != 1) + 1
        return max(np.split(steps, gaps), key=len)


def windows_of(traces: Sequence[Trace]) -> StepWindows | None:
    """Returns the windows of a long run; None if the run is short or cannot be cut.

    A run can be cut if commprof recorded it, and if its steps end at marks of the script or at
    updates. A run with a trial, or with records of NCCL's profiler plugin, cannot be cut.
    """
    calls = sum(_count(trace.records, Kind.ISSUE) for trace in traces)
    if calls <= LONG_CALLS or not all(map(_can_be_cut, traces)):
        return None
    common = columns.steps(traces[0]).index
    for trace in traces[1:]:
        common = np.intersect1d(common, columns.steps(trace).index, assume_unique=True)
    return StepWindows(common, max(1.0, calls / len(common))) if len(common) else None


def sampled(traces: Sequence[Trace]) -> tuple[list[Trace], list[tuple[int, int]]]:
    """Cuts a long run's traces to a sample of its steps; returns other traces unchanged.

    Also returns the first and last step number of each stretch; empty if nothing was cut.
    """
    cut = windows_of(traces)
    if cut is None:
        return list(traces), []
    chosen = cut.sample(cut.steps[1:])  # the first step is always warm-up
    numbers = [(int(steps[0]), int(steps[-1])) for steps in chosen]
    return [stretch(trace, chosen) for trace in traces], numbers


def stretch(trace: Trace, steps: Sequence[Ints]) -> Trace:
    """Returns a rank's trace with only the records of some stretches of steps.

    Args:
        trace: the rank's trace as it was recorded.
        steps: numbers of the steps of each stretch, ascending.
    """
    of_rank = columns.steps(trace)
    spans: list[tuple[int, int]] = []
    for numbers in steps:
        first = int(np.searchsorted(of_rank.index, numbers[0])) - _BEFORE
        last = int(np.searchsorted(of_rank.index, numbers[-1])) + _AFTER
        begin_ns = 0 if first <= 0 else int(of_rank.begin_ns[first])
        end_ns = _EVER_NS if last >= len(of_rank) - 1 else int(of_rank.end_ns[last]) + 1
        if spans and begin_ns <= spans[-1][1]:
            begin_ns = spans.pop()[0]
        spans.append((begin_ns, end_ns))
    records = packed(trace.records).between(spans)
    return replace(trace, records=cast("Records", records))


def steps_in(index: Ints, chosen: Sequence[Ints]) -> npt.NDArray[np.bool_]:
    """Returns a mask of the step numbers in ``index`` that lie in one of the chosen stretches."""
    mask: npt.NDArray[np.bool_] = np.isin(index, np.concatenate(list(chosen)))
    return mask


def _can_be_cut(trace: Trace) -> bool:
    if trace.is_foreign or trace.is_of_nccl or "trial" in trace.metadata:
        return False
    # Figures from these records count the replays of CUDA graphs in the whole run.
    if _count(trace.records, Kind.NCCL_OP):
        return False
    steps = columns.steps(trace)
    ascending = bool((np.diff(steps.index) > 0).all())
    return len(steps) > 0 and steps.source != BACKWARD and ascending


def _count(records: Records, kind: Kind) -> int:
    if isinstance(records, PackedRecords):
        return records.count(kind)
    return int((records["kind"] == kind).sum())
