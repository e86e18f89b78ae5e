"""Estimates how long the helper threads of calls keep a training thread from its core.

gloo's helper threads run on the cores on which the ranks compute. If all cores are busy, the
training thread has to wait for a core. A fix that removes calls also removes this waiting.
"""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.facts import Floats, Mask, RankCalls
from commprof.analysis.step.exposure import ExposedSpread, exposures_of, own_run_delay
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import row_containing

#: Fixed cost of a call for the helper threads, as the number of bytes that take as long.
_CALL_BYTES = 2**16


def delays_by(calls: RankCalls, mask: Mask, bytes_remain: bool = False) -> ExposedSpread:
    """Returns the run delay in ns that the helper threads of the masked calls caused.

    Run delay is the time in which the training thread was ready to run but had no core. Only run
    delay outside of waiting counts, and between two readings at most the CPU time of the helper
    threads. This amount is divided among the calls in progress, in proportion to their bytes. The
    result is 0 for ranks with several intra-op threads, because the CPU time of these threads
    cannot be distinguished from that of helper threads, and if their number is unknown.

    ``bytes_remain``: True if the remaining calls carry the bytes of the masked calls.
    """
    trace, table = calls.trace, calls.table
    steps = columns.steps(trace)
    thread = int(steps.thread[0]) if len(steps) else 0
    delay = own_run_delay(trace, exposures_of(trace), thread)
    if not delay.amount.any() or not mask.any():
        return ExposedSpread(delay.at, np.zeros(len(delay.at)))
    readings = columns.own_run_delays(trace)
    mine = np.flatnonzero(readings.thread == thread)
    mine = mine[np.argsort(readings.begin_ns[mine], kind="stable")]
    begin_ns, end_ns = readings.begin_ns[mine], readings.end_ns[mine]
    issue_ns = table.issue_ns
    done_ns = np.maximum(np.maximum(table.end_ns, calls.wait_end_ns), issue_ns + 1)
    weight = calls.size_bytes.astype(np.float64) + _CALL_BYTES
    times = np.concatenate((begin_ns, end_ns))
    freed = np.where(mask, float(_CALL_BYTES) if bytes_remain else weight, 0.0)
    some, every = (
        _reached(issue_ns, done_ns, weights, times).reshape(2, -1) for weights in (freed, weight)
    )
    in_all = every[1] - every[0]
    share = np.divide(some[1] - some[0], in_all, out=np.zeros(len(mine)), where=in_all > 0)
    row = row_containing(begin_ns, end_ns, delay.at.begin_ns)
    return ExposedSpread(delay.at, delay.amount * np.where(row >= 0, np.clip(share, 0, 1)[row], 0))


def _reached(begin_ns: Ints, end_ns: Ints, weight: Floats, times_ns: Ints) -> Floats:
    """Returns, for each of ``times_ns``, the sum of all weights up to this time.

    Each weight is spread evenly over its interval.
    """
    rate = weight / (end_ns - begin_ns)
    moments, change = np.concatenate((begin_ns, end_ns)), np.concatenate((rate, -rate))
    order = np.argsort(moments, kind="stable")
    since = moments[order] - moments[order[0]]
    slope = np.cumsum(change[order])
    total = np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(since))))
    reached: Floats = np.interp(times_ns - moments[order[0]], since, total)
    return reached
