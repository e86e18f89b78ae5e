"""One step's exchange of all buckets, for many steps at once.

Buckets are served in order of issue by ``workers`` threads over one link. A bucket needs the link
for its ``wire`` time and is on its way for ``latency`` longer, in which others use the link. Where
two share the link their ends come closer together than here, the last of them at the same time:
``simulate.py`` follows each segment, and a test compares the two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def exchange(ready_s: Floats, wire_s: Floats, latency_s: Floats, workers: int) -> Floats:
    """When each bucket is there.

    Args:
        ready_s: [steps, buckets], by order of issue: its last rank has it.
        wire_s: [buckets] or [steps, buckets]
        latency_s: of the same shape.
        workers: all-reduces that run at a time.
    """
    steps, buckets = ready_s.shape
    wire, latency = (
        np.broadcast_to(wire_s, (steps, buckets)),
        np.broadcast_to(latency_s, (steps, buckets)),
    )
    link_free = np.zeros(steps)
    free = np.zeros((steps, workers))
    end = np.empty_like(ready_s)
    rows = np.arange(steps)
    for bucket in range(buckets):
        worker = free.argmin(axis=1)
        start = np.maximum(ready_s[:, bucket], free[rows, worker])
        link_free = np.maximum(start, link_free) + wire[:, bucket]
        end[:, bucket] = free[rows, worker] = link_free + latency[:, bucket]
    return end


def finalized(backward_end_s: Floats, end_s: Floats, copy_s: Floats) -> tuple[Floats, Floats]:
    """DDP's last loop: wait for a bucket, copy it back, go on. Its end, and the waiting in it.

    Args:
        backward_end_s: [steps]
        end_s: [steps, buckets]
        copy_s: [buckets]
    """
    now, waited = backward_end_s.copy(), np.zeros_like(backward_end_s)
    for bucket in range(end_s.shape[1]):
        wait = np.maximum(0.0, end_s[:, bucket] - now)
        waited += wait
        now += wait + copy_s[bucket]
    return now, waited
