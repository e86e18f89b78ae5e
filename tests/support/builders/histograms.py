from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commprof.trace.schema import PER_OCTAVE
from commprof.trace.summary import Histogram, Ints

_LARGEST_NS = 2**42 - 1


def histogram_of(values_ns: Sequence[int]) -> Histogram:
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
    # A double has 53 bits, and a value at most 42 bits, so the conversion is exact.
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(0, bits - 7)
    return (shift * PER_OCTAVE + (values >> shift)).astype(np.int64)
