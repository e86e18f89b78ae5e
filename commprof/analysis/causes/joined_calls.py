"""Predicts the time of a call that replaces several smaller calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.causes.facts import Facts, Floats, Mask
from commprof.stats.intervals import robust_deviation
from commprof.trace.columns import Ints

#: The largest calls must have at least this many times the bytes of the smallest calls. Otherwise
#: latency and transfer cannot be distinguished.
_SPREAD = 2.0
#: Largest standard error of the transfer time of a step's calls, as a fraction of the step.
_ERROR = 0.02
#: Standard error of the median of n normal values, divided by (standard deviation / root of n).
_MEDIAN_ERROR = 1.2533


@dataclass(frozen=True)
class CallCost:
    """Time of a call as a linear function of its bytes, without waiting for other ranks."""

    latency_ns: float
    ns_per_byte: float

    def of_ns(self, size_bytes: Ints) -> Floats:
        """Returns the times in ns of calls of these sizes."""
        return self.latency_ns + self.ns_per_byte * size_bytes.astype(np.float64)


def call_cost(facts: Facts, masks: Sequence[Mask]) -> CallCost | None:
    """Fits a line to the sizes and transfer times of the masked calls.

    All masked calls must be of one operation and one group. Returns None if the sizes and times do
    not determine the line well enough, or if no replay is possible.
    """
    if not facts.transfer_ns:
        return None
    chosen = np.concatenate(list(masks))
    size = np.concatenate([calls.size_bytes for calls in facts.ranks])[chosen]
    transfer = np.concatenate(facts.transfer_ns)[chosen]
    sizes, size_row, count = np.unique(size, return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes[-1] < _SPREAD * sizes[0]:
        return None
    median = np.array([np.median(transfer[size_row == number]) for number in range(len(sizes))])
    slope, latency = np.polyfit(sizes.astype(np.float64), median, 1, w=np.sqrt(count))
    if not (slope > 0 and latency > 0):
        return None
    cost = CallCost(float(latency), float(slope))
    spread = [robust_deviation(transfer[size_row == number]) for number in range(len(sizes))]
    error = _MEDIAN_ERROR * np.array(spread) / np.sqrt(count)
    step_bytes = float(size.sum()) / len(facts.ranks) / facts.steps
    error_ns = step_bytes * _slope_error(cost, sizes, median, error, count)
    return cost if error_ns <= _ERROR * facts.step_ns else None


def _slope_error(
    cost: CallCost, sizes: Ints, median_ns: Floats, error_ns: Floats, count: Ints
) -> float:
    """Returns the standard error of the time per byte, in ns.

    It follows from the distances of the medians from the line, or from the errors of the medians if
    these are larger. With only two sizes, the distances are always 0.

    Args:
        cost: the line through the medians.
        sizes: the different sizes of the calls.
        median_ns: median time of the calls of each size.
        error_ns: standard error of each median.
        count: number of calls of each size.
    """
    off_ns = median_ns - cost.of_ns(sizes)
    beyond = float((count * off_ns**2).sum()) / max(1, len(sizes) - 2)
    of_medians = float((count * error_ns**2).mean())
    mean = float((count * sizes).sum()) / float(count.sum())
    return float(np.sqrt(max(beyond, of_medians) / (count * (sizes - mean) ** 2).sum()))
