"""What training costs in time and money at each world size, from measured throughput.

    s per 1000 samples    = 1000 / (samples per second)
    cost per 1000 samples = that / 3600 * price per hour * (ranks, or nodes, that are paid for)

The interval is that of the mean step (bootstrap over steps), the samples per step being known.
Cost says nothing of accuracy: more ranks may mean a larger batch, which may need more samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from commprof.analysis.step.detail import WorldDetail
from commprof.analysis.world import WorldResult
from commprof.stats.intervals import Interval, mean_interval, percentile_interval, resampled_means

UNITS = ("node", "rank")
#: Epochs that differ by this share are one epoch: samplers pad it to equal batches on all ranks.
_PADDING = 0.05


@dataclass(frozen=True)
class Price:
    """A price, and what it is paid for."""

    #: In whatever currency; costs are in the same.
    per_hour: float
    #: For each "node" (a host with ranks on it) or each "rank".
    unit: str


@dataclass(frozen=True)
class CostRow:
    """Cost of training at one world size; NaN where its samples are not known."""

    world_size: int
    #: Nodes or ranks that are paid for; None where ranks are missing, whose nodes are not known.
    billed: int | None
    s_per_1000_samples: float
    cost_per_1000_samples: Interval
    #: NaN where the samples of an epoch are not known, or not the same at all world sizes.
    s_per_epoch: float
    cost_per_epoch: float
    #: Cost per sample of the smallest world size over this one's; above 1 is cheaper than it. NaN
    #: where that is the only one.
    cost_efficiency: float


@dataclass(frozen=True)
class Cost:
    """Costs of all world sizes, and which world size is best."""

    price: Price
    rows: tuple[CostRow, ...]
    #: World size with the least cost per sample; None where no samples are known.
    cheapest: int | None
    #: World size with the most samples per second.
    fastest: int | None
    #: World sizes whose cost did not differ measurably from the cheapest's.
    as_cheap: tuple[int, ...]


def cost(
    worlds: Sequence[WorldResult],
    details: Sequence[WorldDetail],
    price: Price,
    epoch_samples: float = math.nan,
) -> Cost:
    """Returns what training costs at each world size.

    Args:
        worlds: with figures.
        details: of the same.
        price: what is paid.
        epoch_samples: samples of all ranks in an epoch; NaN to take what the run knows, if its
            world sizes agree.
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
        if i != cheapest and not _told_apart(rows, details, cheapest, i)
    ]
    return Cost(
        price, tuple(rows), rows[cheapest].world_size, rows[fastest].world_size, tuple(as_cheap)
    )


def _epoch_samples(details: Sequence[WorldDetail]) -> float:
    """The smallest world size's; NaN where another one's epoch is another amount of work."""
    counts = [detail.epoch_samples for detail in details]
    same = all(abs(count / counts[0] - 1) <= _PADDING for count in counts)
    return counts[0] if counts and same else math.nan


def _row(world: WorldResult, detail: WorldDetail, price: Price, samples: float) -> CostRow:
    billed = _billed(world, price.unit)
    per_s = math.nan if billed is None else price.per_hour / 3600 * billed
    s_per_1000 = 1000 / world.samples_per_s
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
    return None if world.missing_ranks else len({rank.host for rank in world.ranks})


def _told_apart(
    rows: Sequence[CostRow], details: Sequence[WorldDetail], cheapest: int, other: int
) -> bool:
    """Whether the 95 % interval of the ratio of the two costs excludes 1."""
    means = [
        rows[i].cost_per_1000_samples.value
        * resampled_means(details[i].slowest_ms, seed=i)
        / details[i].slowest_ms.mean()
        for i in (cheapest, other)
    ]
    return float(percentile_interval(means[1] / means[0])[0]) > 1
