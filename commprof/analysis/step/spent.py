"""Computes how long a rank's training thread spends in each activity.

The activities are phases of work, pauses of the process, time without a core, transfers, and
waiting for other ranks. Each activity can make other ranks wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.exposure import (
    CAUSES,
    HOST_PAUSE,
    NO_CORE,
    TRANSFER,
    UNKNOWN,
    Exposures,
    pauses,
    run_delay,
)
from commprof.analysis.step.waiting import Waiting
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase
from commprof.trace.stretches import Windows, outside, stretches, within

Floats = npt.NDArray[np.float64]

#: Column of ``RankTime.spent`` for waiting. The columns before it are the entries of ``CAUSES``
#: before ``UNKNOWN``.
WAITING = CAUSES.index(UNKNOWN)
_PAUSED, _NO_CORE, _TRANSFER = map(CAUSES.index, (HOST_PAUSE, NO_CORE, TRANSFER))


class RankTime:
    """Waits of one rank, and its time in each activity between any two moments."""

    def __init__(self, trace: Trace, exposed: Exposures, waiting: Waiting) -> None:
        """Takes a trace, its exposures, and their split into waiting and transfer."""
        self.waiting = waiting
        #: Wait per exposure; 0 if unknown.
        self.wait_ns: Floats = waiting.wait_ns
        if np.isnan(self.wait_ns).any():
            self.wait_ns = np.nan_to_num(self.wait_ns, nan=0.0)
        self.begin_ns, self.end_ns = exposed.begin_ns, exposed.end_ns
        self._exposed = exposed
        length = exposed.end_ns - exposed.begin_ns
        share = self.wait_ns / np.maximum(1.0, exposed.waited_ns)
        #: Time at which waiting turned into transfer in each exposure.
        self._turned_ns = exposed.begin_ns + np.rint(share * length).astype(np.int64)
        self._paused = pauses(trace, exposed)
        steps, phases = columns.steps(trace), columns.phases(trace)
        thread = int(steps.thread[0]) if len(steps) else 0
        self._run_delay = run_delay(trace, exposed, thread)
        mine = (phases.thread == thread) & (phases.key < len(Phase))
        self._phase = phases.key[mine]
        self._phase_at = phases.begin_ns[mine], phases.end_ns[mine]
        declared = (
            stretches(*(side[self._phase == phase] for side in self._phase_at))
            for phase in range(len(Phase))
        )
        self._delays = [self._run_delay.within(each) for each in declared]

    @cached_property
    def stood_ns(self) -> Ints:
        """Per exposure: time at which the thread began to wait.

        All exposures at the end of a DDP backward pass count as one wait, which begins with the
        first exposure.
        """
        task, result = self._exposed.graph_task, self.begin_ns
        if not (task >= 0).any():
            return result
        _, first, same = np.unique(task, return_index=True, return_inverse=True)
        return np.where(task >= 0, result[first][same.reshape(-1)], result)

    def waits_in(self, begin_ns: int, end_ns: int) -> tuple[Ints, Floats]:
        """Returns the rows of the waits that overlap a window, and each overlap in ns."""
        first = np.searchsorted(self._ended_ns, begin_ns, side="right")
        last = np.searchsorted(self.begin_ns, end_ns, side="left")
        rows = np.arange(first, last)
        begin, turned = self.begin_ns[rows], self._turned_ns[rows]
        inside = np.minimum(turned, end_ns) - np.maximum(begin, begin_ns)
        amount = np.maximum(0, inside) / np.maximum(1, turned - begin) * self.wait_ns[rows]
        return rows[amount > 0], amount[amount > 0]

    @cached_property
    def _ended_ns(self) -> Ints:
        """Per exposure: the latest end of this exposure and all earlier exposures."""
        return np.maximum.accumulate(self.end_ns)

    def spent(self, begin_ns: Ints, end_ns: Ints) -> Floats:
        """Returns the time in ns as ``[window, activity]``; the last column is waiting."""
        spent = np.zeros((len(begin_ns), WAITING + 1))
        for activity, spent_ns in self.spent_in(begin_ns, end_ns):
            spent[:, activity] = spent_ns
        return spent

    def spent_in(self, begin_ns: Ints, end_ns: Ints) -> Iterator[tuple[int, Floats]]:
        """Yields columns of :meth:`spent`, in any order; columns that are left out are 0."""
        exposed, (first, last) = self._exposed, self._phase_at
        windows = Windows(begin_ns, end_ns)
        delays = [delay.in_windows(windows) for delay in self._delays]
        whole = self._run_delay.in_windows(windows)
        for phase, waits in enumerate(self._waits_by_phase):
            mine = self._phase == phase
            if phase != Phase.OTHER and waits is None and not mine.any():
                continue
            spent = windows.covered(first[mine], last[mine])
            if waits is not None:
                spent -= windows.covered(
                    exposed.begin_ns[waits], exposed.end_ns[waits], exposed.waited_ns[waits]
                )
            if len(self._paused):
                paused = within(self._paused, stretches(first[mine], last[mine]))
                spent -= windows.covered(paused.begin_ns, paused.end_ns)
            spent -= delays[phase]
            if phase == Phase.OTHER:
                undeclared = (end_ns - begin_ns) - windows.covered(first, last)
                if len(self._paused):
                    paused = outside(self._paused, stretches(first, last))
                    undeclared -= windows.covered(paused.begin_ns, paused.end_ns)
                spent += undeclared
                spent -= whole - sum(delays)
            yield phase, spent
        del delays
        if whole.any():
            yield _NO_CORE, whole
        if len(self._paused):
            yield _PAUSED, windows.covered(self._paused.begin_ns, self._paused.end_ns)
        yield WAITING, windows.covered(self.begin_ns, self._turned_ns, self.wait_ns)
        transfer_ns = exposed.waited_ns - self.wait_ns
        yield _TRANSFER, windows.covered(self._turned_ns, self.end_ns, transfer_ns)

    @cached_property
    def _waits_by_phase(self) -> list[npt.NDArray[np.int32] | slice | None]:
        """Per phase: rows of the exposures that began in the phase; None if there are none."""
        (first, last), since = self._phase_at, self.begin_ns
        if not len(first):
            everything = slice(None) if len(since) else None
            return [everything if phase == Phase.OTHER else None for phase in range(len(Phase))]
        inside = np.maximum(0, np.searchsorted(first, since, side="right") - 1)
        declared = (first[inside] <= since) & (since < last[inside])
        in_phase = np.where(declared, self._phase[inside], int(Phase.OTHER)).astype(np.int8)
        rows = (np.flatnonzero(in_phase == phase).astype(np.int32) for phase in range(len(Phase)))
        return [of_phase if len(of_phase) else None for of_phase in rows]
