"""Splits exposed time into waiting for the last rank and transfer.

For a single collective, the ranks wait until the last rank arrives. After that, data are
transferred.

The buckets of one backward pass are transferred one after another over the same link. A rank that
arrives late at a bucket delays nothing if the link is busy with an earlier bucket. The *deciding*
bucket is the last bucket whose last rank arrived when the link was free. Exposed time before this
arrival is waiting; exposed time after it is transfer.

If commprof's DDP hook recorded the buckets, a rank arrives when a bucket's gradients are ready. If
another hook runs inside commprof's hook, all its communication for the bucket counts as transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import Arrivals, BucketArrivals
from commprof.analysis.step.exposure import Exposures
from commprof.trace.columns import Collectives, Ints
from commprof.trace.lookup import among
from commprof.trace.ranks import Narrow
from commprof.trace.schema import POINT_TO_POINT

#: A figure or sentence may rely on the split into waiting and transfer only if at most this
#: fraction of the exposed time is unsplit.
_MOST_UNSPLIT = 0.1
#: Text that follows an amount of unsplit time.
NOT_SPLIT = "of the exposed time could not be split into waiting and transfer"


def is_split(exposed: float, unsplit: float) -> bool:
    """True if figures may rely on the split of exposed time. Both times have the same unit."""
    return unsplit <= _MOST_UNSPLIT * exposed


@dataclass(frozen=True)
class Waiting:
    """Split of each exposure into waiting and transfer; has the rows of ``Exposures``.

    The waiting ends with the *deciding* arrival: the last arrival at the exposure's own collective,
    or at the deciding bucket of the backward pass.
    """

    #: Part of ``waited_ns`` before the deciding arrival; NaN if unknown.
    wait_ns: npt.NDArray[np.float64]
    #: Global rank that arrived last at the deciding collective; -1 if unknown.
    culprit: npt.NDArray[np.int32]
    #: Number of the deciding collective or bucket, see ``Arrivals``; -1 if unknown.
    number: npt.NDArray[np.int32]


def split(exposed: Exposures, table: Collectives, arrivals: Arrivals) -> Waiting:
    """Splits every exposure of one rank into waiting and transfer."""
    by_collective = exposed.collective >= 0
    arrived_ns, culprit, number = (
        np.where(by_collective, np.append(column, unknown)[exposed.collective], unknown)
        for column, unknown in zip(
            (arrivals.last_arrival_ns, arrivals.late_rank, arrivals.collective),
            _UNKNOWN,
            strict=True,
        )
    )
    of_pass = exposed.graph_task >= 0
    for column, unknown in zip((arrived_ns, culprit, number), _UNKNOWN, strict=True):
        column[of_pass] = unknown
    for exchanged in (_of_collectives(table, arrivals), _of_buckets(arrivals.buckets)):
        passes, row, is_known = _decided(exchanged)
        at = np.searchsorted(passes, exposed.graph_task)
        rows = np.flatnonzero(of_pass & (at < len(passes)))
        rows = rows[passes[at[rows]] == exposed.graph_task[rows]]
        for column, values, unknown in zip(
            (arrived_ns, culprit, number),
            (exchanged.last_arrival_ns, exchanged.late_rank, exchanged.number),
            _UNKNOWN,
            strict=True,
        ):
            column[rows] = np.where(is_known, values[row], unknown)[at[rows]]
    length = np.maximum(1, exposed.end_ns - exposed.begin_ns)
    before = np.clip(arrived_ns - exposed.begin_ns, 0, length) / length * exposed.waited_ns
    unsure = (culprit < 0) & (exposed.waited_ns > 0)
    wait_ns = np.where(unsure, np.nan, before)
    return Waiting(wait_ns, culprit.astype(np.int32), number.astype(np.int32))


def not_split(exposed: Exposures) -> Waiting:
    """Returns the result of ``split`` for unknown arrivals: NaN and -1 for every exposure."""
    unknown = np.full(len(exposed), -1, dtype=np.int32)
    return Waiting(np.full(len(exposed), np.nan), unknown, unknown)


#: Values for unknown: time of the last arrival, last rank, number of the collective or bucket.
_UNKNOWN = (0, -1, -1)


class _Exchanged(NamedTuple):
    """Collectives or buckets that backward passes waited for, in order of issue."""

    graph_task: Ints
    end_ns: Ints
    last_arrival_ns: Ints
    late_rank: Narrow
    number: Ints


def _of_collectives(table: Collectives, arrivals: Arrivals) -> _Exchanged:
    is_message = among(table.op, *POINT_TO_POINT)  # DDP does not wait for messages
    rows = np.flatnonzero((table.graph_task >= 0) & (table.end_ns > 0) & ~is_message)
    return _Exchanged(
        table.graph_task[rows],
        table.end_ns[rows],
        arrivals.last_arrival_ns[rows],
        arrivals.late_rank[rows],
        arrivals.collective[rows],
    )


def _of_buckets(buckets: BucketArrivals) -> _Exchanged:
    """Returns the buckets with a known end; buckets on a device have none."""
    rows = np.flatnonzero((buckets.graph_task >= 0) & (buckets.end_ns > 0))
    return _Exchanged(
        buckets.graph_task[rows],
        buckets.end_ns[rows],
        buckets.last_arrival_ns[rows],
        buckets.late_rank[rows],
        buckets.number[rows],
    )


def _decided(exchanged: _Exchanged) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Returns the backward passes, the row of each pass's deciding arrival, and a mask.

    The mask is True for passes whose deciding arrival is known. For this, all last arrivals of the
    pass must be known.
    """
    order = np.argsort(exchanged.graph_task, kind="stable")
    tasks = exchanged.graph_task[order]
    first = np.flatnonzero(np.diff(tasks, prepend=-1))
    count = np.diff(np.append(first, len(order)))
    row = np.zeros(len(first), dtype=np.int64)
    is_known = np.zeros(len(first), dtype=np.bool_)
    # Passes with the same number of collectives are handled together: ``[pass, collective]``.
    for length in np.unique(count).tolist():
        some = np.flatnonzero(count == length)
        part = order[first[some][:, np.newaxis] + np.arange(length)]
        arrived_ns = exchanged.last_arrival_ns[part]
        busy_until = np.maximum.accumulate(exchanged.end_ns[part], axis=1)
        link_busy_until = np.zeros_like(busy_until)
        link_busy_until[:, 1:] = busy_until[:, :-1]
        last = length - 1 - np.argmax((arrived_ns >= link_busy_until)[:, ::-1], axis=1)
        row[some] = part[np.arange(len(some)), last]
        is_known[some] = (arrived_ns != 0).all(axis=1)
    return tasks[first], row, is_known
