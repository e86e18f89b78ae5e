"""Quantiles, means and sums of the histograms that always-on mode keeps.

The buckets are those of ``csrc/always_on/summary/histogram.h`` (HdrHistogram's): 64 of equal width
for each power of two. A quantile is the middle of its bucket, at most 1/128 away from the exact
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from commprof.trace.summary import BUCKETS, PER_OCTAVE, Histogram

_LARGEST_NS = 2**42 - 1

Ints = npt.NDArray[np.int64]


def of(values_ns: Sequence[int]) -> Histogram:
    """The histogram of whole numbers from 0 to 2**63 - 1, as ``csrc/core`` makes it."""
    values = np.asarray(values_ns, dtype=np.int64)
    buckets, counts = np.unique(_bucket_of(values), return_counts=True)
    return Histogram(
        count=len(values),
        sum_ns=sum(map(int, values_ns)),
        min_ns=int(values.min()) if len(values) else 0,
        max_ns=int(values.max()) if len(values) else 0,
        buckets=buckets.astype(np.int64),
        counts=counts.astype(np.int64),
    )


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """All values of all; the order makes no difference."""
    parts = [histogram for histogram in histograms if histogram.count > 0]
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


def quantile(histogram: Histogram, q: float) -> float:
    """The value of rank ``ceil(q * count)`` in ns, q from 0 to 1; NaN without values."""
    if histogram.count == 0:
        return math.nan
    rank = max(1, math.ceil(q * histogram.count))
    row = int(np.searchsorted(np.cumsum(histogram.counts), rank))
    middle = int(_value_of(histogram.buckets[row : row + 1])[0])
    return float(min(max(middle, histogram.min_ns), histogram.max_ns))


def mean(histogram: Histogram) -> float:
    """Exact, in ns; NaN without values."""
    return histogram.sum_ns / histogram.count if histogram.count else math.nan


def _bucket_of(values_ns: Ints) -> Ints:
    values = np.minimum(values_ns, _LARGEST_NS)
    # Exact: no value has more than 42 bits, a double has 53.
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(0, bits - 7)
    return (shift * PER_OCTAVE + (values >> shift)).astype(np.int64)


def _value_of(buckets: Ints) -> Ints:
    shift = np.maximum(0, buckets // PER_OCTAVE - 1)
    lowest = (PER_OCTAVE + buckets % PER_OCTAVE) << shift
    middle = lowest + ((1 << shift) - 1) // 2
    return np.where(buckets < PER_OCTAVE, buckets, middle).astype(np.int64)
