"""Result of a sweep: times of collectives by operation, world size and buffer size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.collectives.traffic import bus_factor
from commprof.files import Signed
from commprof.trace.columns import Ints

Floats = npt.NDArray[np.float64]

NCCL_TESTS = "nccl-tests"
"""Value of ``instrument`` in ``SweepResult.context`` if nccl-tests measured the result."""


@dataclass(frozen=True)
class Times:
    """Start and end of each call on one rank; the order of calls is the same on all ranks."""

    begin_ns: Ints
    """Start of each call, in ns of the rank's CLOCK_MONOTONIC."""
    end_ns: Ints
    """Time at which the result of each call was ready, on the same clock."""


def durations_us(ranks: Sequence[Times], one_clock: bool) -> Floats:
    """Returns the duration of each call over all ranks, in µs.

    With ``one_clock``, a duration lasts from the last rank's start to the last rank's end, so it
    does not include the waiting for a late rank. Without ``one_clock``, it is the longest duration
    on any rank, which may include such waiting.
    """
    begin = np.stack([times.begin_ns for times in ranks])
    end = np.stack([times.end_ns for times in ranks])
    own = (end - begin).max(axis=0)
    return np.asarray((end.max(axis=0) - begin.max(axis=0) if one_clock else own) / 1e3)


def skews_us(ranks: Sequence[Times]) -> Floats:
    """Returns the time between the first and the last rank's start of each call, in µs.

    All times must be on one clock.
    """
    begin = np.stack([times.begin_ns for times in ranks])
    return np.asarray((begin.max(axis=0) - begin.min(axis=0)) / 1e3)


@dataclass(frozen=True)
class RowKey:
    """The case that a row measures. Rows of two results are compared if their cases are equal."""

    op: str
    """Name of the operation in c10d, or ``hook:`` and the name of a compressor."""
    dtype: str
    """Type of the elements, as nccl-tests names it."""
    redop: str
    """Reduction operator; empty if nothing is reduced."""
    world_size: int
    """Number of ranks in the group."""
    backend: str
    placement: str
    """``out_of_place`` or ``in_place``."""
    size_bytes: int
    """Size of the larger of a rank's two buffers."""
    count: int
    """Number of elements, as NCCL's calls count them."""


@dataclass(frozen=True)
class SweepRow:
    """Times of one case over all samples, and the bandwidths computed from these times."""

    key: RowKey
    root: Signed
    """Root rank; -1 if there is none."""
    time_us: float
    """Median time."""
    min_us: float
    p50_us: float
    """Median time, equal to `time_us`."""
    p99_us: float
    """99th percentile; with fewer than 100 samples, close to the longest time."""
    max_us: float
    cv: float
    """Standard deviation of the times divided by their mean."""
    algbw_gb_per_s: float
    """Size divided by `time_us`; NaN if no data move."""
    busbw_gb_per_s: float
    """`algbw_gb_per_s` times `traffic.bus_factor`; NaN if there is no factor."""
    wrong: int | None
    """Number of wrong elements on all ranks; None if the results were not checked."""
    iterations: int
    """Number of samples."""
    skew_us: float
    """Median time between the first and the last rank's start; NaN without a common clock."""
    samples_us: tuple[float, ...]
    """All samples in the order in which they were measured."""
    round_iterations: tuple[int, ...]
    """Number of samples of each round, in order."""


@dataclass(frozen=True)
class OverlapRow:
    """Overlap of a collective with compute, measured as in IMB-NBC."""

    key: RowKey
    pure_us: float
    """t_pure: time of the collective without compute."""
    compute_alone_us: float
    """Time of the compute without a collective in flight."""
    compute_us: float
    """t_CPU: time of the compute while the collective is in flight."""
    overlapped_us: float
    """t_ovrl: time from issue to the end of the wait, with the compute in between."""
    overlap: float
    """Result of `overlap_share`, from 0 (no overlap) to 1."""
    iterations: int
    """Number of samples. All times are medians over the samples."""
    wrong: int | None = None
    """See `SweepRow.wrong`; also None in files of older versions."""


@dataclass(frozen=True)
class SweepResult:
    """Result of one microbenchmark command."""

    context: dict[str, Any]
    """Machine, versions, command and method of measurement."""
    rows: tuple[SweepRow, ...] = ()
    """Rows in the order in which they were measured."""
    overlap_rows: tuple[OverlapRow, ...] = ()
    """Rows of a sweep with ``--overlap``; `rows` is then empty."""
    problems: tuple[str, ...] = field(default=())
    """Reasons why the command ended early, one line each."""


def make_row(
    key: RowKey,
    bus_op: str,
    rounds_us: Sequence[Floats],
    skews: Sequence[Floats],
    wrong: int | None,
    root: int,
) -> SweepRow:
    """Makes a row from the durations of its samples in µs, one array per round.

    ``bus_op`` is the name of the operation in `traffic.bus_factor`. ``skews`` holds the results of
    `skews_us`, and is empty without a common clock.
    """
    samples = np.concatenate(list(rounds_us))
    median = float(np.median(samples))
    algbw = key.size_bytes / (median * 1e3) if key.size_bytes and median > 0 else math.nan
    return SweepRow(
        key=key,
        root=root,
        time_us=median,
        min_us=float(samples.min()),
        p50_us=median,
        p99_us=float(np.percentile(samples, 99)),
        max_us=float(samples.max()),
        cv=float(samples.std() / samples.mean()),
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * bus_factor(bus_op, key.world_size),
        wrong=wrong,
        iterations=len(samples),
        skew_us=float(np.median(np.concatenate(list(skews)))) if skews else math.nan,
        samples_us=tuple(samples.tolist()),
        round_iterations=tuple(len(one) for one in rounds_us),
    )


def overlap_share(pure_us: float, compute_us: float, overlapped_us: float) -> float:
    """Returns how much of the shorter of communication and compute was hidden, from 0 to 1.

    Source: Intel MPI Benchmarks User Guide, IMB-NBC, "Measuring Communication and Computation
    Overlap". All times must come from the rank with the largest ``overlapped_us``.
    """
    return max(0.0, min(1.0, (pure_us + compute_us - overlapped_us) / min(pure_us, compute_us)))
