"""Reads the summary block of a trace, which always-on mode writes instead of records.

The block is a JSON object, followed by spaces. Most of its keys are fields of :class:`Summary`. The
exceptions are ``arrivals``, ``last_others`` and ``paused``; see :func:`summary_of`.

A histogram is an object of ``count``, ``sum``, ``min``, ``max`` and ``buckets``. The list
``buckets`` holds two numbers for each bucket that is not empty. The first number is the distance
from the previous non-empty bucket, or from bucket 0. The second number is the count. The buckets
are those of HdrHistogram: 64 of equal width for each power of two. A quantile is the middle of its
bucket, and differs from the exact quantile by at most 1/128.

A block holds at most 255 combinations of operation, group and size class. Further combinations are
added up in an entry for each ``op``, whose ``group`` and ``size_class`` are 0. If the block is too
long, the rarest combinations are added up too, and finally the rarest operations, in an entry whose
``op`` is 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.files import checked
from commprof.trace import schema
from commprof.trace.codes import OCTAVES, PER_OCTAVE
from commprof.trace.found_steps import DECLARED, SOURCES

Ints = npt.NDArray[np.int64]

BUCKETS = PER_OCTAVE * OCTAVES


@dataclass(frozen=True)
class Histogram:
    """Histogram of times."""

    count: int
    #: The sum, the minimum and the maximum are exact.
    sum_ns: int
    min_ns: int
    max_ns: int
    #: Indices of the non-empty buckets, in order, and the number of values in each bucket.
    buckets: Ints
    counts: Ints


@dataclass(frozen=True)
class OperationSummary:
    """Figures of all operations with one operation code, process group and size class.

    If a device reports times, its operations count as issued when its stream reaches them.
    """

    #: Code of the operation; 0 for the sum of several operations.
    op: int
    #: ``id`` of the group; 0 for the sum of several groups or size classes.
    group: int
    #: Class n holds sizes from 2**(n-1) to 2**n - 1 bytes, and class 0 holds size 0. The size is
    #: the larger of input and output. 0 also stands for a sum of several size classes.
    size_class: int
    count: int
    #: Sum of the sizes of all operations; a size is the larger of input and output.
    bytes: int
    failed: int
    #: Number of operations with neither a recorded completion nor a wait. Operations on devices are
    #: left out if their completion cannot be seen.
    unfinished: int
    #: Times from issue to completion, where the completion is known.
    duration: Histogram
    #: Durations of the recorded waits of threads (see ``columns.waits``), or of the device's
    #: streams if the device reports times.
    wait: Histogram
    #: Times from this rank's issue to the last rank's issue, for operations whose last rank is
    #: known.
    until_last: Histogram
    #: Times from the last rank's issue to completion, for the same operations.
    transfer: Histogram


@dataclass(frozen=True)
class LastRank:
    """Counts the operations that one rank issued last.

    "This rank" is the rank that wrote the summary, and takes part in all of these operations. It is
    compared only with the ranks that it must wait for in the operation.
    """

    #: Global rank that issued the operations last; may be this rank itself.
    rank: int
    count: int
    #: Sum over these operations of the time from this rank's issue to the issue by ``rank``.
    wait_ns: int


@dataclass(frozen=True)
class WaitedFor:
    """Waiting time of the training thread, by block of time and by the rank that it waited for."""

    #: Length of a block of time; block 0 begins at time 0 of the clock.
    block_ns: int
    #: ``[cell, 3]``: block, global rank, waiting time in ns.
    cells: Ints


@dataclass(frozen=True)
class SummarisedLinks:
    """Connection of this rank's host with the other hosts of the job."""

    #: 1 if the host's clock was compared with rank 0's clock, or is rank 0's clock; else 0.
    clock: int
    #: Number of other hosts with which this host exchanges arrival times directly.
    peers: int
    #: Number of other hosts in the tree along which arrival times reach this host.
    heard: int
    #: Number of datagrams that could not be sent.
    unsent: int
    #: Number of collectives whose arrivals the host did not pass on, for lack of room; 0 in
    #: summaries of older versions.
    skipped: int = 0


@dataclass(frozen=True)
class Summary:
    """Summary of one rank's records since its always-on mode began."""

    #: Sequence number of this summary; in a trace, the summary with the highest number counts.
    sequence: int
    #: Mode when the summary was written, one of ``schema.MODES``.
    mode: str
    begin_ns: int
    end_ns: int
    #: Number of records folded into the summary.
    records: int
    #: Number of records that were lost and are missing in the summary.
    dropped: int
    #: Number of completions and waits without a recorded issue.
    unmatched: int
    #: Number of operations counted in sums of several groups or size classes.
    moved: int
    #: Lengths of all complete steps except the first.
    steps: Histogram
    #: Exposed times of the same steps.
    exposed: Histogram
    #: By ``schema.Phase``: time of the phase in each step, without exposed time.
    phases: tuple[Histogram, ...]
    #: Number of operations whose last rank is known.
    arrivals_known: int
    #: Number of operations whose last rank is unknown.
    arrivals_unknown: int
    #: Number of steps whose exposed time could not be split at the last rank's arrival, because the
    #: last rank of an operation is unknown.
    unsplit_steps: int
    #: Upper bounds on the error of the last rank's arrival time, for collectives between hosts. The
    #: error comes from the comparison of the hosts' clocks.
    arrival_clock_error: Histogram
    hosts: SummarisedLinks
    #: Exposed time of each step before the last rank's arrival. The first step, the steps in
    #: ``unsplit_steps`` and the steps of the last seconds are left out.
    exposed_wait: Histogram
    #: Exposed time of the same steps after the last rank's arrival.
    exposed_transfer: Histogram
    last: tuple[LastRank, ...]
    waited_for: WaitedFor
    operations: tuple[OperationSummary, ...]
    #: By ``schema.Phase``: total time in ns for which the process did not run. ``phases`` includes
    #: this time. 0 in summaries of older versions.
    paused_ns: tuple[int, ...] = (0,) * len(schema.PHASES)
    #: Number of operations in ``arrivals_unknown`` whose group had no place in the shared memory; 0
    #: in summaries of older versions.
    arrivals_without_place: int = 0
    #: Number of operations in ``arrivals_unknown`` for which hosts would have to send each other
    #: the arrival of every rank. Hosts do not do so for groups of more than 256 ranks. 0 in
    #: summaries of older versions.
    arrivals_unlisted: int = 0
    #: Number of operations in ``arrivals_known`` for which the arrivals of some ranks are missing,
    #: so that another rank may have come last; 0 in summaries of older versions.
    arrivals_partial: int = 0
    #: Number of operations whose last rank is not in ``last``, which holds the 1,024 costliest
    #: ranks (in a sum: 64); 0 in summaries of older versions.
    last_others_count: int = 0
    #: Sum of the waits in these operations, in ns; 0 in summaries of older versions.
    last_others_wait_ns: int = 0
    #: Sum of the exposed times of the steps in ``unsplit_steps``; None in summaries of older
    #: versions.
    unsplit_ns: int | None = None
    #: Event at which steps end, one of ``found_steps.SOURCES``; DECLARED in summaries of older
    #: versions.
    steps_end: str = DECLARED


def read_summary(payload: memoryview) -> Summary:
    """Reads the content of a summary block.

    Raises:
        ValueError: a value is missing or unusable; the message names it.
    """
    return summary_of(_document(payload))


def read_newest(payloads: Sequence[memoryview], after: Summary | None) -> Summary | None:
    """Reads the summary block with the highest sequence number.

    Returns None if this number is not higher than that of ``after``.

    Raises:
        ValueError: as for :func:`read_summary`.
    """
    newest = max(payloads, key=_number_of)
    if after is not None and _number_of(newest) <= after.sequence:
        return None
    return read_summary(newest)


#: Finds the sequence number at the begin of a summary, without parsing the JSON.
_BEGIN = re.compile(rb'\{"sequence": ?([0-9]{1,19}),')


def _number_of(payload: memoryview) -> int:
    begin = _BEGIN.match(payload)
    return int(begin[1]) if begin else _whole(_document(payload), "sequence")


def _document(payload: memoryview) -> Any:
    try:
        return json.loads(bytes(payload).rstrip())  # most of a block consists of spaces
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


def summary_of(value: Any) -> Summary:
    """Checks and converts the JSON value of a summary; ValueError as for :func:`read_summary`."""
    mode = _member(value, "mode")
    if mode not in schema.MODES:
        raise ValueError(f"mode is not one of {', '.join(schema.MODES)}")
    phases = tuple(_histogram(item, "phases") for item in _list(value, "phases"))
    if len(phases) != len(schema.PHASES):
        raise ValueError(f"phases has {len(phases)} items, not {len(schema.PHASES)}")
    arrivals = _member(value, "arrivals")
    return Summary(
        mode=mode,
        arrivals_known=_whole(arrivals, "known"),
        arrivals_unknown=_whole(arrivals, "unknown"),
        arrivals_without_place=_whole({"without_place": 0} | arrivals, "without_place"),
        arrivals_unlisted=_whole({"unlisted": 0} | arrivals, "unlisted"),
        arrivals_partial=_whole({"partial": 0} | arrivals, "partial"),
        last_others_count=_whole(value.get("last_others", _NO_OTHERS), "count"),
        last_others_wait_ns=_whole(value.get("last_others", _NO_OTHERS), "wait_ns"),
        unsplit_steps=_whole(arrivals, "unsplit_steps"),
        unsplit_ns=_whole(arrivals, "unsplit_ns") if "unsplit_ns" in arrivals else None,
        arrival_clock_error=_histogram(
            _member(value, "arrival_clock_error"), "arrival_clock_error"
        ),
        hosts=_hosts(_member(value, "hosts")),
        exposed_wait=_histogram(_member(value, "exposed_wait"), "exposed_wait"),
        exposed_transfer=_transfer(value, "exposed_transfer", "exposed_wire"),
        last=tuple(_last(item) for item in _list(value, "last")),
        waited_for=_waited_for(_member(value, "waited_for")),
        steps=_histogram(_member(value, "steps"), "steps"),
        exposed=_histogram(_member(value, "exposed"), "exposed"),
        phases=phases,
        operations=tuple(_operation(item) for item in _list(value, "operations")),
        paused_ns=_paused(value),
        steps_end=_steps_end(value),
        **{name: _whole(value, name) for name in SUMMARY_COUNTERS},
    )


_NO_OTHERS = {"count": 0, "wait_ns": 0}
SUMMARY_COUNTERS = ("sequence", "begin_ns", "end_ns", "records", "dropped", "unmatched", "moved")
OPERATION_COUNTERS = ("op", "group", "size_class", "count", "bytes", "failed", "unfinished")


def _paused(value: dict[str, Any]) -> tuple[int, ...]:
    paused_ns = value.get("paused", [0] * len(schema.PHASES))
    if not isinstance(paused_ns, list) or len(paused_ns) != len(schema.PHASES):
        raise ValueError(f"paused is not a list of {len(schema.PHASES)} numbers")
    if not _are_whole(paused_ns):
        raise ValueError("paused holds a value that is not a whole number from 0 to 2**63 - 1")
    return tuple(paused_ns)


def _steps_end(value: dict[str, Any]) -> str:
    source = value.get("steps_end", DECLARED)
    if source not in SOURCES:
        raise ValueError(f"steps_end is not one of {', '.join(SOURCES)}")
    return str(source)


def _operation(value: object) -> OperationSummary:
    if _whole(value, "size_class") > 64:
        raise ValueError("a size_class is above 64")
    return OperationSummary(
        duration=_histogram(_member(value, "duration"), "duration"),
        wait=_histogram(_member(value, "wait"), "wait"),
        until_last=_histogram(_member(value, "until_last"), "until_last"),
        transfer=_transfer(value, "transfer", "wire"),
        **{name: _whole(value, name) for name in OPERATION_COUNTERS},
    )


def _transfer(value: Any, name: str, older: str) -> Histogram:
    """Reads a histogram that older versions named ``older``."""
    return _histogram(_member(value, older if older in value else name), name)


def _hosts(value: object) -> SummarisedLinks:
    names = ("clock", "peers", "heard", "unsent")
    return SummarisedLinks(
        skipped=_whole({"skipped": 0} | checked(value, dict, "hosts"), "skipped"),
        **{name: _whole(value, name) for name in names},
    )


def _last(value: object) -> LastRank:
    return LastRank(_whole(value, "rank"), _whole(value, "count"), _whole(value, "wait_ns"))


def _waited_for(value: object) -> WaitedFor:
    cells = _list(value, "cells")
    block_ns = _whole(value, "block_ns")
    if not _are_whole(cells) or len(cells) % 3 or block_ns == 0:
        raise ValueError("waited_for: cells are not triples of whole numbers, or block_ns is 0")
    return WaitedFor(block_ns, _ints(cells).reshape(-1, 3))


def _histogram(value: object, where: str) -> Histogram:
    # Most histograms have few buckets, for which lists are faster than arrays. Python's integers
    # also do not overflow.
    numbers = _list(value, "buckets")
    if not _are_whole(numbers) or len(numbers) % 2:
        raise ValueError(f"the buckets of {where} are not pairs of whole numbers")
    counts, buckets = numbers[1::2], list(accumulate(numbers[::2]))
    count = _whole(value, "count")
    are_apart = min(numbers[2::2], default=1) > 0
    is_counted = sum(counts) == count and min(counts, default=1) > 0
    if not are_apart or not is_counted or (buckets and buckets[-1] >= BUCKETS):
        raise ValueError(f"the buckets of {where} contradict each other or the histogram's count")
    sum_ns, min_ns, max_ns = _whole(value, "sum"), _whole(value, "min"), _whole(value, "max")
    if min_ns > max_ns:
        raise ValueError(f"the minimum of {where} is above its maximum")
    return Histogram(count, sum_ns, min_ns, max_ns, _ints(buckets), _ints(counts))


def _member(value: object, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"{name} is missing")
    return value[name]


def _list(value: object, name: str) -> list[Any]:
    items: list[Any] = checked(_member(value, name), list, name)
    return items


def _whole(value: object, name: str) -> int:
    number: int = checked(_member(value, name), int, name)
    return number


def _are_whole(values: list[Any]) -> bool:
    if not values:
        return True
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < 2**63


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def merged_histogram(histograms: Iterable[Histogram]) -> Histogram:
    """Returns the histogram of all values of several histograms."""
    parts = [histogram for histogram in histograms if histogram.count > 0]
    if len(parts) == 1:
        return parts[0]
    total = np.zeros(BUCKETS, dtype=np.int64)
    for part in parts:
        total[part.buckets] += part.counts
    buckets = np.flatnonzero(total)
    return Histogram(
        count=sum(part.count for part in parts),
        sum_ns=sum(part.sum_ns for part in parts),
        min_ns=min((part.min_ns for part in parts), default=0),
        max_ns=max((part.max_ns for part in parts), default=0),
        buckets=buckets.astype(np.int64),
        counts=total[buckets],
    )


def quantile_ns(histogram: Histogram, q: float) -> float:
    """Returns the quantile ``q`` in ns; NaN if the histogram is empty. ``q`` is from 0 to 1."""
    if histogram.count == 0:
        return math.nan
    rank = max(1, math.ceil(q * histogram.count))
    row = int(np.searchsorted(np.cumsum(histogram.counts), rank))
    middle = int(_value_of(histogram.buckets[row : row + 1])[0])
    return float(min(max(middle, histogram.min_ns), histogram.max_ns))


def mean_ns(histogram: Histogram) -> float:
    """Returns the exact mean in ns; NaN if empty."""
    return histogram.sum_ns / histogram.count if histogram.count else math.nan


def _value_of(buckets: Ints) -> Ints:
    shift = np.maximum(0, buckets // PER_OCTAVE - 1)
    lowest = (PER_OCTAVE + buckets % PER_OCTAVE) << shift
    middle = lowest + ((1 << shift) - 1) // 2
    return np.where(buckets < PER_OCTAVE, buckets, middle).astype(np.int64)
