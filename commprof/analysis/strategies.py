"""Comparison of strategies at the same world size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from commprof.analysis.collectives.kinds import CollectiveRow
from commprof.analysis.scaling import RunResult
from commprof.analysis.world import WorldResult


@dataclass(frozen=True)
class StrategyOperation:
    """Calls of one operation under one strategy; all numbers are per step and rank."""

    op: str
    #: Phases in which the operation was called; the phase with the most calls comes first.
    phase: str
    calls: float
    #: Sum of the sizes of the calls; sizes are defined as in nccl-tests.
    size_bytes: float
    #: Time in which at least one call was in flight; NaN if no completion is known.
    in_flight_ms: float
    exposed_ms: float

    @property
    def overlapped(self) -> float:
        """Fraction of the time in flight in which the training thread worked; NaN if unknown."""
        if not self.in_flight_ms > 0:
            return math.nan
        return max(0.0, 1 - self.exposed_ms / self.in_flight_ms)


@dataclass(frozen=True)
class StrategyRow:
    """Figures of one strategy at one world size."""

    strategy: str
    world_size: int
    samples_per_s: float
    #: Throughput divided by the throughput of the first strategy at this world size; NaN if the
    #: first strategy has no figures.
    versus_first: float
    #: Scaling efficiency relative to this strategy's own smallest world size.
    efficiency: float
    #: Median of the step times. A step's time is the time of its slowest rank.
    step_median_ms: float
    #: Interquartile range of the step times, divided by their median. A smaller difference between
    #: strategies may be noise.
    step_spread: float
    #: Mean exposed time over ranks and steps.
    exposed_ms: float
    exposed_share: float
    #: ``RankSummary.training_bytes`` of the rank that used the most memory.
    training_bytes: float
    average_loss: float
    #: Sorted by size, the largest first.
    operations: tuple[StrategyOperation, ...]


def strategy_rows(results: Sequence[RunResult]) -> tuple[StrategyRow, ...]:
    """Makes a row per world size and strategy, sorted by world size."""
    first = {world.world_size: world for world in results[0].worlds} if results else {}
    rows = [
        _row(str(result.context.get("strategy", "")), world, scale.efficiency, first)
        for result in results
        for world, scale in zip(result.worlds, result.scaling, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: row.world_size))  # stable sort


def _row(
    strategy: str, world: WorldResult, efficiency: float, first: dict[int, WorldResult]
) -> StrategyRow:
    base = first.get(world.world_size)
    return StrategyRow(
        strategy=strategy,
        world_size=world.world_size,
        samples_per_s=world.training.samples_per_s,
        versus_first=world.training.samples_per_s / base.training.samples_per_s
        if base
        else math.nan,
        efficiency=efficiency,
        step_median_ms=world.timing.step_median_ms,
        step_spread=world.timing.relative_spread,
        exposed_ms=world.parts.exposed_ms,
        exposed_share=world.parts.exposed_ms / world.parts.step_ms,
        training_bytes=max(world.known("training_bytes"), default=math.nan),
        average_loss=world.training.average_loss,
        operations=_operations(world),
    )


def _operations(world: WorldResult) -> tuple[StrategyOperation, ...]:
    by_op: dict[str, list[CollectiveRow]] = {}
    for row in world.communication.collectives:
        by_op.setdefault(row.kind.op, []).append(row)
    rank_steps = len(world.ranks) * world.communication.call_steps
    in_flight = {time.op: time.in_flight_ms for time in world.communication.times_in_flight}
    found = [
        _operation(op, rows, rank_steps, in_flight.get(op, math.nan)) for op, rows in by_op.items()
    ]
    return tuple(sorted(found, key=lambda row: row.size_bytes, reverse=True))


def _operation(
    op: str, rows: Sequence[CollectiveRow], rank_steps: int, in_flight_ms: float
) -> StrategyOperation:
    calls: dict[str, int] = {}
    for row in rows:
        for phase, count in row.phases:
            calls[phase] = calls.get(phase, 0) + count
    return StrategyOperation(
        op=op,
        phase=" + ".join(sorted(calls, key=lambda phase: calls[phase], reverse=True)),
        calls=sum(row.calls for row in rows) / rank_steps,
        size_bytes=sum(row.total_bytes for row in rows) / rank_steps,
        in_flight_ms=in_flight_ms,
        exposed_ms=sum(row.times.exposed_ms for row in rows),
    )
