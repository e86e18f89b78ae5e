"""Overhead of commprof itself, from steps that alternate between capture on and off.

The overhead is computed from two clocks: the CPU time of all ranks' training threads, and the
slowest rank's wall time. Other programs and waiting hardly change the CPU time. A result counts
only if its confidence interval is narrow enough.

Steps drift and resemble their neighbours, so medians over all "on" and all "off" steps differ by
more than the steps' own spread suggests. Therefore pairs of neighbours are compared: a step with
capture on and one with capture off. The control compares the "off" steps of two successive pairs.
The training loop draws at random which step of a pair comes first (``overhead_states``): the
interval of the signed-rank test then keeps its confidence level whatever rhythm or trend the steps
have. With a fixed order it does not: for simulated steps that repeat with a period of eight, only
84 % of the 95 % intervals contained the true value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.stats.intervals import Interval, signed_rank_ratio

#: Per step: state of capture (see ``overhead_states``), wall time, and CPU time of the training
#: threads; the CPU time is NaN if unknown.
Samples = Sequence[tuple[str, float, float]]

Timed = Sequence[tuple[str, float]]

_LEAST_PAIRS = 2
#: An interval is conclusive if its value differs from both bounds by at most this. The cost of
#: recording is far lower, so a wider interval does not show whether recording cost anything.
MOST_REACH = 0.02


@dataclass(frozen=True)
class OwnCost:
    """Cost of capture, as ratios of step times; all times are wall times, or all are CPU times.

    The control compares steps that both had capture off, to show how far chance moves a ratio.
    """

    #: Time of the step with capture on, divided by the time of the step with capture off, per pair.
    on_over_off: Interval
    #: The same ratio for pairs of steps with capture off; its true value is 1.
    control: Interval
    steps_on: int
    steps_off: int

    @property
    def measurable(self) -> bool:
        """True if the interval of ``on_over_off`` is narrow enough for a conclusion."""
        found = self.on_over_off
        return max(found.high - found.value, found.value - found.low) <= MOST_REACH

    @property
    def told_apart(self) -> bool:
        """True if the cost is distinguishable from zero.

        The interval of ``on_over_off`` is then narrow enough and does not contain 1.
        """
        return self.measurable and not self.on_over_off.contains(1.0)


@dataclass(frozen=True)
class Overhead:
    """Overhead of commprof itself, in CPU time and in wall time."""

    #: From the CPU time of all ranks' training threads; None if a rank did not report it.
    cpu: OwnCost | None
    #: From the wall time of the slowest rank.
    wall: OwnCost

    @property
    def best(self) -> OwnCost:
        """The cost in CPU time, which other programs disturb less; if unknown, in wall time."""
        return self.cpu or self.wall


def overhead(samples: Samples) -> Overhead | None:
    """Computes the overhead from labelled step times; None if there are too few pairs of steps.

    Needed are at least two pairs of neighbouring steps with capture on in one step and off in the
    other, and two control pairs with capture off in both steps.

    Args:
        samples: samples of one world size, in the order in which the steps ran.
    """
    return pooled_overhead([samples])


def pooled_overhead(runs: Sequence[Samples]) -> Overhead | None:
    """Like :func:`overhead`, but computes one overhead for all world sizes.

    ``runs`` has the samples of each world size. Pairs of steps are formed within a world size and
    then put together.
    """
    wall = _cost([[(label, wall) for label, wall, _ in samples] for samples in runs])
    cpu = [[(label, cpu) for label, _, cpu in samples] for samples in runs]
    has_cpu_times = all(cpu > 0 for samples in cpu for _, cpu in samples)
    return None if wall is None else Overhead(_cost(cpu) if has_cpu_times else None, wall)


def _cost(runs: Sequence[Timed]) -> OwnCost | None:
    control = [pair for samples in runs for pair in _pairs(_off(samples), "off_a")]
    effect = [pair for samples in runs for pair in _pairs(samples, "on")]
    if min(len(control), len(effect)) < _LEAST_PAIRS:
        return None
    labels = [label for samples in runs for label, _ in samples]
    steps_on = labels.count("on")
    return OwnCost(
        on_over_off=signed_rank_ratio(*np.array(effect).T),
        control=signed_rank_ratio(*np.array(control).T),
        steps_on=steps_on,
        steps_off=len(labels) - steps_on,
    )


def _off(samples: Timed) -> Timed:
    return [sample for sample in samples if sample[0] in ("off_a", "off_b")]


def _pairs(samples: Timed, above: str) -> list[tuple[float, float]]:
    """Returns the times of adjacent steps in pairs: first the time of the step labelled ``above``.

    The first step is paired with the second, the third with the fourth, and so on. A pair is left
    out unless exactly one of its steps has this label.
    """
    return [
        (first[1], second[1]) if first[0] == above else (second[1], first[1])
        for first, second in zip(samples[::2], samples[1::2], strict=False)
        if (first[0] == above) != (second[0] == above)
    ]
