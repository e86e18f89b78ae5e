"""Result of a sweep: one row for each operation, world size, buffer size and `RowKey.placement`."""

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
"""Value of ``instrument`` in the context of a result that was read from an output of nccl-tests."""


@dataclass(frozen=True)
class Times:
    """Times at which one rank's calls began and ended; the calls' order is equal on all ranks."""

    begin_ns: Ints
    """Time of each call, in ns of the rank's own CLOCK_MONOTONIC."""
    end_ns: Ints
    """Time at which the rank had each result, on the same clock."""


def durations_us(ranks: Sequence[Times], one_clock: bool) -> Floats:
    """Returns the duration of each call over all ranks, in µs.

    With ``one_clock``, all times are on one clock, and a call's duration runs from the latest begin
    to the latest end on any rank. This leaves out waiting for a late rank. Otherwise the duration
    is the longest on any rank, which includes waiting for a late rank.
    """
    begin = np.stack([times.begin_ns for times in ranks])
    end = np.stack([times.end_ns for times in ranks])
    own = (end - begin).max(axis=0)
    return np.asarray((end.max(axis=0) - begin.max(axis=0) if one_clock else own) / 1e3)


def skews_us(ranks: Sequence[Times]) -> Floats:
    """Returns µs from the earliest to the latest rank's start, per call; ranks need one clock."""
    begin = np.stack([times.begin_ns for times in ranks])
    return np.asarray((begin.max(axis=0) - begin.min(axis=0)) / 1e3)


@dataclass(frozen=True)
class RowKey:
    """Key of a row: the measured case. Rows of two results are compared if their keys are equal."""

    op: str
    """c10d's name of the operation, or ``hook:`` and a compressor."""
    dtype: str
    """nccl-tests' name of the elements' type."""
    redop: str
    """Reduce op; empty if nothing is reduced."""
    world_size: int
    """Number of ranks in the group."""
    backend: str
    """torch.distributed backend of the group."""
    placement: str
    """``out_of_place`` or ``in_place``."""
    size_bytes: int
    """Bytes of the larger of a rank's two buffers."""
    count: int
    """Number of elements, as NCCL's calls count them."""


@dataclass(frozen=True)
class SweepRow:
    """One row's times over all samples, and the bandwidth computed from them."""

    key: RowKey
    """The measured case: operation, types, group, placement and size."""
    root: Signed
    """Root rank; -1 if there is none."""
    time_us: float
    """Median time."""
    min_us: float
    """Shortest time."""
    p50_us: float
    """Median time, equal to `time_us`."""
    p99_us: float
    """99th percentile; with fewer than 100 samples, close to the longest time."""
    max_us: float
    """Longest time."""
    cv: float
    """Standard deviation divided by mean."""
    algbw_gb_per_s: float
    """Size divided by `time_us`; NaN if no data move."""
    busbw_gb_per_s: float
    """algbw times nccl-tests' factor, see `traffic.bus_factor`; NaN without a factor."""
    wrong: int | None
    """Number of wrong elements over ranks and checked calls; None if not checked."""
    iterations: int
    """Number of samples."""
    skew_us: float
    """Median time from the earliest to the latest rank's start; NaN without a common clock."""
    samples_us: tuple[float, ...]
    """All samples in the order in which they were measured."""
    round_iterations: tuple[int, ...]
    """Number of samples of each round, in order."""


@dataclass(frozen=True)
class OverlapRow:
    """Overlap of communication with compute, in the terms of IMB-NBC."""

    key: RowKey
    """The measured case; its ``placement`` is ``in_place`` if the operation supports that."""
    pure_us: float
    """t_pure: the collective alone."""
    compute_alone_us: float
    """Duration of the same compute without a collective in flight."""
    compute_us: float
    """t_CPU: the compute while the collective is in flight."""
    overlapped_us: float
    """t_ovrl: from issue, through the compute, to the end of the wait."""
    overlap: float
    """0: no overlap; 1: the shorter one of collective and compute is hidden. See `overlap_share`.
    """
    iterations: int
    """Number of samples; all times are medians."""
    wrong: int | None = None
    """As `SweepRow.wrong`; None also in files of commprof versions that did not record it."""


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
    """Makes a row from the durations of its samples in each round, in µs.

    bus_op: the operation's name in `traffic.bus_factor`. skews: per round, each sample's time from
    the earliest to the latest rank's start, in µs; empty without a common clock. wrong, root: as
    in `SweepRow`.
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
    """Returns the overlap of communication and compute as a fraction (0 to 1) of the shorter one.

    ``max(0, min(1, (t_pure + t_CPU - t_ovrl) / min(t_pure, t_CPU)))``: Intel MPI Benchmarks User
    Guide, IMB-NBC, "Measuring Communication and Computation Overlap". t_CPU is the duration of the
    compute while the collective is in flight; all times are from the rank with the largest t_ovrl.
    """
    return max(0.0, min(1.0, (pure_us + compute_us - overlapped_us) / min(pure_us, compute_us)))
