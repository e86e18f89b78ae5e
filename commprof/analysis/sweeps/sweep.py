"""A sweep's figures: one row per operation, world size, size and placement, made of samples."""

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


@dataclass(frozen=True)
class Times:
    """Times of one rank's calls of one kind, in the order in which all ranks made them."""

    begin_ns: Ints
    """When it called, by its own CLOCK_MONOTONIC."""
    end_ns: Ints
    """When its result was there."""


def durations_us(ranks: Sequence[Times], one_clock: bool) -> Floats:
    """Duration of each call, of all ranks together.

    one_clock: the ranks' times are of one clock. Then a call takes from the last rank's begin to
    the last rank's end, and waiting for a late rank is in no figure. Otherwise it takes as long
    as in the rank in which it took longest, late ranks included.
    """
    begin = np.stack([times.begin_ns for times in ranks])
    end = np.stack([times.end_ns for times in ranks])
    own = (end - begin).max(axis=0)
    return np.asarray((end.max(axis=0) - begin.max(axis=0) if one_clock else own) / 1e3)


def skews_us(ranks: Sequence[Times]) -> Floats:
    """Microseconds from the first rank's begin to the last one's; the ranks share a clock."""
    begin = np.stack([times.begin_ns for times in ranks])
    return np.asarray((begin.max(axis=0) - begin.min(axis=0)) / 1e3)


@dataclass(frozen=True)
class RowKey:
    """What a row measured; equal in two results that can be compared."""

    op: str
    """c10d's name of the operation, or ``hook:`` and a compressor."""
    dtype: str
    """nccl-tests' name of the elements' type."""
    redop: str
    """Reduce op; empty where nothing is reduced."""
    world_size: int
    """Ranks of the group."""
    backend: str
    """torch.distributed backend of the group."""
    placement: str
    """``out_of_place`` or ``in_place``."""
    size_bytes: int
    """Bytes of the larger of a rank's two buffers."""
    count: int
    """Elements in the sense of NCCL's calls."""


@dataclass(frozen=True)
class SweepRow:
    """One row's times over all samples, and what follows from them."""

    key: RowKey
    """What was measured."""
    root: Signed
    """Root rank; -1 where there is none."""
    time_us: float
    """Median."""
    min_us: float
    """Shortest."""
    p50_us: float
    """Median again, by its other name."""
    p99_us: float
    """99th percentile; of fewer than 100 samples, close to the longest."""
    max_us: float
    """Longest."""
    cv: float
    """Standard deviation over mean."""
    algbw_gb_per_s: float
    """Size over `time_us`; NaN where no data move."""
    busbw_gb_per_s: float
    """algbw times nccl-tests' factor, see `bandwidth.bus_factor`; NaN where it has none."""
    wrong: int | None
    """Elements that were not as they must be, over ranks and checked calls; None: not checked."""
    iterations: int
    """Samples."""
    skew_us: float
    """Median time from the first rank's begin to the last one's; NaN without a common clock."""
    samples_us: tuple[float, ...]
    """All samples in the order in which they were taken."""
    round_iterations: tuple[int, ...]
    """How many of them belong to each round, in order."""


@dataclass(frozen=True)
class OverlapRow:
    """Communication under compute, by the words of IMB-NBC."""

    key: RowKey
    """What was measured; in place where the operation can be."""
    pure_us: float
    """t_pure: the collective alone."""
    compute_alone_us: float
    """Duration of the same compute without a collective under way."""
    compute_us: float
    """t_CPU: the compute while the collective is under way."""
    overlapped_us: float
    """t_ovrl: from issue, through the compute, to the end of the wait."""
    overlap: float
    """0: one after the other; 1: the shorter one costs nothing. See `overlap_share`."""
    iterations: int
    """Samples; all times are medians."""
    wrong: int | None = None
    """As in `SweepRow`; None also in files from before it was there."""


@dataclass(frozen=True)
class SweepResult:
    """What one microbenchmark command measured."""

    context: dict[str, Any]
    """Machine, versions, command, policy."""
    rows: tuple[SweepRow, ...] = ()
    """In the order in which they were measured."""
    overlap_rows: tuple[OverlapRow, ...] = ()
    """Rows of a sweep with ``--overlap``, which has no others."""
    problems: tuple[str, ...] = field(default=())
    """What ended it before its time, one line each."""


def make_row(
    key: RowKey,
    bus_op: str,
    rounds_us: Sequence[Floats],
    skews: Sequence[Floats],
    wrong: int | None,
    root: int,
) -> SweepRow:
    """Makes a row from its samples, given per round in us.

    bus_op: the operation's name in `bandwidth.bus_factor`. skews: like rounds_us; empty without a
    common clock.
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
    """Share of the shorter of the two that the longer one hides, from 0 to 1.

    ``max(0, min(1, (t_pure + t_CPU - t_ovrl) / min(t_pure, t_CPU)))``: Intel MPI Benchmarks User
    Guide, IMB-NBC, "Measuring Communication and Computation Overlap". t_CPU is of the compute while
    the collective is under way, and all three are of the rank with the largest t_ovrl.
    """
    return max(0.0, min(1.0, (pure_us + compute_us - overlapped_us) / min(pure_us, compute_us)))
