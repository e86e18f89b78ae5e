"""Does a training's loss fall, rise, or cease to be a number?

By the rank correlation of loss and step (Mann, "Nonparametric Tests against Trend", Econometrica 13
(1945) 245-259), with the normal approximation and its correction for ties and continuity (Kendall,
Rank Correlation Methods, 1975, chapter 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.stats.rank_tests import two_sided

#: Fewer losses than this say nothing of a trend.
LEAST_STEPS = 10
#: A trend that chance would show more often than this is none.
_LEVEL = 0.01
#: The test compares all pairs; of longer trainings it takes means of neighbouring steps.
_MOST_POINTS = 500


@dataclass(frozen=True)
class LossTrend:
    """Of one training."""

    steps: int
    #: Number of the first step whose loss is not finite; None if all are.
    not_finite: int | None
    #: Means of the first and the last tenth of the steps; NaN where they are not finite.
    first: float
    last: float
    #: Kendall's tau of loss against step: -1 if every step lowers it, 1 if every step raises it;
    #: NaN below LEAST_STEPS, or where losses are not finite.
    tau: float
    #: Two-sided; NaN where tau is.
    p_value: float

    @property
    def falls(self) -> bool:
        """More surely than by chance."""
        return self.p_value < _LEVEL and self.tau < 0

    @property
    def rises(self) -> bool:
        """More surely than by chance."""
        return self.p_value < _LEVEL and self.tau > 0


def loss_trend(losses: Sequence[float]) -> LossTrend | None:
    """The trend of one loss per step; None without losses."""
    if not len(losses):
        return None
    values = np.array(losses, dtype=np.float64)
    broken = np.flatnonzero(~np.isfinite(values))
    tenth = max(1, len(values) // 10)
    tau, p_value = math.nan, math.nan
    if len(values) >= LEAST_STEPS and not len(broken):
        tau, p_value = _mann_kendall(_thinned(values))
    with np.errstate(all="ignore"):
        first, last = float(values[:tenth].mean()), float(values[-tenth:].mean())
    return LossTrend(
        steps=len(values),
        not_finite=int(broken[0]) if len(broken) else None,
        first=first if math.isfinite(first) else math.nan,
        last=last if math.isfinite(last) else math.nan,
        tau=tau,
        p_value=p_value,
    )


def _thinned(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    return [float(part.mean()) for part in np.array_split(values, min(len(values), _MOST_POINTS))]


def _mann_kendall(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    array = np.array(values)
    score = float(np.sign(array[None, :] - array[:, None])[np.triu_indices(n, 1)].sum())
    _, ties = np.unique(array, return_counts=True)
    tied = float((ties * (ties - 1) * (2 * ties + 5)).sum())
    variance = (n * (n - 1) * (2 * n + 5) - tied) / 18
    if variance <= 0:
        return 0.0, 1.0  # all losses are equal
    deviate = max(abs(score) - 1, 0.0) / math.sqrt(variance)
    return score / (n * (n - 1) / 2), two_sided(deviate)
