"""Which parameters share a bucket under another cap, and when those buckets are ready.

DDP fills buckets in the order in which gradients got ready in its first step, and closes a bucket
as soon as it holds the cap or more (``compute_bucket_assignment_by_size`` in torch's
``reducer.cpp``). Without a ``bucket_cap_mb`` of the script's own the first bucket's cap is
1 MiB and the others' 25 MiB; with one it is the cap of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.predict.replay.schedule import Schedule

Floats = npt.NDArray[np.float64]

#: Into so many equal parts a bucket is thought to be cut where its parameters are not known.
_PARTS = 16


@dataclass(frozen=True)
class Parameters:
    """Gradients in the order in which they get ready."""

    size_bytes: tuple[float, ...]
    #: Recorded bucket that each was in.
    bucket: tuple[int, ...]
    #: Sizes are those of the model's parameters, not of equal parts of recorded buckets.
    sizes_known: bool

    @property
    def times_known(self) -> bool:
        """Each was a bucket of its own, so that its ready time was recorded."""
        return self.sizes_known and len(set(self.bucket)) == len(self.bucket)


def parameters_of(schedule: Schedule) -> Parameters:
    """From DDP's own log where the trace has it; else recorded buckets, cut into equal parts."""
    log = schedule.ddp_log
    sizes, groups = log.get("parameter_bytes"), log.get("rebuilt_per_bucket_param_indices")
    if isinstance(sizes, list) and isinstance(groups, str):
        try:
            indices = [[int(word) for word in group.split()] for group in groups.split(",")]
            known = [[float(sizes[i]) for i in group] for group in indices if group]
        except (ValueError, IndexError):
            known = []
        if [round(sum(group)) for group in known] == schedule.bucket_bytes.tolist():
            bucket = tuple(b for b, group in enumerate(known) for _ in group)
            return Parameters(tuple(x for group in known for x in group), bucket, True)
    count = len(schedule.bucket_bytes)
    if log.get("num_parameter_tensors") == count:
        sizes_ = tuple(float(size) for size in schedule.bucket_bytes)
        return Parameters(sizes_, tuple(range(count)), True)
    parts = [float(size) / _PARTS for size in schedule.bucket_bytes for _ in range(_PARTS)]
    return Parameters(tuple(parts), tuple(b for b in range(count) for _ in range(_PARTS)), False)


def assign(size_bytes: Sequence[float], cap_bytes: float) -> list[list[int]]:
    """DDP's assignment: numbers of the parameters in each bucket, for one cap for all buckets.

    A cap of 0 gives each parameter a bucket of its own, as in DDP.
    """
    buckets: list[list[int]] = [[]]
    held = 0.0
    for number, size in enumerate(size_bytes):
        if buckets[-1] and held >= cap_bytes:
            buckets.append([])
            held = 0.0
        buckets[-1].append(number)
        held += size
    return buckets


def rebucketed(
    schedule: Schedule, parameters: Parameters, cap_bytes: float
) -> tuple[Floats, Floats]:
    """Sizes of the buckets under a cap, and when they are ready: [steps, ranks, buckets].

    A parameter's ready time is interpolated, by bytes, between the bucket before its recorded
    bucket and that; the first bucket's begin with backward.
    """
    groups = assign(parameters.size_bytes, cap_bytes)
    sizes = np.array([sum(parameters.size_bytes[i] for i in group) for group in groups])
    bucket = np.array(parameters.bucket)
    size = np.array(parameters.size_bytes)
    total = np.bincount(bucket, weights=size)
    share = np.concatenate([np.cumsum(size[bucket == b]) / total[b] for b in range(len(total))])
    first = np.where(
        np.isnan(schedule.backward_begin_s), schedule.ready_s[:, :, 0], schedule.backward_begin_s
    )
    before = np.concatenate([first[:, :, None], schedule.ready_s[:, :, :-1]], axis=2)
    last = [group[-1] for group in groups]
    at = bucket[last]
    begin, end = before[:, :, at], schedule.ready_s[:, :, at]
    return sizes, begin + (end - begin) * share[last]
