"""Whether a job's collectives are so small that larger buckets are worth a try, or smaller ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from commprof.analysis.step.mean_step import MeanStep
from commprof.analysis.world import WorldResult

#: A call of less than this is called small: an eighth of DDP's first bucket.
_SMALL_BYTES: Final = 2**17
#: Small calls matter from so many a step on ...
_MANY: Final = 16
#: ... and if they hold at least this share of the exposed time.
_MOST: Final = 0.5
#: DDP's own cap, for buckets that were cut smaller than it; and two far below it, with which the
#: first gradients leave earlier and the last bucket, beside which no compute is left, is short.
_LARGER_MB, _SMALLER_MB, _SMALLEST_MB = 25, 5, 1


@dataclass(frozen=True)
class SmallCalls:
    """Collectives so small that their number may matter more than their length."""

    #: Of a rank.
    calls_per_step: float
    mean_bytes: float
    #: Of the exposed time.
    exposed_share: float


def small_calls(world: WorldResult, step: MeanStep) -> SmallCalls | None:
    """None unless there are many, and they hold much of the exposed time and little waiting."""
    known = [row for row in world.collectives if row.sizes_known]
    rows = [row for row in known if row.total_bytes < _SMALL_BYTES * row.calls]
    number = sum(row.calls_per_step for row in rows)
    exposed = world.parts.exposed_ms
    if number < _MANY or not exposed > 0:
        return None
    share = sum(row.exposed_ms for row in rows) / exposed
    if share < _MOST or (step.split_ms and step.split_ms["wire"] < step.split_ms["waiting"]):
        return None
    mean = sum(row.total_bytes for row in rows) / sum(row.calls for row in rows)
    return SmallCalls(number, mean, min(1.0, share))


def cap_to_try_mb(world: WorldResult, step: MeanStep, serial: bool = False) -> int | None:
    """The ``bucket_cap_mb`` to hold against the job's own: larger where its calls are small.

    None where no all-reduce is larger than the smaller cap, which would then change nothing.
    ``serial``: of an exchange that overlaps nothing a still smaller one is worth a try.
    """
    if small_calls(world, step) is not None:
        return _LARGER_MB
    buckets = [row.size_bytes[1] for row in world.collectives if row.op.startswith("all_reduce")]
    largest_bytes = max(buckets, default=0)
    caps = (_SMALLER_MB, _SMALLEST_MB) if serial else (_SMALLER_MB,)
    return next((cap for cap in caps if largest_bytes > cap * 2**20), None)
