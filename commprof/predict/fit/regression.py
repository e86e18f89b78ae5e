"""Lines through measured times: relative errors, outliers held down, pieces where they pay.

A line is fitted to ``(a + b x - y) / y`` by Huber's M-estimator (iteratively reweighted least
squares, k = 1.345 robust standard deviations), with a and b not below 0. How many pieces there
are is decided by Schwarz's criterion (BIC).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from commprof.stats.robust import robust_deviation

Floats = npt.NDArray[np.float64]
Line = tuple[float, float]

_HUBER = 1.345
_ROUNDS = 12
#: A piece needs so many different x.
LEAST_PER_PIECE = 3
MOST_PIECES = 3
#: Residuals below this are no reason for another piece.
_FINEST = 1e-3


def robust_line(x: Floats, y: Floats) -> Line:
    """The line ``a + b x`` through ``y > 0``, neither of them negative."""
    weight = np.ones(len(x))
    line = (0.0, 0.0)
    for _ in range(_ROUNDS):
        before, line = line, _weighted_line(x, y, weight)
        if np.allclose(before, line, rtol=1e-4, atol=0):
            break
        residual = np.abs(relative_residuals(line, x, y))
        scale = max(robust_deviation(residual, about=0.0), 1e-12)
        weight = np.minimum(1.0, _HUBER * scale / np.maximum(residual, 1e-300))
    return line


def relative_residuals(line: Line, x: Floats, y: Floats) -> Floats:
    """Fitted over measured, less 1."""
    result: Floats = (line[0] + line[1] * x) / y - 1
    return result


def find_breaks(x: Floats, y: Floats) -> tuple[float, ...]:
    """Where pieces begin: 0 first, then midpoints (geometric) between neighbouring x."""
    values = np.unique(x)
    most = max(1, min(MOST_PIECES, len(values) // LEAST_PER_PIECE))
    costs = _segment_costs(x, y, values) if most > 1 else {}
    best: tuple[float, ...] = (0.0,)
    best_score = np.inf
    for pieces in range(1, most + 1):
        for cuts in itertools.combinations(range(1, len(values)), pieces - 1):
            bounds = (0, *cuts, len(values))
            if min(np.diff(bounds)) < LEAST_PER_PIECE:
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


def lines_on(breaks: Sequence[float], x: Floats, y: Floats) -> list[Line] | None:
    """A line per piece; None where a piece has fewer than two different x."""
    piece = np.searchsorted(np.asarray(breaks), x, side="right") - 1
    found = []
    for number in range(len(breaks)):
        mine = piece == number
        if len(np.unique(x[mine])) < 2:
            return None
        found.append(robust_line(x[mine], y[mine]))
    return found


def _weighted_line(x: Floats, y: Floats, weight: Floats) -> Line:
    p, q = 1 / y, x / y
    pp, pq, qq = (float((weight * u * v).sum()) for u, v in ((p, p), (p, q), (q, q)))
    sp, sq = float((weight * p).sum()), float((weight * q).sum())
    determinant = pp * qq - pq * pq
    if determinant > 1e-12 * pp * qq:
        a, b = (sp * qq - sq * pq) / determinant, (sq * pp - sp * pq) / determinant
        if a >= 0 and b >= 0:
            return a, b
    # On the edge: the better of the two lines with one parameter.
    only_b, only_a = (0.0, sq / qq if qq > 0 else 0.0), (sp / pp, 0.0)
    errors = [
        float((weight * relative_residuals(line, x, y) ** 2).sum()) for line in (only_b, only_a)
    ]
    return only_b if errors[0] <= errors[1] else only_a


def _segment_costs(x: Floats, y: Floats, values: Floats) -> dict[tuple[int, int], float]:
    """Sum of absolute relative residuals of a line on ``values[i:j]``, for all that may be."""
    costs = {}
    for i in range(len(values)):
        for j in range(i + LEAST_PER_PIECE, len(values) + 1):
            mine = (x >= values[i]) & (x <= values[j - 1])
            line = robust_line(x[mine], y[mine])
            costs[i, j] = float(np.abs(relative_residuals(line, x[mine], y[mine])).sum())
    return costs
