"""Checks that the ranks end with equal weights, and that loss curves agree and fall.

The trend of a loss is judged by the rank correlation of loss and step (Mann, "Nonparametric Tests
against Trend", Econometrica 13 (1945) 245-259), with the normal approximation and its correction
for ties and continuity (Kendall, Rank Correlation Methods, 1975, chapter 4).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.stats.rank_tests import two_sided
from commprof.trace.run.run_directory import WorldRun

#: Smallest number of losses from which a trend is computed.
LEAST_STEPS = 10
_LEVEL = 0.01
#: The test compares all pairs of losses. If there are more losses than this, neighbouring steps are
#: averaged.
_MOST_POINTS = 500


@dataclass(frozen=True)
class LossTrend:
    """Trend of the loss of one training run, and the steps whose loss is not finite."""

    steps: int
    #: Number of the first step whose loss is not finite; None if all losses are finite.
    not_finite: int | None
    not_finite_steps: int
    #: Number of the first step after the last finite loss; None if the last loss is finite.
    diverged_from: int | None
    #: Mean losses of the first and of the last tenth of the steps; NaN if not finite.
    first: float
    last: float
    #: Kendall's tau of loss against step: -1 if every step lowers the loss, 1 if every step raises
    #: it. NaN if there are fewer than LEAST_STEPS losses, or if a loss is not finite.
    tau: float
    #: Two-sided p-value of tau; NaN if tau is NaN.
    p_value: float

    @property
    def falls(self) -> bool:
        """True if the loss falls significantly."""
        return self.p_value < _LEVEL and self.tau < 0

    @property
    def rises(self) -> bool:
        """True if the loss rises significantly."""
        return self.p_value < _LEVEL and self.tau > 0


def loss_trend(losses: Sequence[float]) -> LossTrend | None:
    """Computes the trend of losses, one per step; None if there are no losses."""
    if not len(losses):
        return None
    values = np.array(losses, dtype=np.float64)
    broken = np.flatnonzero(~np.isfinite(values))
    last_finite = int(np.flatnonzero(np.isfinite(values)).max(initial=-1))
    tenth = max(1, len(values) // 10)
    tau, p_value = math.nan, math.nan
    if len(values) >= LEAST_STEPS and not len(broken):
        tau, p_value = _mann_kendall(_thinned(values))
    with np.errstate(all="ignore"):
        first, last = float(values[:tenth].mean()), float(values[-tenth:].mean())
    return LossTrend(
        steps=len(values),
        not_finite=int(broken[0]) if len(broken) else None,
        not_finite_steps=len(broken),
        diverged_from=last_finite + 1 if last_finite + 1 < len(values) else None,
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


#: Relative difference up to which two losses agree, for each precision.
TOLERANCES = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}


@dataclass(frozen=True)
class LossAgreement:
    """Comparison of the loss curves of several world sizes.

    The curves should differ only by rounding.
    """

    world_sizes: tuple[int, ...]
    #: Number of compared steps. The comparison ends where the number of samples first differs
    #: between world sizes.
    steps: int
    #: Number of samples of all ranks in a step; None if the number varies.
    samples: int | None
    #: Largest difference from the smallest world size's loss, relative to that loss.
    worst: float
    #: World size and step with the largest difference; steps are counted from 0.
    worst_world_size: int
    worst_step: int
    tolerance: float

    @property
    def agrees(self) -> bool:
        """True if no step differs by more than the tolerance."""
        return self.worst <= self.tolerance


def global_losses(run: WorldRun) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Returns each step's mean loss over the samples of all ranks, and the number of samples.

    Both tuples are empty if a rank left no losses.
    """
    results = [run.results.get(rank) for rank in range(run.world_size)]
    if not all(result is not None and "losses" in result for result in results):
        return (), ()
    known = [result for result in results if result is not None]
    losses, samples = [], []
    curves = [zip(r["losses"], r["step_samples"], strict=False) for r in known]
    for step in zip(*curves, strict=False):
        count = sum(of_rank for _, of_rank in step)
        losses.append(float(sum(loss * of_rank for loss, of_rank in step)) / count)
        samples.append(int(count))
    return tuple(losses), tuple(samples)


def differing_weights(run: WorldRun) -> tuple[int, ...]:
    """Returns the ranks whose weights differ from the weights of most ranks."""
    digests = {rank: result.get("weights_crc32") for rank, result in sorted(run.results.items())}
    known = {rank: digest for rank, digest in digests.items() if digest is not None}
    if len(set(known.values())) < 2:
        return ()
    (usual, _), *_ = Counter(known.values()).most_common()
    return tuple(rank for rank, digest in known.items() if digest != usual)
