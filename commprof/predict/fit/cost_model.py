"""What a collective costs: time per step of its algorithm, as a function of the bytes in a step.

    time(op, size, ranks) = steps * t(x),   x = sent * size / steps
    t(x) = alpha + beta * x                 on each piece of x

``steps`` and ``sent`` are the algorithm's (``algorithms.py``), so one curve holds for all numbers
of ranks. alpha is the latency of a step, beta seconds per byte of a step, sums included: of an
operation that adds up, beta = wire + gamma * reduced / sent with gamma seconds per byte added
(Hockney's model with Thakur's reduction term). Pieces begin where the protocol changes. A curve
may have knots: between those, t(x) is what the two beside x say (``between_sizes.py``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commprof.predict.fit.between_sizes import Knot, between
from commprof.predict.replay.algorithms import canonical, work

#: Link classes.
SAME_HOST, OTHER_HOST = "same_host", "other_host"
LINKS = (SAME_HOST, OTHER_HOST)


@dataclass(frozen=True)
class Piece:
    """A stretch of step sizes on which time is linear."""

    #: From ``low_bytes`` on, up to the next piece's; bytes per step.
    low_bytes: float
    alpha_s: float
    beta_s_per_byte: float
    #: 95 % bootstrap intervals.
    alpha_interval_s: tuple[float, float] = (math.nan, math.nan)
    beta_interval_s_per_byte: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True)
class HeldOut:
    """Relative error on points that the fit was not given."""

    mean: float
    worst: float
    points: int
    #: NaN in profiles of versions that did not have it.
    median: float = math.nan


@dataclass(frozen=True)
class CostCurve:
    """The fitted cost of one operation on one link class."""

    op: str
    backend: str
    pieces: tuple[Piece, ...]
    #: Range of the measurements: bytes per step, and ranks.
    step_bytes: tuple[float, float]
    world_sizes: tuple[int, ...]
    #: Ranks of the measurement per usable core of their host; NaN where not known.
    ranks_per_core: float = math.nan
    #: Root mean square of the relative residuals, and the largest.
    residual: float = math.nan
    worst_residual: float = math.nan
    #: Leaving each size out in turn; None with too few sizes.
    held_out_size: HeldOut | None = None
    #: Leaving each world size out in turn; None with one world size.
    held_out_world_size: HeldOut | None = None
    #: Seconds per byte added up; None where no operation without sums was measured beside this.
    gamma_s_per_byte: float | None = None
    #: 95 % bootstrap interval.
    gamma_interval_s_per_byte: tuple[float, float] = (math.nan, math.nan)
    #: Bootstrap replicates: per replicate the (alpha, beta) of each piece.
    replicates: tuple[tuple[tuple[float, float], ...], ...] = ()
    #: What the points were: measured alone ("microbench"), or inside training steps: DDP's ends of
    #: buckets ("run"), or single calls of sharded steps ("calls").
    source: str = "microbench"
    #: Bytes per step in ascending order, with the time there; empty where lines miss less.
    knots: tuple[Knot, ...] = ()

    @property
    def is_from_steps(self) -> bool:
        """Whether a recorded run's steps said what it costs."""
        return self.source in ("run", "calls")

    def step_s(self, step_bytes: float) -> float:
        """Time of one step."""
        time_s = between(self.knots, step_bytes)
        return self._line_s(step_bytes) if math.isnan(time_s) else time_s

    def time_s(self, size_bytes: float, ranks: int, op: str | None = None) -> float:
        """Time of a collective on an idle link; ``op`` another than the fitted one, on its link."""
        done = work(canonical(op or self.op), ranks, self.backend)
        return done.steps * self.step_s(done.step_bytes(size_bytes)) if done.steps else 0.0

    def wire_s(self, size_bytes: float, ranks: int) -> float:
        """The part of ``time_s`` in which the link is taken; others may use it in the rest."""
        done = work(self.op, ranks, self.backend)
        per_byte = self.pieces[-1].beta_s_per_byte
        return min(self.time_s(size_bytes, ranks), done.sent * size_bytes * per_byte)

    def outside(self, sizes_bytes: Sequence[float], ranks: int) -> list[str]:
        """Why these sizes at so many ranks are outside the measured range; empty inside."""
        found = []
        if not min(self.world_sizes) <= ranks <= max(self.world_sizes):
            found.append(f"{ranks} ranks (measured: {', '.join(map(str, self.world_sizes))})")
        done = work(self.op, ranks, self.backend)
        steps = [done.step_bytes(size) for size in sizes_bytes] if done.steps else []
        low, high = self.step_bytes
        if steps and (min(steps) < 0.999 * low or max(steps) > 1.001 * high):
            found.append(
                f"ring steps of {min(steps):.3g} to {max(steps):.3g} bytes (measured: {low:.3g} to "
                f"{high:.3g})"
            )
        return found

    def replicate(self, number: int) -> CostCurve:
        """The curve with the parameters of one bootstrap replicate, counted round."""
        if not self.replicates:
            return self
        drawn = self.replicates[number % len(self.replicates)]
        return self._with([(alpha, beta) for alpha, beta in drawn])

    def changed(self, alpha: Callable[[float], float], beta: Callable[[float], float]) -> CostCurve:
        """On another link: what becomes of each alpha above 0, and of each beta.

        Where latency and rate balance, which is where a piece begins, moves with alpha over beta.
        """

        def both(alpha_s: float, beta_s: float) -> tuple[float, float]:
            return alpha(alpha_s) if alpha_s > 0 else 0.0, beta(beta_s)

        first = self.pieces[0]
        before = first.alpha_s, first.beta_s_per_byte
        after = both(*before)
        known = min(*before, *after) > 0
        scale = (after[0] / before[0]) / (after[1] / before[1]) if known else 1.0
        pieces = tuple(
            Piece(piece.low_bytes * scale, *both(piece.alpha_s, piece.beta_s_per_byte))
            for piece in self.pieces
        )
        drawn = tuple(tuple(both(*values) for values in each) for each in self.replicates)
        return dataclasses.replace(self._on(pieces, scale), replicates=drawn)

    def _with(self, values: list[tuple[float, float]]) -> CostCurve:
        pieces = tuple(
            dataclasses.replace(piece, alpha_s=alpha, beta_s_per_byte=beta)
            for piece, (alpha, beta) in zip(self.pieces, values, strict=True)
        )
        return self._on(pieces)

    def _on(self, pieces: tuple[Piece, ...], scale: float = 1.0) -> CostCurve:
        """With other lines; knots stay as far from their lines, at so many times their sizes."""
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
