"""From measured collectives to cost curves: parameters, intervals, residuals, held-out error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof import invocation
from commprof.errors import CommprofError
from commprof.predict.fit.cost_model import CostCurve, HeldOut, Piece
from commprof.predict.fit.points import Point
from commprof.predict.fit.regression import Floats, Line, find_breaks, lines_on
from commprof.predict.replay.algorithms import work
from commprof.stats.intervals import percentile_interval

REPLICATES = 100
_SEED = 20240501
_LEAST_SIZES = 3


@dataclass(frozen=True)
class _Data:
    """Points of one operation, as columns."""

    ranks: Floats
    size_bytes: Floats
    steps: Floats
    #: Bytes per step, and seconds per step.
    x: Floats
    y: Floats
    samples: tuple[tuple[float, ...], ...]
    #: Of the most crowded point; NaN where not known of any.
    ranks_per_core: float


def fit_curves(points: Sequence[Point]) -> tuple[list[CostCurve], list[str]]:
    """A curve per operation and backend, over all world sizes and sizes; and what is left out.

    gamma is told apart from the wire where an all-gather was measured beside an all-reduce:
    both send through the same links, one of them adds up.

    An operation that was measured at too few sizes to tell latency from rate is left out.
    """
    curves, left_out = [], []
    for op, backend in sorted({(point.op, point.backend) for point in points}):
        mine = [point for point in points if (point.op, point.backend) == (op, backend)]
        try:
            curves.append(_fit(op, backend, mine))
        except CommprofError as error:
            left_out.append(str(error))
    plain = {curve.backend: curve for curve in curves if curve.op == "all_gather"}
    return [_with_gamma(curve, plain.get(curve.backend)) for curve in curves], left_out


def _fit(op: str, backend: str, points: Sequence[Point]) -> CostCurve:
    data = _columns(op, backend, points)
    if len(np.unique(data.x)) < _LEAST_SIZES and op != "barrier":
        sizes = ", ".join(f"{size:g}" for size in np.unique(data.size_bytes))
        raise CommprofError(
            f"{op} on {backend} was measured at {sizes} bytes only; latency and rate need "
            f"{_LEAST_SIZES} sizes or more: "
            + invocation.command("microbench", op, "-b", "1K", "-e", "64M", "-f", "4")
        )
    if op == "barrier":
        return _barrier(backend, data)
    breaks = find_breaks(data.x, data.y)
    lines = lines_on(breaks, data.x, data.y)
    assert lines is not None
    replicates = _bootstrap(breaks, data)
    residual = _predicted(breaks, lines, data.x) / data.y - 1
    return CostCurve(
        op=op,
        backend=backend,
        pieces=_pieces(breaks, lines, replicates),
        step_bytes=(float(data.x.min()), float(data.x.max())),
        world_sizes=tuple(int(n) for n in np.unique(data.ranks)),
        ranks_per_core=data.ranks_per_core,
        residual=float(np.sqrt(np.mean(residual**2))),
        worst_residual=float(np.abs(residual).max()),
        held_out_size=_held_out(breaks, data, data.size_bytes),
        held_out_world_size=_held_out(breaks, data, data.ranks),
        replicates=tuple(tuple(each) for each in replicates),
    )


def _columns(op: str, backend: str, points: Sequence[Point]) -> _Data:
    done = [work(op, point.ranks, backend) for point in points]
    steps = np.array([each.steps for each in done], dtype=np.float64)
    crowded = [each.ranks_per_core for each in points if not math.isnan(each.ranks_per_core)]
    return _Data(
        ranks=np.array([point.ranks for point in points], dtype=np.float64),
        size_bytes=np.array([point.size_bytes for point in points]),
        steps=steps,
        x=np.array([w.step_bytes(p.size_bytes) for w, p in zip(done, points, strict=True)]),
        y=np.array([point.time_s for point in points]) / steps,
        samples=tuple(point.samples_s for point in points),
        ranks_per_core=max(crowded, default=math.nan),
    )


def _barrier(backend: str, data: _Data) -> CostCurve:
    """Latency alone."""
    alpha = float(np.median(data.y))
    residual = alpha / data.y - 1
    return CostCurve(
        op="barrier",
        backend=backend,
        pieces=(Piece(0.0, alpha, 0.0),),
        step_bytes=(0.0, 0.0),
        world_sizes=tuple(int(n) for n in np.unique(data.ranks)),
        ranks_per_core=data.ranks_per_core,
        residual=float(np.sqrt(np.mean(residual**2))),
        worst_residual=float(np.abs(residual).max()),
    )


def _predicted(breaks: Sequence[float], lines: Sequence[Line], x: Floats) -> Floats:
    piece = np.searchsorted(np.asarray(breaks), x, side="right") - 1
    a, b = np.array(lines)[piece].T
    result: Floats = a + b * x
    return result


def _bootstrap(breaks: Sequence[float], data: _Data) -> list[list[Line]]:
    """Refits on points drawn with replacement, each with a median of its samples drawn anew.

    The breaks stay. A draw that leaves a piece with one size is drawn again.
    """
    random = np.random.default_rng(_SEED)
    found: list[list[Line]] = []
    for _ in range(20 * REPLICATES):
        if len(found) == REPLICATES:
            break
        rows = random.integers(0, len(data.x), len(data.x))
        y = np.array([_redrawn(data, row, random) for row in rows])
        lines = lines_on(breaks, data.x[rows], y)
        if lines is not None:
            found.append(lines)
    return found


def _redrawn(data: _Data, row: int, random: np.random.Generator) -> float:
    samples = data.samples[row]
    if len(samples) < 2:
        return float(data.y[row])
    drawn = random.choice(np.asarray(samples), len(samples))
    # Relative to the samples' own median: time_s may be of another statistic.
    return float(data.y[row] * np.median(drawn) / np.median(samples))


def _pieces(
    breaks: Sequence[float], lines: Sequence[Line], replicates: Sequence[Sequence[Line]]
) -> tuple[Piece, ...]:
    pieces = []
    for number, (low, (alpha, beta)) in enumerate(zip(breaks, lines, strict=True)):
        if replicates:
            drawn = np.array([each[number] for each in replicates])
            bounds = percentile_interval(drawn)
        else:
            bounds = np.full((2, 2), np.nan)
        pieces.append(
            Piece(
                low,
                alpha,
                beta,
                (float(bounds[0, 0]), float(bounds[1, 0])),
                (float(bounds[0, 1]), float(bounds[1, 1])),
            )
        )
    return tuple(pieces)


def _held_out(breaks: Sequence[float], data: _Data, groups: Floats) -> HeldOut | None:
    """Leaves out each group of points in turn; None where nothing would be left."""
    errors: list[float] = []
    for value in np.unique(groups):
        out = groups == value
        lines = lines_on(breaks, data.x[~out], data.y[~out])
        if lines is None:  # too few left for these pieces: one line
            lines = lines_on([0.0], data.x[~out], data.y[~out])
            if lines is None:
                return None
            predicted = _predicted([0.0], lines, data.x[out])
        else:
            predicted = _predicted(breaks, lines, data.x[out])
        errors += np.abs(predicted / data.y[out] - 1).tolist()
    return HeldOut(float(np.mean(errors)), float(max(errors)), len(errors))


def _with_gamma(curve: CostCurve, plain: CostCurve | None) -> CostCurve:
    """gamma from the slopes of the last pieces: beta_sum - beta_plain = gamma * reduced / sent.

    Its interval is that of the differences between the two operations' replicates.
    """
    done = work(curve.op, 2, curve.backend)
    if plain is None or not done.reduced:
        return curve

    def gamma(beta_s_per_byte: float, plain_s_per_byte: float) -> float:
        return max(0.0, beta_s_per_byte - plain_s_per_byte) * done.sent / done.reduced

    fitted = gamma(curve.pieces[-1].beta_s_per_byte, plain.pieces[-1].beta_s_per_byte)
    both = zip(curve.replicates, plain.replicates, strict=False)
    drawn = [gamma(summed[-1][1], gathered[-1][1]) for summed, gathered in both]
    interval = (math.nan, math.nan)
    if drawn:
        low, high = percentile_interval(drawn)
        interval = min(fitted, float(low)), max(fitted, float(high))
    return dataclasses.replace(curve, gamma_s_per_byte=fitted, gamma_interval_s_per_byte=interval)
