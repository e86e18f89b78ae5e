"""Cost of training in time and money at each world size, from measured throughput.

    s per 1000 samples    = 1000 / (samples per second)
    cost per 1000 samples = (s per 1000 samples) / 3600 * price per hour * (billed ranks or nodes)

The 95 % interval of a cost is the bootstrap interval of the mean step time, scaled to the cost.
Cost ignores accuracy: more ranks may mean a larger batch, which may need more samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from commprof.analysis.detail import WorldDetail
from commprof.analysis.world import WorldResult
from commprof.stats.intervals import Interval, mean_interval, percentile_interval, resampled_means

UNITS = ("node", "rank")
#: Epoch lengths count as equal if they differ by at most this fraction. Samplers pad epochs so that
#: all ranks get equal batches.
_PADDING = 0.05


@dataclass(frozen=True)
class Price:
    """Price per hour of a node or a rank."""

    #: Price in any currency; costs are in the same currency.
    per_hour: float
    #: "node" (a machine with ranks on it) or "rank".
    unit: str


@dataclass(frozen=True)
class CostRow:
    """Cost of training at one world size; times and costs are NaN if they are unknown."""

    world_size: int
    #: Number of nodes or ranks that are paid for; None if the nodes of missing ranks are unknown.
    billed: int | None
    s_per_1000_samples: float
    cost_per_1000_samples: Interval
    #: NaN if the samples of an epoch are unknown, or differ between world sizes.
    s_per_epoch: float
    cost_per_epoch: float
    #: Cost per sample at the smallest world size, divided by the cost per sample at this world
    #: size. NaN if there is only one world size.
    cost_efficiency: float


@dataclass(frozen=True)
class Cost:
    """Costs of all world sizes, with the cheapest and the fastest world size."""

    price: Price
    rows: tuple[CostRow, ...]
    #: World size with the least cost per sample; None if no costs are known.
    cheapest: int | None
    #: World size with the most samples per second, of those with a known cost.
    fastest: int | None
    #: World sizes whose cost does not differ measurably from the least cost.
    as_cheap: tuple[int, ...]


def cost(
    worlds: Sequence[WorldResult],
    details: Sequence[WorldDetail],
    price: Price,
    epoch_samples: float = math.nan,
) -> Cost:
    """Returns the cost of training at each world size.

    Args:
        worlds: results of the world sizes, smallest first.
        details: step-by-step figures of the same world sizes.
        price: price per hour.
        epoch_samples: samples of all ranks in an epoch; NaN to use the number that the run
            recorded, if it is the same at all world sizes.
    """
    rows: list[CostRow] = []
    alone = len(worlds) < 2
    samples = _epoch_samples(details) if math.isnan(epoch_samples) else epoch_samples
    for world, detail in zip(worlds, details, strict=True):
        row = _row(world, detail, price, samples)
        base = rows[0] if rows else row
        efficiency = base.cost_per_1000_samples.value / row.cost_per_1000_samples.value
        rows.append(replace(row, cost_efficiency=math.nan if alone else efficiency))
    known = [i for i, row in enumerate(rows) if not math.isnan(row.cost_per_1000_samples.value)]
    if not known:
        return Cost(price, tuple(rows), None, None, ())
    cheapest = min(known, key=lambda i: rows[i].cost_per_1000_samples.value)
    fastest = min(known, key=lambda i: rows[i].s_per_1000_samples)
    as_cheap = [
        rows[i].world_size
        for i in known
        if i != cheapest and not _distinguishable(rows, details, cheapest, i)
    ]
    return Cost(
        price, tuple(rows), rows[cheapest].world_size, rows[fastest].world_size, tuple(as_cheap)
    )


def _epoch_samples(details: Sequence[WorldDetail]) -> float:
    """Returns the number of samples in an epoch at the smallest world size.

    NaN if the number is unknown at some world size, or differs between world sizes by more than
    ``_PADDING``.
    """
    counts = [detail.epoch_samples for detail in details]
    same = all(abs(count / counts[0] - 1) <= _PADDING for count in counts)
    return counts[0] if counts and same else math.nan


def _row(world: WorldResult, detail: WorldDetail, price: Price, samples: float) -> CostRow:
    billed = _billed(world, price.unit)
    per_s = math.nan if billed is None else price.per_hour / 3600 * billed
    s_per_1000 = 1000 / world.training.samples_per_s
    step = mean_interval(detail.slowest_ms)
    value = s_per_1000 * per_s
    epochs = samples / 1000
    return CostRow(
        world_size=world.world_size,
        billed=billed,
        s_per_1000_samples=s_per_1000,
        cost_per_1000_samples=Interval(
            value, value * step.low / step.value, value * step.high / step.value
        ),
        s_per_epoch=epochs * s_per_1000,
        cost_per_epoch=epochs * value,
        cost_efficiency=1.0,
    )


def _billed(world: WorldResult, unit: str) -> int | None:
    if unit == "rank":
        return world.world_size
    return None if world.recording.missing_ranks else len({rank.machine for rank in world.ranks})


def _distinguishable(
    rows: Sequence[CostRow], details: Sequence[WorldDetail], cheapest: int, other: int
) -> bool:
    """True if the 95 % interval of the ratio of the costs, other / cheapest, is above 1."""
    means = [
        rows[i].cost_per_1000_samples.value
        * resampled_means(details[i].slowest_ms, seed=i)
        / details[i].slowest_ms.mean()
        for i in (cheapest, other)
    ]
    return float(percentile_interval(means[1] / means[0])[0]) > 1
