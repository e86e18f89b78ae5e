"""A result of nccl-tests as a sweep, beside those of our own microbenchmark."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from commprof.analysis.collectives.bandwidth import bus_factor
from commprof.analysis.sweeps.sweep import RowKey, SweepResult, SweepRow
from commprof.recordings.nccl_tests import NcclTestsLog, NcclTestsRow, read_nccl_tests


def read_nccl_tests_sweep(path: Path) -> SweepResult:
    """Reads one.

    Raises:
        UsageError: it is no usable result of nccl-tests.
    """
    log = read_nccl_tests(path)
    keys: dict[RowKey, SweepRow] = {}
    for row in log.rows:
        made = _row(log, row)
        keys.setdefault(made.key, made)  # a size that was measured again is a warm-up's
    context = {"instrument": "nccl-tests", "world_size": log.ranks, "hosts": log.hosts}
    return SweepResult(context={**context, "machine": {}}, rows=tuple(keys.values()))


def _row(log: NcclTestsLog, row: NcclTestsRow) -> SweepRow:
    """The file has one mean a row; with single iterations, one round of them."""
    samples = np.array(row.samples_us or (row.time_us,))
    time_us = float(np.median(samples))
    algbw = row.size_bytes / (time_us * 1e3)
    key = RowKey(
        op=log.op,
        dtype=row.dtype,
        redop=row.redop,
        world_size=log.ranks,
        backend="nccl",
        placement=row.placement,
        size_bytes=row.size_bytes,
        count=row.count,
    )
    return SweepRow(
        key=key,
        root=row.root,
        time_us=time_us,
        min_us=float(samples.min()),
        p50_us=time_us,
        p99_us=float(np.percentile(samples, 99)),
        max_us=float(samples.max()),
        cv=float(samples.std() / samples.mean()) if len(samples) > 1 else math.nan,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * bus_factor(log.op, log.ranks),
        wrong=row.wrong,
        iterations=len(samples),
        skew_us=math.nan,
        samples_us=tuple(samples.tolist()),
        round_iterations=(len(samples),),
    )
