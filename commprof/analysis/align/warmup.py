"""Which leading steps are warm-up and stay out of every figure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commprof.stats.robust import robust_deviation
from commprof.trace.columns import Collectives, Steps

#: Robust standard deviations above the later steps' median that make a step warm-up ...
_DEVIATIONS = 5.0
#: ... if it is also this much longer than that median.
_LONGER = 1.1


def count_warmup(wall_ns: npt.NDArray[np.float64], signatures: npt.NDArray[np.uint64]) -> int:
    """Number of leading steps to leave out: at least one, at most half of them.

    The first step always counts: it allocates, and DDP regroups its buckets after it. Later
    ones count while their collectives differ from all that the second half of the run
    issued, or while they are far longer than the second half's steps.

    Args:
        wall_ns: length of each step on its slowest rank.
        signatures: of each step's collectives, see :func:`step_signatures`.
    """
    count = len(wall_ns)
    if count < 2:
        return 0
    later = wall_ns[count // 2 :]
    median = float(np.median(later))
    deviation = robust_deviation(later)
    limit = max(median + _DEVIATIONS * deviation, median * _LONGER)
    usual = np.unique(signatures[count // 2 :])
    warmup = 1
    while warmup < count // 2 and (wall_ns[warmup] > limit or signatures[warmup] not in usual):
        warmup += 1
    return warmup


def step_signatures(steps: Steps, table: Collectives) -> npt.NDArray[np.uint64]:
    """One number per step, equal for steps that issued the same operations and sizes."""
    first = np.searchsorted(table.issue_ns, steps.begin_ns)
    last = np.searchsorted(table.issue_ns, steps.end_ns)
    content = np.stack([table.op, table.bytes_in], axis=1)
    return np.array(
        [
            hash(content[i:j].tobytes()) & 0xFFFFFFFFFFFFFFFF
            for i, j in zip(first, last, strict=True)
        ],
        dtype=np.uint64,
    )
