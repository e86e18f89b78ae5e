"""Fits robust lines through measured times, in one piece or several.

Huber's M-estimator (iteratively reweighted least squares, k = 1.345 robust standard deviations)
fits each line ``a + b x``. The fit makes the relative residuals ``(a + b x - y) / y`` small. a and
b are never below 0. Schwarz's criterion (BIC) decides the number of pieces.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from commprof.stats.intervals import robust_deviation

Floats = npt.NDArray[np.float64]
Chosen = npt.NDArray[np.bool_]
Line = tuple[float, float]

_HUBER = 1.345
_ROUNDS = 12
#: Least number of different x in a piece.
LEAST_PER_PIECE = 3
MOST_PIECES = 3
#: ``find_breaks`` tries at most this number of places for a break, because its time grows with a
#: high power of the number. If there are more sizes, ``fit.py`` keeps the breaks when it leaves out
#: a size.
MOST_SIZES = 70
#: A mean relative residual below this value does not justify another piece.
_FINEST = 1e-3


def robust_line(x: Floats, y: Floats) -> Line:
    """Fits a line ``a + b x`` to values ``y > 0``; a and b are never below 0."""
    a, b = robust_lines(x, y, np.ones((1, len(x)), dtype=bool))[0].tolist()
    return a, b


def robust_lines(x: Floats, y: Floats, chosen: Chosen) -> Floats:
    """Fits one line ``a + b x`` per row of the mask ``chosen`` ([row, point]).

    Returns:
        Array ``[row, 2]`` of a and b.
    """
    weight = chosen.astype(np.float64)
    lines = np.zeros((len(chosen), 2))
    moving = np.ones(len(chosen), dtype=bool)
    for _ in range(_ROUNDS):
        before = lines[moving]
        after = lines[moving] = _weighted_lines(x, y, weight[moving])
        moving[moving] = ~np.isclose(before, after, rtol=1e-4, atol=0).all(axis=1)
        if not moving.any():
            break
        off = np.abs(_residuals(lines[moving], x, y))
        scale = np.maximum(_deviations(off, chosen[moving]), 1e-12)[:, None]
        weight[moving] = chosen[moving] * np.minimum(1.0, _HUBER * scale / np.maximum(off, 1e-300))
    return lines


def _deviations(off: Floats, chosen: Chosen) -> Floats:
    ordered = np.sort(np.where(chosen, off, np.inf), axis=1)
    count, row = chosen.sum(axis=1), np.arange(len(chosen))
    median = (ordered[row, (count - 1) // 2] + ordered[row, count // 2]) / 2
    return robust_deviation([1.0], about=0.0) * median


def relative_residuals(line: Line, x: Floats, y: Floats) -> Floats:
    """Returns the fitted times divided by the measured times, minus 1."""
    result: Floats = _residuals(np.array([line]), x, y)[0]
    return result


def _residuals(lines: Floats, x: Floats, y: Floats) -> Floats:
    """Returns the relative residuals, as [line, point]."""
    result: Floats = (lines[:, :1] + lines[:, 1:] * x) / y - 1
    return result


def find_breaks(x: Floats, y: Floats) -> tuple[float, ...]:
    """Finds the pieces that fit ``y`` best by BIC, and returns the begin of each piece.

    The first piece begins at 0. Each other piece begins at the geometric mean of two neighbouring
    x. Only ``MOST_SIZES`` places are tried if there are more different x.
    """
    values = np.unique(x)
    most = max(1, min(MOST_PIECES, len(values) // LEAST_PER_PIECE))
    places = _places(len(values))
    costs = _segment_costs(x, y, values, places) if most > 1 else {}
    best: tuple[float, ...] = (0.0,)
    best_score = np.inf
    for pieces in range(1, most + 1):
        for cuts in itertools.combinations(places[1:-1], pieces - 1):
            bounds = (0, *cuts, len(values))
            if min(j - i for i, j in itertools.pairwise(bounds)) < LEAST_PER_PIECE:
                continue
            if pieces == 1:
                error = float(np.abs(relative_residuals(robust_line(x, y), x, y)).sum())
            else:
                error = sum(costs[pair] for pair in itertools.pairwise(bounds))
            mean = max(error / len(x), _FINEST)
            score = 2 * len(x) * np.log(mean) + (5 * pieces - 1) * np.log(len(x))
            if score < best_score:
                begins = [float(np.sqrt(values[c - 1] * values[c])) for c in cuts]
                best, best_score = (0.0, *begins), score
    return best


def _places(count: int) -> list[int]:
    if count <= MOST_SIZES:
        return list(range(count + 1))
    return [round(at * count / MOST_SIZES) for at in range(MOST_SIZES + 1)]


def lines_on(breaks: Sequence[float], x: Floats, y: Floats) -> list[Line] | None:
    """Fits a line to each piece; None if a piece has fewer than two different x."""
    piece = np.searchsorted(np.asarray(breaks), x, side="right") - 1
    lines = []
    for number in range(len(breaks)):
        mine = piece == number
        if len(np.unique(x[mine])) < 2:
            return None
        lines.append(robust_line(x[mine], y[mine]))
    return lines


def _weighted_lines(x: Floats, y: Floats, weight: Floats) -> Floats:
    """Fits ``a + b x`` per row of ``weight`` ([row, point]) by least squares of relative residuals.

    Returns:
        Array ``[row, 2]`` of a and b; neither is negative.
    """
    p, q = 1 / y, x / y
    pp, pq, qq, sp, sq = (weight @ each for each in (p * p, p * q, q * q, p, q))
    determinant = pp * qq - pq * pq
    ok = determinant > 1e-12 * pp * qq
    by = np.where(ok, determinant, 1.0)
    free = np.stack([(sp * qq - sq * pq) / by, (sq * pp - sp * pq) / by], axis=1)
    # If a or b is negative or undetermined, a line with a = 0 or with b = 0 replaces the fit.
    none = np.zeros(len(weight))
    only_b = np.stack([none, np.divide(sq, qq, out=none.copy(), where=qq > 0)], axis=1)
    only_a = np.stack([sp / pp, none], axis=1)
    errors = [(weight * _residuals(line, x, y) ** 2).sum(axis=1) for line in (only_b, only_a)]
    edge = np.where((errors[0] <= errors[1])[:, None], only_b, only_a)
    inside = ok & (free >= 0).all(axis=1)
    result: Floats = np.where(inside[:, None], free, edge)
    return result


def _segment_costs(
    x: Floats, y: Floats, values: Floats, places: Sequence[int]
) -> dict[tuple[int, int], float]:
    """Returns the sum of absolute relative residuals for each possible piece.

    The key (i, j) is the piece with x in ``values[i:j]``. ``values`` are the different x in
    ascending order; i and j are two of ``places``.
    """
    pairs = [(i, j) for i, j in itertools.combinations(places, 2) if j - i >= LEAST_PER_PIECE]
    first, behind = np.array(pairs).T
    chosen = (x >= values[first][:, None]) & (x <= values[behind - 1][:, None])
    off = np.abs(_residuals(robust_lines(x, y, chosen), x, y))
    return dict(zip(pairs, (off * chosen).sum(axis=1).tolist(), strict=True))
