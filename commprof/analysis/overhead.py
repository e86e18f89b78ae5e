"""What commprof itself cost, from steps with capture off and on in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.intervals import Floats, Interval, ratio_of_medians


@dataclass(frozen=True)
class Overhead:
    """Step time with capture on against off, and off against off."""

    #: Median step with capture on / median step with capture off.
    on_over_off: Interval
    #: The same between two halves of the steps with capture off; the truth is 1.
    control: Interval
    steps_on: int
    steps_off: int

    @property
    def told_apart(self) -> bool:
        """Whether the effect is larger than what equal steps show among themselves."""
        effect = abs(self.on_over_off.value - 1)
        noise = max(abs(self.control.low - 1), abs(self.control.high - 1))
        return not self.on_over_off.contains(1.0) and effect > noise


def overhead(samples: Sequence[tuple[str, float]]) -> Overhead | None:
    """From labelled step times; None where a label has fewer than two of them.

    Args:
        samples: ``(label, time)`` with labels "on", "off_a" and "off_b"; the times of one
            world size, each on its slowest rank.
    """
    by_label: dict[str, Floats] = {
        label: np.array([time for name, time in samples if name == label])
        for label in ("on", "off_a", "off_b")
    }
    if any(len(times) < 2 for times in by_label.values()):
        return None
    off = np.concatenate([by_label["off_a"], by_label["off_b"]])
    return Overhead(
        on_over_off=ratio_of_medians(by_label["on"], off),
        control=ratio_of_medians(by_label["off_a"], by_label["off_b"]),
        steps_on=len(by_label["on"]),
        steps_off=len(off),
    )


def pooled_overhead(runs: Sequence[Sequence[tuple[str, float]]]) -> Overhead | None:
    """All world sizes together: each time divided by its world size's median "off" step."""
    pooled: list[tuple[str, float]] = []
    for samples in runs:
        off = [time for label, time in samples if label != "on"]
        if off:
            scale = float(np.median(off))
            pooled.extend((label, time / scale) for label, time in samples)
    return overhead(pooled)
