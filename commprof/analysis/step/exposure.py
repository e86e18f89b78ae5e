"""Finds the intervals in which the training thread waited for communication.

Also finds the pauses of a rank's process, and reads the Linux kernel's counters of its training
thread, such as page faults. A pause while the thread waits for communication counts only as
waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.trace import columns
from commprof.trace.columns import Collectives, Finalizations, Ints, Spans, tables_of
from commprof.trace.lookup import row_of
from commprof.trace.ranks import firsts_of, joined
from commprof.trace.reader import Trace
from commprof.trace.schema import PHASES
from commprof.trace.stretches import (
    Stretches,
    Windows,
    covered,
    gaps,
    outside,
    rows_within,
    stretches,
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Exposures:
    """Intervals in which one thread waited for communication."""

    #: Row of the collective waited for; -1 if unknown.
    collective: Ints
    #: Id of the backward pass at whose end DDP waited; -1 for other waits.
    graph_task: Ints
    begin_ns: Ints
    end_ns: Ints
    #: Length of the waiting in the interval.
    waited_ns: Floats

    def __len__(self) -> int:
        """Number of intervals."""
        return len(self.collective)


def exposures(
    table: Collectives, waits: Spans, finalizations: Finalizations, thread: int
) -> Exposures:
    """Finds the waiting of ``thread`` for communication.

    It waits in ``Work.wait``, for futures, in calls that block, and in DDP's finalisations.
    In a finalisation, at the end of a backward pass, DDP waits for one bucket after another. Only
    the total waiting is measured: wall time minus thread CPU time. A model of DDP's loop divides
    this total among the buckets.
    """
    mine = _rows(waits, waits.thread == thread)
    declared = Exposures(
        row_of(mine.key, table.op_id),
        np.full(len(mine), -1, dtype=np.int64),
        mine.begin_ns,
        mine.end_ns,
        (mine.end_ns - mine.begin_ns).astype(np.float64),
    )
    parts = [declared, *_in_finalizations(table, mine, finalizations, thread)]
    joined = [np.concatenate(columns) for columns in zip(*map(_columns, parts), strict=True)]
    order = np.argsort(joined[2], kind="stable")
    return Exposures(*(column[order] for column in joined))


@columns.once_per_trace
def exposures_of(trace: Trace) -> Exposures:
    """Finds all waiting of the training thread for communication."""
    table, thread = columns.collectives(trace), training_thread(trace)
    return exposures(table, columns.waits(trace), columns.finalizations(trace), thread)


def training_thread(trace: Trace) -> int:
    """Returns the thread that marks the steps.

    If no steps are marked, returns the thread with the most phases, because a backend's thread may
    issue more collectives than the training thread. Without phases, returns the thread that issued
    the most collectives; 0 if there is none.
    """
    steps = columns.steps(trace)
    if len(steps):
        return int(steps.thread[0])
    phases = columns.phases(trace)
    of_model = phases.thread[phases.key < len(PHASES)]
    thread = of_model if len(of_model) else columns.collectives(trace).thread
    return int(np.bincount(thread).argmax()) if len(thread) else 0


def training_threads(traces: Sequence[Trace]) -> Ints:
    """Returns :func:`training_thread` of each trace."""
    steps = tables_of(traces, columns.steps)
    first = firsts_of(steps)
    if (np.diff(first) > 0).all():
        return joined(steps, "thread")[first[:-1]]
    return np.array(list(map(training_thread, traces)))


def _columns(part: Exposures) -> tuple[Ints, Ints, Ints, Ints, Floats]:
    return part.collective, part.graph_task, part.begin_ns, part.end_ns, part.waited_ns


def _rows(spans: Spans, chosen: npt.NDArray[np.bool_]) -> Spans:
    return Spans(
        spans.key[chosen], spans.thread[chosen], spans.begin_ns[chosen], spans.end_ns[chosen]
    )


def _in_finalizations(
    table: Collectives, waits: Spans, finalizations: Finalizations, thread: int
) -> Iterator[Exposures]:
    """Yields DDP's waiting for its buckets, without the waiting that ``waits`` holds already.

    Waiting that no bucket explains has collective -1.
    """
    span = finalizations.span
    task = _awaited_by(table, span, thread)
    seen = np.flatnonzero((task >= 0) & (table.end_ns > 0))
    buckets = seen[np.argsort(task[seen], kind="stable")]
    first = np.searchsorted(task[buckets], span.key, side="left")
    last = np.searchsorted(task[buckets], span.key, side="right")
    # The waits of a thread do not overlap, so their begins and their ends are sorted.
    waited = np.concatenate(([0], np.cumsum(waits.end_ns - waits.begin_ns)))
    wait_first = np.searchsorted(waits.begin_ns, span.begin_ns, side="left")
    wait_last = np.searchsorted(waits.end_ns, span.end_ns, side="right")
    counted = waited[np.maximum(wait_first, wait_last)] - waited[wait_first]
    blocked = np.maximum(0, finalizations.blocked_ns - counted)
    rows = np.flatnonzero((span.thread == thread) & (blocked > 0))
    count = (last - first)[rows]
    # Passes with the same number of buckets are handled together: ``[pass, bucket]``.
    for buckets_each in np.unique(count).tolist():
        some = rows[count == buckets_each]
        part = buckets[first[some][:, np.newaxis] + np.arange(buckets_each)]
        yield _shared(table, part, _rows(span, some), blocked[some])


def _awaited_by(table: Collectives, span: Spans, thread: int) -> Ints:
    """Returns, for each collective, the backward pass that waits for it; -1 if no pass does.

    A pass waits for the collectives that it issued. A hook such as torch's PowerSGD also issues
    collectives in callbacks, and the pass waits for these collectives too. A collective counts as
    issued in a callback if another thread issued it during the pass, in a group that the pass uses.
    """
    task = table.graph_task.copy()
    later = np.flatnonzero((task < 0) & (table.thread != thread))
    if len(later) == 0:
        return task
    issued = np.flatnonzero(task >= 0)
    passes, at = np.unique(task[issued], return_index=True)
    begun_ns = dict(zip(passes.tolist(), table.issue_ns[issued[at]].tolist(), strict=True))
    groups = set(zip(task[issued].tolist(), table.group[issued].tolist(), strict=True))
    mine = np.flatnonzero(span.thread == thread)
    mine = mine[np.argsort(span.end_ns[mine], kind="stable")]
    row = np.searchsorted(span.end_ns[mine], table.issue_ns[later], side="left")
    later, row = later[row < len(mine)], row[row < len(mine)]
    for i, key in zip(later.tolist(), span.key[mine[row]].tolist(), strict=True):
        begun = key in begun_ns and begun_ns[key] <= table.issue_ns[i]
        if begun and (key, int(table.group[i])) in groups:
            task[i] = key
    return task


def _shared(table: Collectives, buckets: Ints, span: Spans, blocked_ns: Ints) -> Exposures:
    """Divides the waiting of finalisations among their buckets.

    DDP's loop waits until a bucket is complete, copies the bucket, and goes on to the next bucket.
    The loop's total waiting up to a bucket is the largest ``end - per_byte * copied`` of the
    buckets so far. Here ``end`` is the time from the finalisation's start to the completion of a
    bucket, ``copied`` is the number of bytes of all earlier buckets, and ``per_byte`` is the time
    in ns to copy one byte.

    Args:
        table: the collectives.
        buckets: rows of the collectives that each finalisation waits for, ``[pass, bucket]``.
        span: the finalisations.
        blocked_ns: waiting in each finalisation.
    """
    # DDP copies the bucket, but not the data of collectives that a callback issued.
    own = table.graph_task[buckets] >= 0
    size = np.where(own, table.bytes_in[buckets], 0).astype(np.float64)
    copied = np.cumsum(size, axis=1) - size
    begin_ns = span.begin_ns[:, np.newaxis]
    end = np.minimum(table.end_ns[buckets], span.end_ns[:, np.newaxis]) - begin_ns
    slowest = (span.end_ns - span.begin_ns) / np.maximum(1.0, size.sum(axis=1))
    per_byte = _copy_ns_per_byte(end, copied, blocked_ns, slowest)[:, np.newaxis]
    none = np.zeros((len(span), 1))
    reached = np.maximum.accumulate(np.concatenate((none, end - per_byte * copied), axis=1), axis=1)
    stretch, total = np.diff(reached, axis=1), reached[:, -1]
    # The computed waiting may exceed the measured waiting, if the thread did something else.
    scale = np.minimum(1.0, np.divide(blocked_ns, total, out=np.ones(len(span)), where=total > 0))
    at = np.nonzero(stretch > 0)
    until, length = (begin_ns + end)[at], stretch[at]
    # No bucket explains the rest of the measured waiting: the thread lacked a core or memory.
    rest = blocked_ns - total * scale
    late = np.flatnonzero(rest > 0.5)
    return Exposures(
        np.concatenate((buckets[at], np.full(len(late), -1))),
        np.concatenate((span.key[at[0]], span.key[late])),
        np.concatenate(
            ((until - length).astype(np.int64), span.begin_ns[late] + total[late].astype(np.int64))
        ),
        np.concatenate((until, span.end_ns[late])),
        np.concatenate((length * scale[at[0]], rest[late])),
    )


def _copy_ns_per_byte(end_ns: Ints, copied: Floats, blocked_ns: Ints, slowest: Floats) -> Floats:
    """Returns the copy time in ns per byte at which DDP's loop waits ``blocked_ns`` in total.

    :func:`_shared` describes the loop. The result is at most ``slowest``.
    """
    early = end_ns - blocked_ns[:, np.newaxis]
    limits = np.broadcast_to(slowest[:, np.newaxis], end_ns.shape).copy()
    np.divide(early, copied, out=limits, where=copied > 0)
    limits[early <= 0] = 0.0
    limit: Floats = np.minimum(slowest, limits.max(axis=1, initial=0.0))
    return limit


#: The process was stopped or frozen, or its machine was paused.
HOST_PAUSE: Final = "host pause"
#: Possible origins of lateness: a phase of the training thread's work, or a pause.
ORIGINS: Final = (*PHASES, HOST_PAUSE)
#: The training thread could run and had no core.
NO_CORE: Final = "no core"
#: The rank transferred data of other collectives, or waited in a collective whose last arrival is
#: unknown.
TRANSFER: Final = "transfer"
#: No known activity of the late rank explains the waiting.
UNKNOWN: Final = "unknown"
#: Possible causes of waiting: activities of the rank that is the root cause.
CAUSES: Final = (*ORIGINS, NO_CORE, TRANSFER, UNKNOWN)


def pauses(trace: Trace, exposed: Exposures) -> Stretches:
    """Returns pauses of the rank's process, except while the training thread waited."""
    found = columns.pauses(trace)
    if len(found) == 0:
        return Stretches(found.begin_ns, found.end_ns)
    return outside(
        stretches(found.begin_ns, found.end_ns), stretches(exposed.begin_ns, exposed.end_ns)
    )


@dataclass(frozen=True)
class ExposedSpread:
    """Intervals of a training thread, each with a count of one kind, such as page faults.

    The intervals do not contain time in which the thread waited for communication.
    """

    at: Stretches
    #: Count within each interval.
    amount: Floats

    def within(self, others: Stretches) -> ExposedSpread:
        """Returns the parts inside ``others``; a count is spread evenly over its interval."""
        row, at = rows_within(self.at, others)
        rate = self.amount / np.maximum(1, self.at.length_ns)
        return ExposedSpread(at, rate[row] * at.length_ns)

    def amount_in(self, begin_ns: Ints, end_ns: Ints) -> Floats:
        """Returns the count in each window; a count is spread evenly over its interval."""
        if not self.amount.any():  # most counts of most ranks are 0
            return np.zeros(len(begin_ns))
        return covered(self.at.begin_ns, self.at.end_ns, self.amount, begin_ns, end_ns)

    def in_windows(self, windows: Windows) -> Floats:
        """Like :meth:`amount_in`, for prepared windows."""
        if not self.amount.any():
            return np.zeros(len(windows))
        return windows.covered(self.at.begin_ns, self.at.end_ns, self.amount)


def run_delay(trace: Trace, exposed: Exposures, thread: int) -> ExposedSpread:
    """Returns the run delay of the training thread outside of its waiting, in ns."""
    return _delays(*_outside_of_waiting(trace, exposed, thread, columns.run_delays(trace)))


def own_run_delay(trace: Trace, exposed: Exposures, thread: int) -> ExposedSpread:
    """Returns an upper bound on the part of ``run_delay`` that helper threads caused, in ns.

    Helper threads are all threads of the rank's process except the training thread. If the rank has
    several intra-op threads, or their number is unknown, no bound is known and all values are 0.
    """
    return _delays(*_outside_of_waiting(trace, exposed, thread, columns.own_run_delays(trace)))


def _delays(row: Ints, amount: Ints, at: Stretches) -> ExposedSpread:
    length = at.length_ns.astype(np.float64)
    whole = np.bincount(row, weights=length, minlength=len(amount))
    return ExposedSpread(at, np.minimum(amount / np.maximum(whole, 1.0), 1.0)[row] * length)


def host_counts(trace: Trace, exposed: Exposures, thread: int) -> dict[str, ExposedSpread]:
    """Returns the Linux kernel counts in ``columns.HOST_COUNTS``, such as page faults, by name.

    The increase between two readings is spread evenly over the time between the readings, without
    waiting and pauses.
    """
    counts = columns.host_counts(trace)
    readings = next(iter(counts.values()))  # all counts are read at the same times
    readings = replace(readings, key=np.arange(len(readings)))
    row, reading, at = _outside_of_waiting(trace, exposed, thread, readings)
    length = at.length_ns.astype(np.float64)
    whole = np.maximum(np.bincount(row, weights=length, minlength=len(reading)), 1.0)
    return {
        name: ExposedSpread(at, (counted.key[reading] / whole)[row] * length)
        for name, counted in counts.items()
    }


def _outside_of_waiting(
    trace: Trace, exposed: Exposures, thread: int, found: Spans
) -> tuple[Ints, Ints, Stretches]:
    """Cuts waiting and pauses out of the intervals of ``found``.

    ``found`` holds readings of a Linux kernel counter. A reading covers the interval since the
    previous reading.

    Returns:
        The index of the reading of each remaining interval; the amounts of the readings; the
        remaining intervals.
    """
    mine = found.thread == thread
    if not mine.any():
        none = np.zeros(0, dtype=np.int64)
        return none, none, Stretches(none, none)
    order = np.argsort(found.begin_ns[mine], kind="stable")
    begin, end, key = (part[mine][order] for part in (found.begin_ns, found.end_ns, found.key))
    paused = columns.pauses(trace)
    begin_ns, end_ns = exposed.begin_ns, exposed.end_ns
    if len(paused):
        begin_ns = np.concatenate((begin_ns, paused.begin_ns))
        end_ns = np.concatenate((end_ns, paused.end_ns))
    stood = stretches(begin_ns, end_ns)
    row, at = rows_within(Stretches(begin, end), gaps(stood))
    return row, key, at
