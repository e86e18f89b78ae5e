"""Fits a link's latency and rate to the bucket ends (completion times) of training steps.

Buckets of a training step overlap, so no single duration gives the link's rate. The fit replays the
exchange of the recorded steps. It chooses the latency and rate with the least mean absolute
difference between replayed and recorded bucket ends. A ring step that sends x bytes takes

    t(x) = max(beta x, alpha + beta x / 2)

where alpha is the latency, and beta the time per byte. The reason is that gloo has two segments of
a rank's share in flight: one segment travels while the rank waits for the other segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from commprof.errors import CommprofError
from commprof.forecast.costs.algorithms import work
from commprof.forecast.costs.cost_model import CostCurve, Piece
from commprof.forecast.replay.exchange import exchange
from commprof.forecast.scenario.schedule import Schedule
from commprof.stats.intervals import percentile_interval

_Loss = Callable[[float, float], float]
#: Latency of a ring step in seconds, and seconds per byte.
Parameters = tuple[float, float]

_REPLICATES = 20
_SEED = 20240501
#: Each grid of ``_refined`` has this number of latencies and this number of rates.
_GRID = 5
_MOST_GRIDS = 60
#: Two losses count as equal if their relative difference is below this.
_ROUNDING = 1e-9


def calibrate(schedules: Sequence[Schedule]) -> CostCurve:
    """Fits one cost curve to the all-reduces of runs on links of one class.

    Raises:
        CommprofError: there is no run of 2 ranks or more without a compressor.
    """
    usable = [schedule for schedule in schedules if schedule.world_size > 1 and not schedule.hook]
    if not usable:
        raise CommprofError(
            "no plain all-reduce between ranks was recorded; give commprof fit a run of 2 ranks or "
            "more without a hook, or the JSON of a microbenchmark"
        )
    loss = _loss(usable)
    alpha, beta = _refined(loss, _best_of_grid(loss), factor=2.0, until=1.002)
    random = np.random.default_rng(_SEED)
    drawn = [
        _refined(_loss(usable, random), (alpha, beta), factor=1.2, until=1.01)
        for _ in range(_REPLICATES)
    ]
    return _curve(usable, alpha, beta, drawn, loss(alpha, beta))


def ring_pieces(alpha_s: float, beta_s_per_byte: float) -> tuple[tuple[float, float, float], ...]:
    """Returns the linear pieces of a ring step's time, ``max(beta x, alpha + beta x / 2)``.

    x is the size in bytes. A piece is (begin in bytes, latency in s, s per byte).
    """
    if alpha_s <= 0:
        return ((0.0, 0.0, beta_s_per_byte),)
    return (
        (0.0, alpha_s, beta_s_per_byte / 2),
        (2 * alpha_s / beta_s_per_byte, 0.0, beta_s_per_byte),
    )


def _loss(schedules: Sequence[Schedule], random: np.random.Generator | None = None) -> _Loss:
    """Returns the function of (alpha, beta) to minimise: the mean error of replayed bucket ends.

    Each error is divided by the run's median step time. With ``random``, the recorded steps are
    resampled with replacement.
    """
    parts = []
    for schedule in schedules:
        done = work("all_reduce", schedule.world_size)
        x = done.sent * schedule.bucket_bytes / done.steps
        ready, end = schedule.ready_s.max(axis=1), schedule.end_s
        if random is not None:
            rows = random.integers(0, len(ready), len(ready))
            ready, end = ready[rows], end[rows]
        period = float(np.median(schedule.period_s))
        parts.append((done.steps, x, ready, end, schedule.workers, period))

    def loss(alpha: float, beta: float) -> float:
        total = 0.0
        for steps, x, ready, end, workers, period in parts:
            latency = steps * np.maximum(0.0, alpha - beta * x / 2)
            replayed = exchange(ready, steps * beta * x, latency, workers)
            total += float(np.abs(replayed - end).mean()) / period
        return total / len(parts)

    return loss


def _best_of_grid(loss: _Loss) -> Parameters:
    grid = itertools.product(np.geomspace(1e-6, 0.1, 16), np.geomspace(1e-11, 1e-6, 41))
    return min(((float(a), float(b)) for a, b in grid), key=lambda pair: loss(*pair))


def _refined(loss: _Loss, start: Parameters, factor: float, until: float) -> Parameters:
    """Searches for the least loss on a series of grids, each around the best point so far.

    A grid reaches from 1 / ``factor`` to ``factor`` times the best point. If a grid has no better
    point, the factor is reduced. The search ends when the factor is ``until`` or less.
    """
    best, least = start, loss(*start)
    for _ in range(_MOST_GRIDS):
        if factor <= until:
            break
        around = np.geomspace(1 / factor, factor, _GRID)
        grid = itertools.product((best[0] * around).tolist(), (best[1] * around).tolist())
        error, point = min((loss(*pair), pair) for pair in grid)
        if error < (1 - _ROUNDING) * least:
            best, least = point, error
        else:
            factor **= 0.4
    return best


def _curve(
    schedules: Sequence[Schedule],
    alpha: float,
    beta: float,
    drawn: Sequence[tuple[float, float]],
    error: float,
) -> CostCurve:
    done = [work("all_reduce", schedule.world_size) for schedule in schedules]
    x = np.concatenate(
        [w.sent * s.bucket_bytes / w.steps for w, s in zip(done, schedules, strict=True)]
    )
    crowded = [schedule.placement.ranks_per_core for schedule in schedules]
    low, high = percentile_interval(drawn)
    least = beta * float(x.min()) / 2
    latency = (float(low[0]), float(high[0]))
    if alpha <= least:  # no bucket shows the latency: any value up to ``least`` fits
        latency = (0.0, least)
        drawn = [(least * (i + 0.5) / len(drawn), b) for i, (_, b) in enumerate(drawn)]
    pieces = tuple(
        Piece(
            begin,
            a,
            b,
            latency if a else (0.0, 0.0),
            (float(low[1] * b / beta), float(high[1] * b / beta)),
        )
        for begin, a, b in ring_pieces(alpha, beta)
    )
    return CostCurve(
        op="all_reduce",
        backend=schedules[0].backend,
        pieces=pieces,
        step_bytes=(float(x.min()), float(x.max())),
        world_sizes=tuple(sorted({schedule.world_size for schedule in schedules})),
        ranks_per_core=max(crowded),
        residual=error,
        replicates=tuple(tuple((a, b) for _, a, b in ring_pieces(*pair)) for pair in drawn),
        source="run",
    )
