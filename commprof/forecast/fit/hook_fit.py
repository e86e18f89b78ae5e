"""Fits a compressor's cost to recorded runs.

Each stage (encode, reduce, decode) has a straight line, which is fitted to the stage's times; for
hierarchical exchanges, see ``hook_costs.py``. The cost also has a fixed overhead per bucket. The
overhead is chosen so that a replay of the recorded steps predicts the completion times of buckets
best. Intervals come from bootstrap replicates of buckets and steps. Replicate i is fitted with
replicate i of the link's cost curve, so a prediction uses the two replicates together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from commprof import satellites
from commprof.analysis.collectives.compression import CompressionRow
from commprof.errors import CommprofError
from commprof.forecast.costs.cost_model import OTHER_HOST, CostCurve
from commprof.forecast.costs.hook_costs import (
    HIERARCHICAL,
    HookCost,
    HookFigures,
    recording,
)
from commprof.forecast.costs.regression import Line, robust_line
from commprof.forecast.replay.exchange import exchange
from commprof.forecast.scenario.schedule import Schedule
from commprof.stats.intervals import percentile_interval

#: Number of tried overheads, from 10 µs to 100 ms.
_OVERHEADS = 81
#: Hierarchical exchange: number of tried times per byte within a host, from 10 ps to 100 ns.
_BETAS = 41
#: Hierarchical exchange: number of tried overheads, from 10 µs to 100 ms.
_ALPHAS = 31
REPLICATES = 20
_SEED = 20240501
#: A replicate's fit tries the fitted overhead times these factors.
_NEAR = np.geomspace(0.5, 2, 11)
#: Hierarchical exchange: factors for the fitted overhead and for the fitted time per byte.
_NEAR_BOTH = np.geomspace(0.5, 2, 5)
#: A smaller fitted overhead is replaced by this value, before it is multiplied by ``_NEAR``.
_LEAST_OVERHEAD_S = 1e-5
#: With fewer buckets, the error of a line cannot be estimated.
_LEAST_BUCKETS = 3
_MOST_DRAWS = 100


def fit_hook(
    label: str,
    rows: Sequence[CompressionRow],
    schedules: Sequence[Schedule],
    curve: CostCurve,
    plain: Sequence[Schedule] = (),
) -> HookCost:
    """Fits the cost of a compressor to runs of one world size of 2 ranks or more.

    Args:
        label: the compressor, as given to ``--hook``.
        rows: times of the runs' compressed buckets.
        schedules: recorded steps of the same runs.
        curve: cost of an all-reduce on the runs' link.
        plain: runs without a hook, for measuring how much the hook slows compute.

    Raises:
        CommprofError: the runs have 1 rank or compressed no bucket, the scheme is unknown, or a
            hierarchical option was recorded on one host.
    """
    name = label.partition(":")[0]
    mine = [row for row in rows if row.sent.payload_bytes > 0]
    ranks = schedules[0].world_size
    exchanges = satellites.tune().exchanges()
    if name not in exchanges:
        raise CommprofError(
            f"hook {label}: the cost model supports no such scheme (supported: "
            f"{', '.join(exchanges)}); predict without this hook"
        )
    if not mine or ranks < 2:
        raise CommprofError(
            f"hook {label}: no run of 2 ranks or more compressed a bucket; record such a run with "
            + recording(label)
        )
    size = np.array([float(row.gradient_bytes) for row in mine])
    payload = np.array([row.sent.payload_bytes for row in mine])
    encode, reduce, decode = _stages(mine)
    bare = HookCost(
        label=label,
        exchange=exchanges[name],
        encode=encode,
        reduce=reduce,
        decode=decode,
        payload_ratio=float(payload.sum() / size.sum()),
        overhead_s=0.0,
        ranks=ranks,
        ranks_per_core=schedules[0].placement.ranks_per_core,
        bucket_bytes=(float(size.min()), float(size.max())),
        compute_s_per_byte=_compute_s_per_byte(schedules, plain),
        alpha_s=curve.pieces[0].alpha_s,
        link=schedules[0].link,
    )
    if name == HIERARCHICAL or "hierarchical=1" in label.partition(":")[2].split(","):
        fitted = _two_levels(bare, schedules, curve)
    else:
        fitted = _with_overhead(bare, np.geomspace(1e-5, 0.1, _OVERHEADS), schedules, curve)
    return _with_spread(fitted, mine, schedules, curve)


def _stages(rows: Sequence[CompressionRow]) -> tuple[Line, Line, Line]:
    size = np.array([float(row.gradient_bytes) for row in rows])
    return (
        _line(size, [row.times.encode_ms for row in rows]),
        _line(size, [row.times.reduce_ms for row in rows]),
        _line(size, [row.times.decode_ms for row in rows]),
    )


def _line(size: npt.NDArray[np.float64], times_ms: Sequence[float]) -> Line:
    """Fits a line; if all sizes are equal, the time is assumed to be proportional to the size."""
    seconds = np.maximum(np.array(times_ms) / 1e3, 1e-9)
    if len(np.unique(size)) > 1:
        return robust_line(size, seconds)
    return 0.0, float(np.median(seconds / size))


def _two_levels(bare: HookCost, schedules: Sequence[Schedule], curve: CostCurve) -> HookCost:
    """Fits a hierarchical exchange: ranks add up within hosts, then hosts exchange the sums."""
    per_host = max(1, round(schedules[0].placement.ranks_per_host))
    hosts = max(1, math.ceil(bare.ranks / per_host))
    if hosts == 1 and bare.exchange != HIERARCHICAL:
        raise CommprofError(
            f"hook {bare.label} was recorded on one host, where it compresses nothing; record it "
            "on several hosts"
        )
    nothing: Line = (0.0, 0.0)
    levels = dataclasses.replace(
        bare,
        encode=nothing,
        reduce=nothing,
        decode=nothing,
        # The compressor ``hierarchical`` records the bytes of the whole bucket. Other compressors
        # record only the rank's own part of the host's bytes.
        payload_ratio=1.0 if bare.exchange == HIERARCHICAL else bare.payload_ratio * per_host,
        ranks=hosts,
        between_hosts=True,
        ranks_per_host=per_host,
    )
    coarse = _with_level(
        levels,
        np.geomspace(1e-5, 0.1, _ALPHAS),
        np.geomspace(1e-11, 1e-7, _BETAS),
        schedules,
        curve,
    )
    closer = np.linspace(0.75, 1.35, 13)
    return _with_level(
        coarse, closer * coarse.overhead_s, closer * coarse.reduce[1], schedules, curve
    )


def _with_level(
    cost: HookCost,
    overheads_s: npt.NDArray[np.float64],
    betas_s_per_byte: npt.NDArray[np.float64],
    schedules: Sequence[Schedule],
    curve: CostCurve,
) -> HookCost:
    """Chooses the overhead and the time per byte within a host that have the least error.

    0 is tried too for both values. The field ``reduce`` gets the time per byte of all three stages.
    """
    tried = (
        dataclasses.replace(cost, overhead_s=alpha, reduce=(0.0, beta))
        for beta in (0.0, *betas_s_per_byte.tolist())
        for alpha in (0.0, *overheads_s.tolist())
    )
    return min(tried, key=lambda each: _miss(each, schedules, curve))


def _with_overhead(
    cost: HookCost,
    overheads_s: npt.NDArray[np.float64],
    schedules: Sequence[Schedule],
    curve: CostCurve,
) -> HookCost:
    tried = (dataclasses.replace(cost, overhead_s=each) for each in (0.0, *overheads_s.tolist()))
    return min(tried, key=lambda each: _miss(each, schedules, curve))


def _compute_s_per_byte(hooked: Sequence[Schedule], plain: Sequence[Schedule]) -> float:
    """Returns the compressor's median slowdown of compute, in seconds per gradient byte.

    NaN if no run in ``plain`` has the same number of ranks, link class and buckets.
    """
    rates = [
        (_own_s(schedule) - _own_s(other)) / schedule.gradient_bytes
        for schedule in hooked
        for other in plain
        if (schedule.world_size, schedule.link) == (other.world_size, other.link)
        and schedule.bucket_bytes.tolist() == other.bucket_bytes.tolist()
    ]
    return float(np.median(rates)) if rates else math.nan


def _own_s(schedule: Schedule) -> float:
    return float(np.median(schedule.backward_end_s - schedule.other_wait_s))


def _miss(cost: HookCost, schedules: Sequence[Schedule], curve: CostCurve) -> float:
    """Returns the mean absolute error of the replayed bucket ends.

    The error of each run is divided by the run's median step time. The errors of all runs are added
    up.
    """
    total = 0.0
    for schedule in schedules:
        sizes = schedule.bucket_bytes.tolist()
        per_host = max(1, round(schedule.placement.ranks_per_host))
        sharing = cost.link_sharing(cost.ranks, per_host) if schedule.link == OTHER_HOST else 1.0
        alone = [cost.time_s(size, cost.ranks, curve, sharing=sharing) for size in sizes]
        ready = schedule.ready_s.max(axis=1)
        end = exchange(ready, np.array(alone), np.zeros(len(sizes)), workers=1)
        period = float(np.median(schedule.period_s))
        total += float(np.abs(end - schedule.end_s).mean()) / period
    return total


def _with_spread(
    cost: HookCost, rows: Sequence[CompressionRow], schedules: Sequence[Schedule], curve: CostCurve
) -> HookCost:
    drawn = tuple(_replicates(cost, rows, schedules, curve))
    are_lines_drawn = cost.between_hosts or len(rows) >= _LEAST_BUCKETS
    low, high = _bounds(cost, drawn, are_lines_drawn)
    return dataclasses.replace(
        cost,
        residual=_miss(cost, schedules, curve) / len(schedules),
        work_residual=math.nan if cost.between_hosts else _work_residual(cost, rows),
        low=low,
        high=high,
        replicates=drawn,
    )


def _work_residual(cost: HookCost, rows: Sequence[CompressionRow]) -> float:
    took_s = [row.times.work_ms / 1e3 for row in rows]
    fitted_s = [cost.work_s(row.gradient_bytes, cost.ranks) for row in rows]
    relative = np.array(fitted_s) / np.maximum(took_s, 1e-9) - 1
    return float(np.sqrt(np.mean(relative**2)))


def _replicates(
    cost: HookCost, rows: Sequence[CompressionRow], schedules: Sequence[Schedule], curve: CostCurve
) -> Iterator[HookFigures]:
    random = np.random.default_rng(_SEED)
    for number in range(REPLICATES):
        steps = [_redrawn(schedule, random) for schedule in schedules]
        beside = curve.replicate(number)
        again = cost
        if cost.between_hosts:
            overheads_s, betas = _NEAR_BOTH * cost.overhead_s, _NEAR_BOTH * cost.reduce[1]
            again = _with_level(cost, overheads_s, betas, steps, beside)
        else:
            encode, reduce, decode = _stages(_redrawn_rows(rows, random))
            again = dataclasses.replace(cost, encode=encode, reduce=reduce, decode=decode)
            overheads_s = _NEAR * max(cost.overhead_s, _LEAST_OVERHEAD_S)
            again = _with_overhead(again, overheads_s, steps, beside)
        yield HookFigures(again.encode, again.reduce, again.decode, again.overhead_s)


def _redrawn(schedule: Schedule, random: np.random.Generator) -> Schedule:
    rows = random.integers(0, len(schedule.ready_s), len(schedule.ready_s))
    return dataclasses.replace(schedule, ready_s=schedule.ready_s[rows], end_s=schedule.end_s[rows])


def _redrawn_rows(
    rows: Sequence[CompressionRow], random: np.random.Generator
) -> list[CompressionRow]:
    """Resamples rows with replacement, keeping at least two sizes, which a line needs."""
    if len(rows) < _LEAST_BUCKETS:
        return list(rows)
    least = min(2, len({row.gradient_bytes for row in rows}))
    for _ in range(_MOST_DRAWS):
        drawn = [rows[index] for index in random.integers(0, len(rows), len(rows))]
        if len({row.gradient_bytes for row in drawn}) >= least:
            return drawn
    return list(rows)


def _bounds(
    cost: HookCost, drawn: Sequence[HookFigures], are_lines_drawn: bool
) -> tuple[HookFigures, HookFigures]:
    table = np.array(
        [
            [*figures.encode, *figures.reduce, *figures.decode, figures.overhead_s]
            for figures in drawn
        ]
    )
    low, high = percentile_interval(table)
    fitted = [*cost.encode, *cost.reduce, *cost.decode, cost.overhead_s]
    return (
        _figures(np.minimum(low, fitted).tolist(), are_lines_drawn),
        _figures(np.maximum(high, fitted).tolist(), are_lines_drawn),
    )


def _figures(values: Sequence[float], are_lines_drawn: bool) -> HookFigures:
    if not are_lines_drawn:
        values = [*[math.nan] * 6, values[6]]
    encode, reduce, decode = ((values[n], values[n + 1]) for n in (0, 2, 4))
    return HookFigures(encode, reduce, decode, values[6])
