"""Samples that a script's DataLoaders returned, for scripts that keep no account of their own."""

from __future__ import annotations

import math

import numpy as np

from commprof.trace import columns, schema
from commprof.trace.columns import Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind


def samples_read(trace: Trace, step: Ints) -> float:
    """Samples of the batches that the training thread read within these steps.

    NaN where it read none, or one whose samples cannot be counted.
    """
    steps = columns.steps(trace)
    chosen = np.isin(steps.index, step)
    if not chosen.any():
        return math.nan
    begin, end = steps.begin_ns[chosen], steps.end_ns[chosen]
    records = trace.records
    reads = records[
        (records["kind"] == Kind.PHASE)
        & (records["thread"] == steps.thread[0])
        & (records["seq"] > 0)
    ]
    at = reads["timestamp_ns"].astype(np.int64)
    row = np.searchsorted(begin, at, side="right") - 1
    inside = (row >= 0) & (at < end[np.maximum(row, 0)])
    samples = reads["seq"][inside].astype(np.int64)
    if len(samples) == 0 or (samples == schema.SAMPLES_UNKNOWN).any():
        return math.nan
    return float(samples.sum())
