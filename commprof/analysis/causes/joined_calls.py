"""Predicts how long joined calls take, from sizes and times of a run's own calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.causes.facts import Facts, Floats, Mask
from commprof.trace.columns import Ints

#: The largest calls must hold at least this many times the bytes of the smallest calls: otherwise
#: latency and transfer cannot be told apart.
_SPREAD = 2.0


@dataclass(frozen=True)
class CallCost:
    """Time of a call without waiting for other ranks, linear in its bytes."""

    latency_ns: float
    ns_per_byte: float

    def of_ns(self, size_bytes: Ints) -> Floats:
        """Time of calls of these sizes."""
        return self.latency_ns + self.ns_per_byte * size_bytes.astype(np.float64)


def call_cost(facts: Facts, masks: Sequence[Mask]) -> CallCost | None:
    """Fits transfer times to sizes; all masked calls are of one operation in one group.

    None if the sizes are too alike, if larger calls take no longer, or if no replay is possible.
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
    return CallCost(float(latency), float(slope)) if slope > 0 and latency > 0 else None
