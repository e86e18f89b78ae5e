"""When the training thread of a recording without device kernels waited for collectives.

A thread that waits records nothing, and goes on when the collective is complete. Take two
successive begins or ends of the thread's events. If collectives were completed between them, the
thread waited until the last of these was complete, and then ran Python; otherwise it did not wait.

If no CPU core is free for the thread, it goes on late after a collective, and counts as waiting
until it goes on. If an operator waited, its end tells when the thread went on. If the thread waited
outside of operators, it then ran Python until its next event: the time from the collective's end to
this event is about the same at the same call of each step, and longer if the thread has to wait for
a core. So the part of this time beyond its median over the steps counts as waiting, unless the part
is too long for a wait for a core. If the time since the thread's previous event varies less than
the time since the collective's end, the thread did not wait for this end, and no time after this
end counts as waiting.
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
#: Longest delay after a collective's end that counts as a wait of the thread for a core.
_LONGEST_DELAY_NS: Final = 10_000_000
#: Smallest number of steps that tell how long Python usually runs after a call.
_FEWEST_STEPS: Final = 4


@dataclass(frozen=True)
class HostWaiting:
    """When a rank did not wait for communication, and when it still waited after a call's end."""

    #: Times in which the rank did not wait: they hide communication.
    hiding: Stretches
    #: Rows of calls, one for each interval in ``late``, the next field. In this interval, after the
    #: call's end, the thread still waited for the call.
    row: Ints
    late: Stretches


def only_hidden(hiding: Stretches) -> HostWaiting:
    """Returns the result for a rank whose waiting ends when the communication ends."""
    nothing = np.zeros(0, np.int64)
    return HostWaiting(hiding, nothing, Stretches(nothing, nothing))


def host_waiting(
    host: HostWork, calls: CallColumns, steps: FoundSteps, copied_back_ns: array[int]
) -> HostWaiting:
    """Finds when the training thread worked or ran Python, and when it waited for a collective.

    The range of a collective may end a little after the thread that waited for it went on: by at
    most 0.1 ms, and by no longer than the thread waited.

    A thread that copies a bucket back for DDP has waited for this bucket. So if such a copy follows
    a gap between two of the thread's events, the thread has waited in the whole gap in these cases:

    - No collective was completed in the gap, and one is in flight: gloo's thread lacked a core and
      recorded the completion late.
    - gloo's thread is still within the callbacks of a collective: the thread has waited for what
      the callbacks compute, such as the rest of PowerSGD's hook. Only after its callbacks does
      gloo's thread end the range.
    """
    work = stretches(
        np.frombuffer(host.work.begin_ns, np.int64), np.frombuffer(host.work.end_ns, np.int64)
    )
    busy = union(work, host.waits)
    idle = Stretches(busy.end_ns[:-1], busy.begin_ns[1:])
    pieces = within(idle, between(host.ran_ns))
    since, until = pieces.begin_ns, pieces.end_ns
    # A call lasts until the end of all that the backend's thread ran within the call's range,
    # because other threads wait for all of it.
    times = [
        (until_ns, call.begin_ns, row)
        for row, call in enumerate(calls)
        for _, until_ns in call.times_ns[-1:]
    ]
    ends, begins, rows = np.array(sorted(times), dtype=np.int64).reshape(-1, 3).T
    following = np.searchsorted(ends, until, side="right")
    last = np.concatenate(([0], ends))[following]
    # The range of a collective in flight during the whole gap may have ended a little late.
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
    # The end of an operator that waits shows when the thread went on.
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
    """True for moments at which a backend's thread is within the callbacks of a collective."""
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
    """Returns a number for each call; the same call has the same number in each step."""
    step = np.searchsorted(steps.begin_ns, calls.begin_ns, side="right")
    _, first, of_step = np.unique(step, return_index=True, return_inverse=True)
    turn = np.arange(len(calls)) - first[of_step]
    return calls.kind * (len(calls) + 1) + turn


def _in_python(since_end_ns: Ints, since_event_ns: Ints, call_of_step: Ints) -> Ints:
    """Returns how long the thread ran Python before some of its events.

    Args:
        since_end_ns: time from a collective's end to each event.
        since_event_ns: time from the thread's previous event to each event.
        call_of_step: the same number for events after the same call of each step.
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
    """Returns, for each value in ``call_of_step``, the rows that have it."""
    order = np.argsort(call_of_step, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(call_of_step[order])) + 1)
