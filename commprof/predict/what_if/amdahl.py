"""Amdahl's law through measured throughput.

    speed-up(n) = 1 / ((1 - p) + p / n)        over one rank (Amdahl, AFIPS 1967)

p, the share of the work that all ranks divide among them, is what makes ``1 / speed-up`` a line
in ``1 / n`` through 1 at one rank; fitted by least squares on that line. Under weak scaling the
same is said of throughput: of samples per second, the time per sample is the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from commprof import invocation
from commprof.errors import CommprofError


@dataclass(frozen=True)
class AmdahlFit:
    """One fitted parameter, and what it leaves unexplained."""

    #: Share of the work that is divided among ranks, from 0 to 1.
    parallel: float
    #: By world size: measured and fitted speed-up over the smallest one.
    points: tuple[tuple[int, float, float], ...]

    @property
    def residuals(self) -> tuple[float, ...]:
        """Fitted over measured, less 1."""
        return tuple(fitted / measured - 1 for _, measured, fitted in self.points)

    @property
    def limit(self) -> float:
        """Speed-up that no number of ranks exceeds."""
        return float("inf") if self.parallel >= 1 else 1 / (1 - self.parallel)

    def speedup(self, ranks: int) -> float:
        """Over one rank."""
        return 1 / ((1 - self.parallel) + self.parallel / ranks)


def fit_amdahl(samples_per_s: Mapping[int, float]) -> AmdahlFit:
    """The fit.

    Args:
        samples_per_s: throughput by world size, 1 among them.

    Raises:
        CommprofError: fewer than three world sizes, or not one rank alone: one parameter through
            one point would fit whatever was measured.
    """
    if 1 not in samples_per_s or len(samples_per_s) < 3:
        sizes = ", ".join(map(str, sorted(samples_per_s))) or "none"
        raise CommprofError(
            f"an Amdahl fit with residuals needs 1 rank and two more world sizes (recorded: "
            f"{sizes}); {invocation.command('run', '--world-sizes', '1,2,4')}"
        )
    base = samples_per_s[1]
    ranks = np.array(sorted(n for n in samples_per_s if n > 1), dtype=np.float64)
    measured = np.array([samples_per_s[int(n)] / base for n in ranks])
    # 1 / s - 1 = p (1 / n - 1)
    x, y = 1 / ranks - 1, 1 / measured - 1
    parallel = float(np.clip((x * y).sum() / (x * x).sum(), 0.0, 1.0))
    fitted = 1 / ((1 - parallel) + parallel / ranks)
    points = zip(ranks.astype(int).tolist(), measured.tolist(), fitted.tolist(), strict=True)
    return AmdahlFit(parallel, tuple(points))
