"""What commprof itself cost, from steps with capture off and on in turn.

Steps drift and resemble their neighbours, so medians over all steps of a kind differ by more than
the steps' own spread says. Compared are therefore neighbours: each step with capture on and the one
with capture off beside it, and each "off" step with the next one. The training loop turns the order
round half of the time (``OVERHEAD_PATTERN``), so that a trend cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.stats.intervals import Interval, signed_rank_ratio

Samples = Sequence[tuple[str, float]]

_LEAST_PAIRS = 2


@dataclass(frozen=True)
class Overhead:
    """Step time with capture on against off, and off against off."""

    #: A step with capture on / the step with capture off beside it, over all such pairs.
    on_over_off: Interval
    #: The same of two steps with capture off, by turns; the truth is 1.
    control: Interval
    steps_on: int
    steps_off: int

    @property
    def told_apart(self) -> bool:
        """Whether the effect is larger than what equal steps show among themselves."""
        effect = abs(self.on_over_off.value - 1)
        noise = max(abs(self.control.low - 1), abs(self.control.high - 1))
        return not self.on_over_off.contains(1.0) and effect > noise


def overhead(samples: Samples) -> Overhead | None:
    """From labelled step times; None with fewer than two pairs of a kind.

    Args:
        samples: ``(label, time)`` with labels "on", "off_a" and "off_b", in the order in which
            the steps ran; the times of one world size, each on its slowest rank.
    """
    return pooled_overhead([samples])


def pooled_overhead(runs: Sequence[Samples]) -> Overhead | None:
    """The pairs of all world sizes together."""
    control = [pair for samples in runs for pair in _pairs(_off(samples), "off_a")]
    effect = [pair for samples in runs for pair in _pairs(samples, "on")]
    if min(len(control), len(effect)) < _LEAST_PAIRS:
        return None
    labels = [label for samples in runs for label, _ in samples]
    steps_on = labels.count("on")
    return Overhead(
        on_over_off=signed_rank_ratio(*np.array(effect).T),
        control=signed_rank_ratio(*np.array(control).T),
        steps_on=steps_on,
        steps_off=len(labels) - steps_on,
    )


def _off(samples: Samples) -> Samples:
    return [sample for sample in samples if sample[0] in ("off_a", "off_b")]


def _pairs(samples: Samples, above: str) -> list[tuple[float, float]]:
    """Times of neighbours of which one has this label, that one's first; each step once."""
    return [
        (first[1], second[1]) if first[0] == above else (second[1], first[1])
        for first, second in zip(samples[::2], samples[1::2], strict=False)
        if (first[0] == above) != (second[0] == above)
    ]
