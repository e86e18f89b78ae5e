"""Replays DDP steps, or only the exchange of their buckets, with the replay engine.

All ranks of a step are replayed as one rank that has the latest time of each event. This is enough
because the exchange of a bucket starts when the bucket is ready on all ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commprof.analysis.replay.engine import Condition, Line, ReplayedCalls, replay_drawn
from commprof.analysis.replay.program import ISSUE, MARK, WAIT, Program

Floats = npt.NDArray[np.float64]


def exchange(ready_s: Floats, transfer_s: Floats, latency_s: Floats, workers: int) -> Floats:
    """Computes when each bucket is complete, as [steps, buckets] in s.

    Args:
        ready_s: times when a bucket is ready on all ranks, as [steps, buckets] in order of issue.
        transfer_s: times on the link, as [buckets] or [steps, buckets].
        latency_s: further times until a bucket is complete, in the same shape.
        workers: number of all-reduces that run at a time.
    """
    steps, buckets = ready_s.shape
    link_s, then_s = (
        np.broadcast_to(times_s, (steps, buckets)) for times_s in (transfer_s, latency_s)
    )
    line = Line(steps, workers)
    end = np.empty_like(ready_s)
    for bucket in range(buckets):
        end[:, bucket] = line.serve(ready_s[:, bucket], link_s[:, bucket], then_s[:, bucket])
    return end


def replay_ddp(
    ready_s: Floats,
    backward_end_s: Floats,
    transfer_s: Floats,
    latency_s: Floats,
    copy_s: Floats,
    workers: int,
) -> tuple[Floats, Floats]:
    """Computes when DDP's finalisation ends in each step, and how long DDP waits in it, in s.

    The finalisation is at the end of backward. For each bucket, DDP waits until the bucket is
    complete, and copies the bucket to the gradients.

    Args:
        ready_s: times when a bucket is ready on all ranks, as [steps, buckets].
        backward_end_s: times when all ranks have ended backward, as [steps].
        transfer_s: times on the link, as [buckets].
        latency_s: further times until a bucket is complete, as [buckets].
        copy_s: times to copy a bucket to the gradients, as [buckets].
        workers: number of all-reduces that run at a time; 0 if nothing is exchanged.
    """
    steps, buckets = ready_s.shape
    copied = np.concatenate(([0.0], np.cumsum(copy_s)))
    waits = backward_end_s[:, np.newaxis] + copied
    rows = np.arange(buckets)
    own_s = [*ready_s.T, *waits.T] if workers else [waits[:, -1]]
    kind = [ISSUE] * buckets + [WAIT] * buckets + [MARK] if workers else [MARK]
    program = Program(
        rank=0,
        begin_ns=0,
        until_ns=0,
        own_ns=1e9 * np.array(own_s),
        kind=np.array(kind),
        row=np.concatenate([rows, rows, [1]]) if workers else np.array([1]),
        extra_ns=np.zeros(len(kind)),
    )
    replayed = replay_drawn([program], _calls(transfer_s, latency_s, workers), steps)
    return replayed.end_ns[0] / 1e9, replayed.stood_ns[0] / 1e9


def _calls(transfer_s: Floats, latency_s: Floats, workers: int) -> ReplayedCalls:
    buckets = len(transfer_s)
    nothing = np.zeros(buckets, dtype=np.int64)
    return ReplayedCalls(
        conditions=[Condition((row,), (row,)) for row in range(buckets)],
        before=np.arange(-1, buckets - 1),
        issue_ns=nothing,
        transfer_ns=1e9 * transfer_s,
        end_ns=nothing,
        outside=np.zeros(buckets, dtype=bool),
        group=nothing,
        latency_ns=1e9 * latency_s,
        workers=max(1, workers),
    )
