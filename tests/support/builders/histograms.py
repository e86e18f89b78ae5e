"""Histograms of always-on mode, made in Python as C++ makes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commprof.trace.schema import PER_OCTAVE
from commprof.trace.summary import Histogram, Ints

_LARGEST_NS = 2**42 - 1


def histogram_of(values_ns: Sequence[int]) -> Histogram:
    """Makes a histogram of whole numbers from 0 to 2**63 - 1, with the same buckets as in C++."""
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


def _bucket_of(values_ns: Ints) -> Ints:
    values = np.minimum(values_ns, _LARGEST_NS)
    # Exact, as no value has more than 42 bits and a double has 53.
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(0, bits - 7)
    return (shift * PER_OCTAVE + (values >> shift)).astype(np.int64)
