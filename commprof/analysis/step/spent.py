"""Time that a rank's training thread spends in each activity that can make other ranks wait.

These activities are phases of work, pauses of the process, time without a core, transfers, and
waiting for other ranks.
"""

from __future__ import annotations

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

#: Column of ``RankTime.spent`` for waiting for other ranks; the columns before are ``CAUSES``.
WAITING = CAUSES.index(UNKNOWN)
_PAUSED, _NO_CORE, _TRANSFER = map(CAUSES.index, (HOST_PAUSE, NO_CORE, TRANSFER))


class RankTime:
    """Time of one rank: its waits, and its activities between any two moments."""

    def __init__(self, trace: Trace, exposed: Exposures, waiting: Waiting) -> None:
        """Takes a trace, its exposures, and their split into waiting and transfer."""
        self.waiting = waiting
        #: Wait per exposure; 0 if unknown.
        self.wait_ns: Floats = np.nan_to_num(waiting.wait_ns, nan=0.0)
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
        #: Run delay by phase.
        self._delays = [self._run_delay.within(each) for each in declared]

    @cached_property
    def stood_ns(self) -> Ints:
        """Per exposure: time at which the thread began to wait.

        When DDP finalises a backward pass, it waits for one bucket after another. For all
        exposures of such a pass, this time is the start of the first exposure.
        """
        task, result = self._exposed.graph_task, self.begin_ns
        if not (task >= 0).any():
            return result
        _, first, same = np.unique(task, return_index=True, return_inverse=True)
        return np.where(task >= 0, result[first][same.reshape(-1)], result)

    def waits_in(self, begin_ns: int, end_ns: int) -> tuple[Ints, Floats]:
        """Returns the rows of the waits that overlap a window, and the overlap of each in ns."""
        first = np.searchsorted(self._ended_ns, begin_ns, side="right")
        last = np.searchsorted(self.begin_ns, end_ns, side="left")
        rows = np.arange(first, last)
        begin, turned = self.begin_ns[rows], self._turned_ns[rows]
        inside = np.minimum(turned, end_ns) - np.maximum(begin, begin_ns)
        amount = np.maximum(0, inside) / np.maximum(1, turned - begin) * self.wait_ns[rows]
        return rows[amount > 0], amount[amount > 0]

    @cached_property
    def _ended_ns(self) -> Ints:
        """Per exposure: the latest end of this exposure and all earlier ones."""
        return np.maximum.accumulate(self.end_ns)

    def spent(self, begin_ns: Ints, end_ns: Ints) -> Floats:
        """Returns the ns of each window by activity: ``[window, activity]``; waiting comes last."""
        exposed, (first, last) = self._exposed, self._phase_at
        windows = Windows(begin_ns, end_ns)
        spent = np.zeros((len(windows), WAITING + 1))
        inside = np.maximum(0, np.searchsorted(first, exposed.begin_ns, side="right") - 1)
        in_phase = np.full(len(exposed), int(Phase.OTHER))
        if len(first):
            declared = (first[inside] <= exposed.begin_ns) & (exposed.begin_ns < last[inside])
            in_phase = np.where(declared, self._phase[inside], in_phase)
        delays = [delay.in_windows(windows) for delay in self._delays]
        for phase in range(len(Phase)):
            mine, waits = self._phase == phase, in_phase == phase
            own = windows.covered(first[mine], last[mine])
            paused = self._paused
            if len(paused):
                paused = within(paused, stretches(first[mine], last[mine]))
            stood = windows.covered(
                exposed.begin_ns[waits], exposed.end_ns[waits], exposed.waited_ns[waits]
            )
            spent[:, phase] = own - stood - windows.covered(paused.begin_ns, paused.end_ns)
            spent[:, phase] -= delays[phase]
        undeclared = (end_ns - begin_ns) - windows.covered(first, last)
        outside_all = self._paused
        if len(outside_all):
            outside_all = outside(outside_all, stretches(first, last))
        spent[:, Phase.OTHER] += undeclared - windows.covered(
            outside_all.begin_ns, outside_all.end_ns
        )
        whole = self._run_delay.in_windows(windows)
        spent[:, Phase.OTHER] -= whole - sum(delays)
        spent[:, _NO_CORE] = whole
        spent[:, _PAUSED] = windows.covered(self._paused.begin_ns, self._paused.end_ns)
        for column, since, until, amount in (
            (WAITING, self.begin_ns, self._turned_ns, self.wait_ns),
            (_TRANSFER, self._turned_ns, self.end_ns, exposed.waited_ns - self.wait_ns),
        ):
            spent[:, column] = windows.covered(since, until, amount)
        return spent
