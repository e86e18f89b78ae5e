"""Finds when the training thread waited for collectives, in a recording without device kernels.

A thread that waits records nothing. So the thread's events have gaps. If no collective was
completed in a gap, the thread ran Python during the gap. If collectives were completed in a gap,
the thread waited until the last completion, and then ran Python.

If no CPU core is free, the thread goes on late after a completion. This delay also counts as
waiting. If an operator waited, the operator's end shows when the thread went on. Otherwise the
delay is estimated. The time from the completion to the thread's next event is compared over all
steps. Time beyond the median counts as the delay, unless this delay is longer than a wait for a
core can be.

The time since the thread's previous event may vary less than the time since the completion. Then
the thread did not wait for this completion, and no delay is assumed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.recordings.profiler_call_columns import CallColumns
from commprof.recordings.profiler_calls import CLOSED_LATE_NS
from commprof.recordings.profiler_steps import FoundSteps
from commprof.recordings.profiler_work import HostWork
from commprof.trace.stretches import Stretches, between, outside, stretches, union, within

Ints = npt.NDArray[np.int64]

_NEVER: Final = np.iinfo(np.int64).max
#: Longest delay that can be a wait for a CPU core.
_LONGEST_DELAY_NS: Final = 10_000_000
#: Smallest number of steps from which the usual time in Python after a call is estimated.
_FEWEST_STEPS: Final = 4


@dataclass(frozen=True)
class HostWaiting:
    """Times in which a rank waited for communication, or did not wait."""

    #: Times in which the rank did not wait. Communication in these times is hidden.
    hiding: Stretches
    #: Row of the call for each interval in ``late``.
    row: Ints
    #: Time from the end of a call until the thread that waited for the call went on.
    late: Stretches


def only_hidden(hiding: Stretches) -> HostWaiting:
    """Returns the result for a rank that goes on at the end of each call."""
    nothing = np.zeros(0, np.int64)
    return HostWaiting(hiding, nothing, Stretches(nothing, nothing))


def host_waiting(
    host: HostWork, calls: CallColumns, steps: FoundSteps, copied_back_ns: array[int]
) -> HostWaiting:
    """Finds when the training thread worked or ran Python, and when it waited for a collective.

    A thread that waits for a collective may go on before the collective's range ends. The
    difference is at most 0.1 ms, and at most the time for which the thread waited.

    DDP copies a bucket back after waiting for the bucket. So if such a copy follows a gap between
    two events of the thread, the whole gap counts as waiting in these cases:

    - A collective is in flight, and none was completed in the gap. gloo's thread lacked a core, and
      recorded the completion late.
    - gloo's thread runs the callbacks of a collective, such as those of PowerSGD's hook. gloo's
      thread ends the collective's range only after the callbacks.
    """
    work = stretches(
        np.frombuffer(host.work.begin_ns, np.int64), np.frombuffer(host.work.end_ns, np.int64)
    )
    busy = union(work, host.waits)
    idle = Stretches(busy.end_ns[:-1], busy.begin_ns[1:])
    pieces = within(idle, between(host.ran_ns))
    since, until = pieces.begin_ns, pieces.end_ns
    # A call ends when the backend's thread has ended all of its work in the call's range, because
    # other threads wait for all of this work.
    times = [
        (until_ns, call.begin_ns, row)
        for row, call in enumerate(calls)
        for _, until_ns in call.times_ns[-1:]
    ]
    ends, begins, rows = np.array(sorted(times), dtype=np.int64).reshape(-1, 3).T
    following = np.searchsorted(ends, until, side="right")
    last = np.concatenate(([0], ends))[following]
    end_ns, begin_ns = (np.append(moments, _NEVER)[following] for moments in (ends, begins))
    late = end_ns - until <= np.minimum(until - since, CLOSED_LATE_NS)
    copies = np.sort(np.frombuffer(copied_back_ns, np.int64)) if copied_back_ns else ends[:0]
    soon = np.searchsorted(copies, until + CLOSED_LATE_NS) > np.searchsorted(copies, until)
    is_open = np.searchsorted(np.sort(begins), until) > following
    is_whole = (late & (begin_ns <= since)) | (soon & is_open & (last <= since))
    is_whole |= soon & _in_callbacks(calls, until)
    went_on = np.where(is_whole, until, np.clip(last, since, until))
    delayed = np.flatnonzero(~is_whole & (since < last) & (last < until))
    row = rows[following[delayed] - 1]
    done_ns, next_ns = last[delayed], until[delayed]
    in_python_ns = _in_python(
        next_ns - done_ns, next_ns - since[delayed], _calls_of_steps(calls, steps)[row]
    )
    went_on[delayed] = next_ns - in_python_ns
    of_wait = np.searchsorted(ends, host.waits.end_ns, side="right") - 1
    ended = of_wait >= 0
    ended[ended] = ends[of_wait[ended]] > host.waits.begin_ns[ended]
    of_wait = of_wait[ended]
    return HostWaiting(
        outside(union(busy, Stretches(went_on, until)), host.waits),
        np.concatenate((row, rows[of_wait])),
        Stretches(
            np.concatenate((done_ns, ends[of_wait])),
            np.concatenate((went_on[delayed], host.waits.end_ns[ended])),
        ),
    )


def _in_callbacks(calls: CallColumns, moments: Ints) -> npt.NDArray[np.bool_]:
    transferred = [
        (call.end_ns, until_ns)
        for call in calls
        for _, until_ns in call.times_ns[-1:]
        if call.end_ns < until_ns
    ]
    begin_ns, end_ns = np.array(transferred, dtype=np.int64).reshape(-1, 2).T
    begun, ended = (
        np.searchsorted(np.sort(times_ns), moments, side="right") for times_ns in (begin_ns, end_ns)
    )
    in_callbacks: npt.NDArray[np.bool_] = begun > ended
    return in_callbacks


def _calls_of_steps(calls: CallColumns, steps: FoundSteps) -> Ints:
    """Numbers the calls. A call that recurs in each step has the same number in each step."""
    step = np.searchsorted(steps.begin_ns, calls.begin_ns, side="right")
    _, first, of_step = np.unique(step, return_index=True, return_inverse=True)
    turn = np.arange(len(calls)) - first[of_step]
    return calls.kind * (len(calls) + 1) + turn


def _in_python(since_end_ns: Ints, since_event_ns: Ints, call_of_step: Ints) -> Ints:
    """Returns how long the thread ran Python before each of some events.

    Args:
        since_end_ns: time from a collective's end to each event.
        since_event_ns: time from the thread's previous event to each event.
        call_of_step: number of the collective (see ``_calls_of_steps``) before each event.
    """
    python_ns = since_end_ns.copy()
    for rows in _alike(call_of_step):
        if len(rows) < _FEWEST_STEPS:
            continue
        quick, usual = np.quantile(since_end_ns[rows], (0.25, 0.5)).astype(np.int64)
        if usual - quick <= np.subtract(*np.quantile(since_event_ns[rows], (0.5, 0.25))):
            beyond = since_end_ns[rows] - usual
            is_delay = (beyond > 0) & (beyond <= _LONGEST_DELAY_NS)
            python_ns[rows[is_delay]] = usual
    return python_ns


def _alike(call_of_step: Ints) -> list[Ints]:
    order = np.argsort(call_of_step, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(call_of_step[order])) + 1)
