"""Computes commprof's own overhead from steps with capture on and steps with capture off.

The overhead is computed from two clocks: the CPU time of all ranks' training threads, and the
slowest rank's wall time. Waiting and other programs hardly change the CPU time.

Step times drift, so neighbouring steps are compared: a step with capture on, and a step with
capture off. As a control, steps with capture off are also compared with each other. The order of
the steps in a pair is random (``overhead_states``). With a fixed order, a rhythm in the step times
could look like overhead.
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
#: An interval is narrow enough if both bounds differ from its value by at most this. Recording
#: costs far less, so a wider interval shows nothing.
MOST_REACH = 0.02


@dataclass(frozen=True)
class OwnCost:
    """Cost of capture, as ratios of step times: either wall times or CPU times."""

    #: Per pair of steps: time with capture on, divided by time with capture off.
    on_over_off: Interval
    #: Ratio of two steps with capture off. It shows how far chance moves a ratio from 1.
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
        """The cost in CPU time if it is known, else the cost in wall time."""
        return self.cpu or self.wall


def overhead(samples: Samples) -> Overhead | None:
    """Computes the overhead from labelled step times; None if there are too few pairs of steps.

    The samples must contain at least two pairs of each kind: a step with capture on and a step with
    capture off, and two steps with capture off.

    Args:
        samples: samples of one world size, in the order in which the steps ran.
    """
    return pooled_overhead([samples])


def pooled_overhead(runs: Sequence[Samples]) -> Overhead | None:
    """Like :func:`overhead`, but computes one overhead for all world sizes.

    ``runs`` has the samples of each world size. Both steps of a pair have the same world size.
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
    """Pairs the first step with the second, the third with the fourth, and so on.

    Returns the two times of each pair: first the time of the step with label ``above``. A pair
    counts only if exactly one of its steps has this label.
    """
    return [
        (first[1], second[1]) if first[0] == above else (second[1], first[1])
        for first, second in zip(samples[::2], samples[1::2], strict=False)
        if (first[0] == above) != (second[0] == above)
    ]
