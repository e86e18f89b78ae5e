"""Cost curves from the collectives of sharded steps themselves.

A collective's transfer is the time from when it could begin to its end. Its median over steps and
ranks, per operation, size and number of ranks, is a point; a line through an operation's points is
its curve. With one size of step latency cannot be told from rate: all is taken as rate then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.predict.fit.cost_model import CostCurve, Piece
from commprof.predict.fit.regression import Line, relative_residuals, robust_line
from commprof.predict.replay.algorithms import OPERATIONS, work
from commprof.predict.sharded.costs import ranks_of
from commprof.predict.sharded.steps import ShardedSteps
from commprof.stats.intervals import percentile_interval

Floats = npt.NDArray[np.float64]

_REPLICATES = 20
_SEED = 20240501
#: Sizes of step that are that close are one.
_APART = 1.2


@dataclass(frozen=True)
class _Point:
    #: Bytes per step of the algorithm, and ranks.
    x: float
    ranks: int
    #: Seconds per step: of each recorded step the mean over the ranks.
    y: Floats


def fit_sharded(recorded: Sequence[ShardedSteps]) -> dict[str, CostCurve]:
    """By operation, of runs over links of one class."""
    points: dict[str, list[_Point]] = {}
    for steps in recorded:
        for number, call in enumerate(steps.calls):
            ranks = ranks_of(steps, call)
            if call.op not in OPERATIONS or ranks < 2:
                continue
            done = work(call.op, ranks, steps.backend)
            y = steps.transfer_ns[:, :, number].mean(axis=1) / 1e9 / done.steps
            points.setdefault(call.op, []).append(
                _Point(done.step_bytes(call.size_bytes), ranks, y)
            )
    crowded = max(each.placement.ranks_per_core for each in recorded)
    found = ((op, _curve(op, recorded[0].backend, mine, crowded)) for op, mine in points.items())
    return {op: curve for op, curve in found if curve is not None}


def _curve(
    op: str, backend: str, points: Sequence[_Point], ranks_per_core: float
) -> CostCurve | None:
    x = np.array([each.x for each in points])
    y = np.array([float(np.median(each.y)) for each in points])
    if not (x > 0).all() or not (y > 0).all():
        return None
    line = _line(x, y)
    drawn = list(_drawn(x, points))
    low, high = percentile_interval(drawn)
    residuals = np.abs(relative_residuals(line, x, y))
    piece = Piece(0.0, *line, (float(low[0]), float(high[0])), (float(low[1]), float(high[1])))
    return CostCurve(
        op=op,
        backend=backend,
        pieces=(piece,),
        step_bytes=(float(x.min()), float(x.max())),
        world_sizes=tuple(sorted({each.ranks for each in points})),
        ranks_per_core=ranks_per_core,
        residual=float(np.sqrt((residuals**2).mean())),
        worst_residual=float(residuals.max()),
        replicates=tuple((each,) for each in drawn),
        source="calls",
    )


def _line(x: Floats, y: Floats) -> Line:
    if x.max() < _APART * x.min():
        return 0.0, float(np.median(y / x))
    return robust_line(x, y)


def _drawn(x: Floats, points: Sequence[_Point]) -> Iterable[Line]:
    """Lines through medians of steps drawn anew."""
    random = np.random.default_rng(_SEED)
    for _ in range(_REPLICATES):
        y = [float(np.median(random.choice(each.y, len(each.y)))) for each in points]
        yield _line(x, np.maximum(y, 1e-12))
