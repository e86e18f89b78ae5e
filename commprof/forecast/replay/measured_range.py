"""Describes which parts of a scenario lie outside the measured range."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST, link_words
from commprof.forecast.costs.hook_costs import HookCost
from commprof.forecast.scenario.links import ScenarioLink
from commprof.forecast.scenario.model import few_recorded
from commprof.forecast.scenario.scenario import STRONG, Scenario
from commprof.forecast.scenario.schedule import Placement, Schedule

Floats = npt.NDArray[np.float64]

_ALMOST = 1.001


def outside_of(
    schedule: Schedule,
    scenario: Scenario,
    placement: Placement,
    link: ScenarioLink,
    hook: HookCost | None,
    sizes: Floats,
    batches: tuple[float, float],
) -> list[str]:
    """Describes the parts of a scenario outside the measured range; empty if there are none.

    Args:
        schedule: the recorded steps.
        scenario: the setting to predict.
        placement: hosts and cores of the scenario's ranks.
        link: links that the scenario's ring crosses.
        hook: cost of the scenario's compressor; None without a compressor.
        sizes: bytes of the scenario's buckets.
        batches: smallest and largest number of samples per rank in the fit of compute time.
    """
    reasons = [*_batch(schedule, scenario, batches), *_crowding(schedule, placement, link)]
    if scenario.world_size < 2:
        return reasons
    if hook is None:
        reasons += _links(scenario, link, sizes)
    else:
        reasons += _hook(scenario, link, hook, sizes)
    steps, recorded = schedule.ready_s.shape[:2]
    if scenario.world_size > steps * recorded:
        note = "each step counts once per rank"
        reasons.append(few_recorded(scenario.world_size, steps * recorded, note))
    return reasons


def _batch(schedule: Schedule, scenario: Scenario, batches: tuple[float, float]) -> Iterator[str]:
    if scenario.scaling != STRONG or not schedule.batch.per_rank:
        return
    low, high = batches
    there = schedule.batch.per_rank * schedule.world_size / scenario.world_size
    if not low / _ALMOST <= there <= high * _ALMOST:
        yield f"{there:.4g} samples per rank (measured: {low:g} to {high:g})"


def _crowding(schedule: Schedule, placement: Placement, link: ScenarioLink) -> Iterator[str]:
    curves = [curve for curve in (link.inner, link.outer) if curve is not None]
    crowded = [max(1.0, c.ranks_per_core) for c in curves if not math.isnan(c.ranks_per_core)]
    measured = min([schedule.placement.ranks_per_core, *crowded])
    if placement.ranks_per_core > measured * _ALMOST:
        yield f"{placement.ranks_per_core:.3g} ranks per core (measured: {measured:.3g})"
    elif placement.threads_sharing > schedule.placement.threads_sharing * _ALMOST:
        yield placement.per_core_words(schedule.placement)


def _links(scenario: Scenario, link: ScenarioLink, sizes: Floats) -> Iterator[str]:
    inside = outside = scenario.world_size
    if link.hierarchical:
        inside = link.ranks_per_host
        outside = math.ceil(scenario.world_size / link.ranks_per_host)
    if link.outer is not None:
        for reason in link.outer.outside(sizes.tolist(), outside, "all_reduce"):
            yield reason.replace(" ranks", " hosts", 1) if link.hierarchical else reason
    if link.inner is not None:
        where = "within a host: " if link.outer is not None else ""
        reasons = link.inner.outside(sizes.tolist(), inside, "all_reduce")
        yield from (where + each for each in reasons)


def _hook(scenario: Scenario, link: ScenarioLink, hook: HookCost, sizes: Floats) -> Iterator[str]:
    low, high = hook.bucket_bytes
    peers = hook.peers(scenario.world_size, link.ranks_per_host)
    crossed = OTHER_HOST if link.outer is not None else SAME_HOST
    if hook.link and hook.link != crossed:
        yield (
            f"{hook.label} over links of class '{link_words(crossed)}' "
            f"(measured: '{link_words(hook.link)}')"
        )
    if hook.between_hosts and link.ranks_per_host != hook.ranks_per_host:
        yield (
            f"{hook.label} with {link.ranks_per_host} ranks per host (measured: "
            f"{hook.ranks_per_host})"
        )
    if peers != hook.ranks:
        kind = "hosts" if hook.between_hosts else "ranks"
        yield f"{hook.label} at {peers} {kind} (measured: {hook.ranks})"
    if sizes.min() * _ALMOST < low or sizes.max() > _ALMOST * high:
        yield (
            f"{hook.label} on buckets of {sizes.min() / 1e6:.3g} to {sizes.max() / 1e6:.3g} MB "
            f"(measured: {low / 1e6:.3g} to {high / 1e6:.3g})"
        )
