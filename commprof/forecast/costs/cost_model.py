"""Cost of a collective, computed from the time of one step of its algorithm.

    time(op, size, ranks) = steps * t(x),   x = sent * size / steps
    t(x) = alpha + beta * x                 on each piece of x

A step is one message of the algorithm, and x is the size of the message in bytes. ``algorithms.py``
defines ``steps``, ``sent`` and ``reduced``. One curve t(x) holds for all numbers of ranks. alpha is
the latency of a step in seconds, and beta the seconds per byte of a step. In an operation that adds
up values, beta = wire + gamma * reduced / sent. wire is the seconds to send a byte, and gamma the
seconds to add up a byte (Hockney's model with Thakur's reduction term). The range of x is divided
into pieces, because the protocol may change with x.

A curve may also have knots. A knot is a pair of x and t(x). Between two knots whose x differ by at
most the factor ``DENSE``, t(x) is interpolated. Elsewhere, the line of the piece is used.

NCCL changes protocol, algorithm and number of channels at unknown sizes, so a few lines fit NCCL's
times poorly. Interpolation between dense knots is more accurate. If latency is a considerable part
of t, linear interpolation of t is too low, and linear interpolation of log t over log x is too
high. So the geometric mean of the two is used. A knot with an uncertain measured time is moved
towards the time that is interpolated from the neighbouring knots.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.forecast.costs.algorithms import Work, canonical, work
from commprof.stats.intervals import robust_deviation

Floats = npt.NDArray[np.float64]
#: A pair: bytes per step and seconds per step.
Knot = tuple[float, float]

#: Times are interpolated only between two knots whose sizes differ by at most this factor. The
#: value allows for sizes that double, with one size missing.
DENSE: Final = 5.0
#: ``_guesses`` interpolates at a knot only if its two neighbours differ by at most this factor.
_DENSE_FOR_GUESSES: Final = 10.0


def between(knots: Sequence[Knot], x: float, dense: float = DENSE) -> float:
    """Interpolates the time at ``x`` between the two neighbouring knots.

    Returns NaN if ``x`` is outside the range of the knots, or if the larger neighbour is more than
    ``dense`` times the smaller neighbour.
    """
    at = bisect.bisect_right(knots, (x, math.inf))
    if at and knots[at - 1][0] == x:
        return knots[at - 1][1]
    if not 0 < at < len(knots):
        return math.nan
    (low, before), (high, after) = knots[at - 1], knots[at]
    if not 0 < high <= dense * low:
        return math.nan
    straight = before + (after - before) * (x - low) / (high - low)
    power = before * (after / before) ** (math.log(x / low) / math.log(high / low))
    return math.sqrt(straight * power)


def knots_through(x: Floats, y: Floats, error: Floats) -> tuple[Knot, ...]:
    """Makes one knot for each value of ``x``.

    The time of a knot is a weighted geometric mean of two times: the measured time, and the time
    interpolated from the neighbouring knots. The more uncertain the measured time is, the smaller
    is its weight.

    Args:
        x: bytes per step of the algorithm; several points may have the same value.
        y: seconds per step.
        error: relative standard error of each ``y``.
    """
    values, place = np.unique(x, return_inverse=True)
    count = np.bincount(place)
    time = np.bincount(place, weights=np.log(y)) / count
    variance = np.bincount(place, weights=error**2) / count**2
    off = np.log(_guesses(values, np.exp(time))) - time
    known = np.isfinite(off)
    if not known.any():
        return tuple(zip(values.tolist(), np.exp(time).tolist(), strict=True))
    variance_of_guess = robust_deviation(off[known], about=0.0) ** 2
    share = variance / np.maximum(variance + variance_of_guess, 1e-300)
    drawn = np.exp(time + np.where(known, share * np.where(known, off, 0.0), 0.0))
    return tuple(zip(values.tolist(), drawn.tolist(), strict=True))


def _guesses(x: Floats, y: Floats) -> Floats:
    """Interpolates the time at each x from its two neighbours, as :func:`between` does.

    NaN at the first and last x, and where the neighbours are too far apart.
    """
    guesses = np.full(len(x), np.nan)
    near = np.flatnonzero((x[2:] > 0) & (x[2:] <= _DENSE_FOR_GUESSES * x[:-2])) + 1
    low, high, before, after = x[near - 1], x[near + 1], y[near - 1], y[near + 1]
    straight = before + (after - before) * (x[near] - low) / (high - low)
    power = before * (after / before) ** (np.log(x[near] / low) / np.log(high / low))
    guesses[near] = np.sqrt(straight * power)
    return guesses


#: Link classes: within a host, and between hosts.
SAME_HOST, OTHER_HOST = "same_host", "other_host"
LINKS = (SAME_HOST, OTHER_HOST)


def link_words(link: str) -> str:
    """Returns a link class as words for a message, such as "other host"."""
    return link.replace("_", " ")


@dataclass(frozen=True)
class Piece:
    """A range of sizes in which a step takes alpha + beta * (bytes of the step)."""

    #: Lower end of the range in bytes per step. The range ends where the next piece begins.
    low_bytes: float
    alpha_s: float
    beta_s_per_byte: float
    #: 95 % bootstrap intervals.
    alpha_interval_s: tuple[float, float] = (math.nan, math.nan)
    beta_interval_s_per_byte: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True)
class HeldOut:
    """Relative errors at points that were left out of the fit."""

    mean: float
    worst: float
    points: int
    #: NaN if an older version wrote the profile.
    median: float = math.nan


@dataclass(frozen=True)
class CostCurve:
    """The fitted cost of one operation on one link class."""

    op: str
    backend: str
    pieces: tuple[Piece, ...]
    #: Smallest and largest measured size in bytes per step.
    step_bytes: tuple[float, float]
    world_sizes: tuple[int, ...]
    #: Ranks per usable core of a host during the measurement; NaN if unknown.
    ranks_per_core: float = math.nan
    #: Root mean square of the relative residuals. If ``source`` is "run", it is the mean absolute
    #: error of the bucket ends in a replay, divided by the step time.
    residual: float = math.nan
    #: Largest relative residual; NaN if ``source`` is "run".
    worst_residual: float = math.nan
    #: Errors if each size in turn is left out of the fit; None if there are too few sizes.
    held_out_size: HeldOut | None = None
    #: Errors if each world size in turn is left out of the fit; None if there are too few.
    held_out_world_size: HeldOut | None = None
    #: Seconds to add up a byte; None if unknown, or if the operation adds up nothing.
    gamma_s_per_byte: float | None = None
    #: 95 % bootstrap interval.
    gamma_interval_s_per_byte: tuple[float, float] = (math.nan, math.nan)
    #: Bootstrap replicates. Each replicate has a pair (alpha, beta) for each piece.
    replicates: tuple[tuple[tuple[float, float], ...], ...] = ()
    #: Origin of the points: "run" for bucket ends of recorded DDP steps, "calls" for single calls
    #: of recorded sharded steps, "microbench" for all others: benchmarks, NCCL Inspector, and calls
    #: of recorded jobs without steps.
    source: str = "microbench"
    #: In ascending order of bytes; empty if lines fit better, or with several world sizes.
    knots: tuple[Knot, ...] = ()

    @property
    def is_from_steps(self) -> bool:
        """True if the curve was fitted to a recorded run's steps."""
        return self.source in ("run", "calls")

    def step_s(self, step_bytes: float) -> float:
        """Returns the time of one step of the algorithm that sends ``step_bytes``, in seconds."""
        time_s = between(self.knots, step_bytes)
        return self._line_s(step_bytes) if math.isnan(time_s) else time_s

    def time_s(self, size_bytes: float, ranks: int, op: str | None = None) -> float:
        """Returns the time of the operation on an idle link, in seconds.

        If ``op`` is given, the number of steps is that of the operation ``op``. The time per step
        always comes from this curve.
        """
        done = self._work(ranks, op)
        return done.steps * self.step_s(done.step_bytes(size_bytes)) if done.steps else 0.0

    def transfer_s(self, size_bytes: float, ranks: int, op: str | None = None) -> float:
        """Returns the part of ``time_s`` during which the link is busy, in seconds.

        During the remaining time, other collectives may use the link. ``op`` is as in ``time_s``.
        """
        done = self._work(ranks, op)
        per_byte = self.pieces[-1].beta_s_per_byte
        return min(self.time_s(size_bytes, ranks, op), done.sent * size_bytes * per_byte)

    def outside(self, sizes_bytes: Sequence[float], ranks: int, op: str | None = None) -> list[str]:
        """Describes the sizes and ranks that are outside the measured range.

        ``op`` is as in ``time_s``.
        """
        reasons = []
        if not min(self.world_sizes) <= ranks <= max(self.world_sizes):
            reasons.append(f"{ranks} ranks (measured: {', '.join(map(str, self.world_sizes))})")
        done = self._work(ranks, op)
        steps = [done.step_bytes(size) for size in sizes_bytes] if done.steps else []
        low, high = self.step_bytes
        if steps and (min(steps) < 0.999 * low or max(steps) > 1.001 * high):
            reasons.append(
                f"messages of {min(steps):.3g} to {max(steps):.3g} bytes (measured: {low:.3g} to "
                f"{high:.3g})"
            )
        return reasons

    def replicate(self, number: int) -> CostCurve:
        """Returns the curve with the parameters of one bootstrap replicate.

        The index of the replicate is ``number`` modulo the number of replicates. Returns this curve
        unchanged if it has no replicates.
        """
        if not self.replicates:
            return self
        drawn = self.replicates[number % len(self.replicates)]
        return self._with([(alpha, beta) for alpha, beta in drawn])

    def changed(self, alpha: Callable[[float], float], beta: Callable[[float], float]) -> CostCurve:
        """Returns the curve of another link.

        ``alpha`` converts this curve's alphas, and ``beta`` its betas. In a message of alpha / beta
        bytes, latency and transfer take the same time. The lower ends of all pieces are multiplied
        by the factor by which this size changes in the first piece. The ends stay if an alpha or
        beta of the first piece is 0, before or after the conversion.

        In a later piece, an alpha of 0 means that transfers are long enough to hide the latency. If
        the ends change, such an alpha stays 0.
        """
        first = self.pieces[0]
        before = first.alpha_s, first.beta_s_per_byte
        after = alpha(before[0]), beta(before[1])
        moves = min(*before, *after) > 0
        scale = (after[0] / before[0]) / (after[1] / before[1]) if moves else 1.0

        def lines(old: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
            return tuple(
                (0.0 if moves and number and not alpha_s else alpha(alpha_s), beta(beta_s))
                for number, (alpha_s, beta_s) in enumerate(old)
            )

        new = lines((piece.alpha_s, piece.beta_s_per_byte) for piece in self.pieces)
        pieces = tuple(
            Piece(piece.low_bytes * scale, *line)
            for piece, line in zip(self.pieces, new, strict=True)
        )
        drawn = tuple(lines(replicate) for replicate in self.replicates)
        return dataclasses.replace(self._on(pieces, scale), replicates=drawn)

    def _work(self, ranks: int, op: str | None) -> Work:
        return work(canonical(op or self.op), ranks, self.backend)

    def _with(self, values: list[tuple[float, float]]) -> CostCurve:
        pieces = tuple(
            dataclasses.replace(piece, alpha_s=alpha, beta_s_per_byte=beta)
            for piece, (alpha, beta) in zip(self.pieces, values, strict=True)
        )
        return self._on(pieces)

    def _on(self, pieces: tuple[Piece, ...], scale: float = 1.0) -> CostCurve:
        """Returns the curve with new ``pieces``, and with its knots moved along.

        A knot's bytes are multiplied by ``scale``. Its time is multiplied by the ratio of the new
        line's time to the old line's time.
        """
        lines = dataclasses.replace(self, pieces=pieces, knots=())
        knots = tuple(
            (x * scale, y * lines._line_s(x * scale) / self._line_s(x)) for x, y in self.knots
        )
        return dataclasses.replace(lines, knots=knots)

    def _line_s(self, step_bytes: float) -> float:
        piece = self._piece(step_bytes)
        return piece.alpha_s + piece.beta_s_per_byte * step_bytes

    def _piece(self, step_bytes: float) -> Piece:
        found = self.pieces[0]
        for piece in self.pieces:
            if step_bytes >= piece.low_bytes:
                found = piece
        return found
