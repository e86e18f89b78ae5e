"""Fits cost curves to measured collectives, with intervals and errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from commprof import invocation
from commprof.errors import CommprofError
from commprof.forecast.costs.algorithms import work
from commprof.forecast.costs.cost_model import (
    CostCurve,
    HeldOut,
    Knot,
    Piece,
    between,
    knots_through,
    link_words,
)
from commprof.forecast.costs.regression import MOST_SIZES, Floats, Line, find_breaks, lines_on
from commprof.forecast.fit.points import Point
from commprof.stats.intervals import percentile_interval

REPLICATES = 100
_SEED = 20240501
_LEAST_SIZES = 3
_ALMOST = 1.1


@dataclass(frozen=True)
class _Data:
    ranks: Floats
    size_bytes: Floats
    steps: Floats
    #: Bytes and seconds per step of the algorithm.
    x: Floats
    y: Floats
    #: Relative standard error of y.
    error: Floats
    samples: tuple[tuple[float, ...], ...]
    #: Largest value of the points; NaN if no value is known.
    ranks_per_core: float


def fit_curves(points: Sequence[Point]) -> tuple[list[CostCurve], list[str]]:
    """Fits a curve per operation and backend over all world sizes, on links of one class.

    If all-gather was measured, gamma (the time to add up a byte) is separated from the transfer
    time. This is possible because all-gather adds up nothing.

    Operations with too few sizes are left out. The second list has a message for each such
    operation.
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
            f"{op} on {backend} ({link_words(points[0].link)}) was measured at {sizes} bytes only; "
            "latency and rate need "
            f"{_LEAST_SIZES} sizes or more: "
            + invocation.command("microbench", op, "-b", "1K", "-e", "64M", "-f", "4")
        )
    if op == "barrier":
        return _barrier(backend, data)
    breaks = find_breaks(data.x, data.y)
    lines = lines_on(breaks, data.x, data.y)
    assert lines is not None
    replicates = _bootstrap(breaks, data)
    by_size = _leave_out(data, data.size_bytes, breaks)
    knots = _knots(data) if by_size is not None and by_size.prefers_knots else ()
    residual = _either(knots, _predicted(breaks, lines, data.x), data.x) / data.y - 1
    return CostCurve(
        op=op,
        backend=backend,
        pieces=_pieces(breaks, lines, replicates),
        step_bytes=(float(data.x.min()), float(data.x.max())),
        world_sizes=tuple(int(n) for n in np.unique(data.ranks)),
        ranks_per_core=data.ranks_per_core,
        residual=float(np.sqrt(np.mean(residual**2))),
        worst_residual=float(np.abs(residual).max()),
        held_out_size=None if by_size is None else by_size.held_out,
        held_out_world_size=_held_out_world_size(data, breaks),
        replicates=tuple(tuple(drawn_lines) for drawn_lines in replicates),
        knots=knots,
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
        error=np.array([point.error for point in points]),
        samples=tuple(point.samples_s for point in points),
        ranks_per_core=max(crowded, default=math.nan),
    )


def _barrier(backend: str, data: _Data) -> CostCurve:
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
    """Refits the lines ``REPLICATES`` times to points drawn with replacement.

    The time of a drawn point is redrawn too. A draw is repeated if it has fewer than two sizes in a
    piece.
    """
    random = np.random.default_rng(_SEED)
    drawn: list[list[Line]] = []
    for _ in range(20 * REPLICATES):
        if len(drawn) == REPLICATES:
            break
        rows = random.integers(0, len(data.x), len(data.x))
        y = np.array([_redrawn(data, row, random) for row in rows])
        lines = lines_on(breaks, data.x[rows], y)
        if lines is not None:
            drawn.append(lines)
    return drawn


def _redrawn(data: _Data, row: int, random: np.random.Generator) -> float:
    samples = data.samples[row]
    if len(samples) < 2:
        return float(data.y[row])
    drawn = random.choice(np.asarray(samples), len(samples))
    # ``y`` may be a mean, or the median of more calls than ``samples`` has. So it is multiplied by
    # a ratio of medians.
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


#: Largest number of refits in ``_leave_out``.
_MOST_TURNS: Final = 200


@dataclass(frozen=True)
class _LeftOut:
    """Relative errors at left-out points: of lines, and of interpolation between knots.

    At points without near knots, ``by_knots`` equals ``by_lines``.
    """

    by_lines: Floats
    by_knots: Floats

    @property
    def prefers_knots(self) -> bool:
        lines, knots = np.abs(self.by_lines), np.abs(self.by_knots)
        tried = bool((self.by_lines != self.by_knots).any())
        return tried and bool(_are_knots_better(knots.sum(), lines.sum()))

    @property
    def held_out(self) -> HeldOut:
        """Errors at the left-out points.

        For each point, the errors at all other points decide between lines and knots.
        """
        lines, knots = np.abs(self.by_lines), np.abs(self.by_knots)
        chosen = _are_knots_better(knots.sum() - knots, lines.sum() - lines)
        predicted = np.where(chosen, knots, lines)
        return HeldOut(
            float(predicted.mean()),
            float(predicted.max()),
            len(predicted),
            float(np.median(predicted)),
        )


def _are_knots_better(knots: Floats | np.float64, lines: Floats | np.float64) -> Any:
    """True if ``knots`` is less than 1.1 times ``lines``; both are sums of errors.

    Without the factor 1.1, the choice between equally good fits would differ from point to point.
    If lines are right and all errors are noise, the errors with knots are about 1.2 times the
    errors with lines, so lines are chosen.
    """
    return knots < _ALMOST * lines


def _leave_out(data: _Data, groups: Floats, breaks: Sequence[float]) -> _LeftOut | None:
    """Leaves out each group of points in turn and refits; None if too few points remain.

    If there are more than ``MOST_SIZES`` groups, the given ``breaks`` are kept, because one group
    hardly changes them. If there are more than ``_MOST_TURNS`` groups, several groups that are far
    apart are left out together.
    """
    lines, knots = np.zeros(len(data.x)), np.zeros(len(data.x))
    values, group_row = np.unique(groups, return_inverse=True)
    for turn in range(min(len(values), _MOST_TURNS)):
        out = group_row % _MOST_TURNS == turn
        rest = _rows(data, ~out)
        used, fitted = breaks, None
        if len(values) > MOST_SIZES:
            fitted = lines_on(used, rest.x, rest.y)
        if fitted is None:  # not fitted above, or too few points of a piece remain
            used = find_breaks(rest.x, rest.y)
            fitted = lines_on(used, rest.x, rest.y)
        if fitted is None:
            return None
        predicted = _predicted(used, fitted, data.x[out])
        lines[out] = predicted / data.y[out] - 1
        knots[out] = _either(_knots(rest), predicted, data.x[out]) / data.y[out] - 1
    return _LeftOut(lines, knots)


def _held_out_world_size(data: _Data, breaks: Sequence[float]) -> HeldOut | None:
    several = len(np.unique(data.ranks)) > 1
    left_out = _leave_out(data, data.ranks, breaks) if several else None
    return None if left_out is None else left_out.held_out


def _rows(data: _Data, chosen: npt.NDArray[np.bool_]) -> _Data:
    columns = {
        name: getattr(data, name)[chosen]
        for name in ("ranks", "size_bytes", "steps", "x", "y", "error")
    }
    samples = tuple(
        sample for sample, is_chosen in zip(data.samples, chosen, strict=True) if is_chosen
    )
    return dataclasses.replace(data, samples=samples, **columns)


def _knots(data: _Data) -> tuple[Knot, ...]:
    """Returns knots through the points; empty if the points have several world sizes.

    Points of several world sizes do not lie exactly on one curve.
    """
    if len(np.unique(data.ranks)) > 1:
        return ()
    return knots_through(data.x, data.y, data.error)


def _either(knots: Sequence[Knot], lines: Floats, x: Floats) -> Floats:
    found = np.array([between(knots, value) for value in x.tolist()])
    return np.where(np.isnan(found), lines, found)


def _with_gamma(curve: CostCurve, plain: CostCurve | None) -> CostCurve:
    """Returns ``curve`` with gamma, the time to add up a byte, if gamma can be computed.

    ``plain`` is the curve of all-gather. The betas of both curves' last pieces differ by gamma *
    reduced / sent.
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
