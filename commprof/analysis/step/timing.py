"""Number, length and contents of the measured steps of one world size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from commprof.analysis.step.measured import (
    MeasuredSteps,
    backward_passes,
    median_per_step,
    slowest_ns,
)
from commprof.analysis.step.stalls import stalled
from commprof.field_groups import FieldGroup
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.found_steps import DECLARED
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase
from commprof.units import ns_to_ms


@dataclass(frozen=True)
class Repeats:
    """Counts per step: backward passes, optimizer updates, and DDP's exchanges of gradients.

    Each count is the median over the measured steps of one rank; 0 if it was not recorded.
    """

    backward_passes: int = 0
    updates: int = 0
    #: Number of backward passes at whose end DDP waited for its buckets.
    exchanges: int = 0

    @property
    def sentences(self) -> list[str]:
        """Sentences on steps with several updates, or with several backward passes per update."""
        found = []
        if self.updates > 1:
            found.append(
                f"A step has {self.updates} optimizer updates, for example because there are "
                "several optimizers. The optimizer's time includes all updates."
            )
        if self.updates and self.backward_passes > self.updates:
            text = (
                f"A step has {self.backward_passes} backward passes before "
                f"{'its update' if self.updates == 1 else f'{self.updates} updates'}: gradients "
                "are accumulated."
            )
            if 0 < self.exchanges < self.backward_passes:
                text += (
                    f" DDP exchanges them in {self.exchanges} of these {self.backward_passes} "
                    "passes."
                )
            found.append(text)
        return found


def repeats(trace: Trace, measured_steps: Ints) -> Repeats:
    """Counts backward passes, updates and DDP's gradient exchanges in one rank's measured steps."""
    steps, phases = columns.steps(trace), columns.phases(trace)
    updates = phases.begin_ns[phases.key == Phase.OPTIMIZER]
    exchanges = columns.finalizations(trace).span.begin_ns
    return Repeats(
        backward_passes(trace, measured_steps),
        median_per_step(steps, measured_steps, updates),
        median_per_step(steps, measured_steps, exchanges),
    )


@dataclass(frozen=True)
class StepTiming(FieldGroup):
    """Number of the steps of one world size, and length of the measured steps."""

    #: Number of training steps that all ranks completed, without ``merged_steps`` and steps that a
    #: very long run leaves out. The first ``warmup_steps`` are left out of all figures.
    steps: int
    warmup_steps: int
    #: Median of the step times. A step's time is the wall time of its slowest rank.
    step_median_ms: float
    step_p95_ms: float
    step_quartiles_ms: tuple[float, float]
    step_mean_ms: float = math.nan
    #: Event that ends a step: "declared" by the script, an optimizer's "update", or "backward".
    steps_end: str = DECLARED
    #: Number of steps that are left out because each holds several iterations.
    merged_steps: int = 0
    #: Index and time in ms of each stalled step, see ``stalls.stalled``. Means over steps include
    #: the stalled steps; the verdict and the search for a late rank leave stalled steps out.
    stalled_steps: tuple[tuple[int, float], ...] = ()
    #: From the first rank that left a trace.
    repeats: Repeats = field(default_factory=Repeats)

    @property
    def measured_steps(self) -> int:
        """Number of steps that the figures are based on."""
        return self.steps - self.warmup_steps

    @property
    def relative_spread(self) -> float:
        """Interquartile range of the step times, divided by their median; NaN if that is 0."""
        low, high = self.step_quartiles_ms
        return (high - low) / self.step_median_ms if self.step_median_ms > 0 else math.nan


def step_timing(seen: MeasuredSteps) -> StepTiming:
    """Returns number and length of the steps of one world size."""
    slowest, step = slowest_ns(seen.measured), seen.measured.step
    median_ns, p95_ns, low_ns, high_ns = (
        np.percentile(slowest, [50, 95, 25, 75]) if len(slowest) else [np.nan] * 4
    )
    hung = stalled(slowest)
    stalls = zip(step[hung].tolist(), slowest[hung].tolist(), strict=True)
    return StepTiming(
        steps=len(seen.parts.step),
        warmup_steps=seen.warmup,
        step_median_ms=ns_to_ms(median_ns),
        step_p95_ms=ns_to_ms(p95_ns),
        step_quartiles_ms=(ns_to_ms(low_ns), ns_to_ms(high_ns)),
        step_mean_ms=ns_to_ms(float(slowest.mean())) if len(slowest) else math.nan,
        steps_end=seen.steps.source,
        merged_steps=seen.merged,
        stalled_steps=tuple((number, ns_to_ms(ns)) for number, ns in stalls),
        repeats=Repeats() if seen.recorded[0].is_foreign else repeats(seen.traces[0], step),
    )
