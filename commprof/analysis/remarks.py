"""Remarks on a run: sentences that a reader must know before relying on the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.collectives.calls import DEFAULT_GLOO_THREADS
from commprof.analysis.collectives.compression import compression_remarks
from commprof.analysis.cores import usable_cores
from commprof.analysis.findings import (
    FEW_STEPS,
    PYTHON_CAVEAT,
    RunFinding,
    captured_in_python,
    findings,
)
from commprof.analysis.late.costs import LongerPhase
from commprof.analysis.late.late_words import cost_in_all, with_cost
from commprof.analysis.late.stragglers import LateRank, fell_behind
from commprof.analysis.loss_curves import loss_remarks
from commprof.analysis.scaling import Scaling
from commprof.analysis.step.overhead import Overhead, OwnCost
from commprof.analysis.summary_result import SummaryResult
from commprof.analysis.world import WorldResult
from commprof.text import counted, in_ms, listed, plain_digits
from commprof.trace.found_steps import BACKWARD, UPDATE
from commprof.units import ns_to_ms

#: The causes of waiting are named only if waiting takes at least this fraction of the step.
_MUCH_WAITING = 0.05
_MOST_CAUSES = 3
#: The named causes must explain at least this fraction of the waiting; otherwise no cause is named.
_MOSTLY = 0.5
#: A run is noisy if the interquartile range of its step times is above this fraction of the median.
_NOISY = 0.15
_TOLD_AFTER_CLOCKS = (
    *("missing_ranks", "not_split", "unsplit", "failed_calls", "dropped_records"),
)


def remarks(
    context: Mapping[str, Any],
    worlds: Sequence[WorldResult],
    scaling: Sequence[Scaling],
    overhead: Overhead | None,
    in_turns: bool = False,
    summaries: Sequence[SummaryResult] = (),
) -> tuple[str, ...]:
    """Returns all remarks on a run, the most important first.

    ``in_turns``: True if a trial changed the settings from step to step. Remarks on steps are then
    left out.
    """
    found = [fact.caveat for fact in _of_kind(context, worlds, "weights_differ")]
    found += loss_remarks(context, worlds)
    found += _oversubscription(context, worlds)
    found += placement_remarks(context)
    if not in_turns:
        found += _above_ideal(context, worlds, scaling)
        found += _too_short(context, worlds)
    found += script_remarks(worlds, summaries)
    for world in worlds:
        facts = {fact.kind: [fact.caveat] for fact in findings(context, world) if fact.caveat}
        found += [] if in_turns else _about_steps(world, facts)
        found += _about_world(world, facts)
        found += [] if in_turns else _about_compression(context, world)
    if overhead is not None:
        found.append(_about_overhead(overhead))
    if worlds and not math.isnan(worlds[-1].profiler_cost.record_cost_ns):
        found.append(_about_records(worlds[-1]))
    if captured_in_python(context):
        found.append(PYTHON_CAVEAT)
    return tuple(found)


def _oversubscription(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> list[str]:
    over = _of_kind(context, worlds, "cores")
    if not over:
        return []
    worst = max(over, key=lambda fact: fact.world_size)
    cores, threads = usable_cores(context["machine"]), int(context["threads_per_rank"])
    nodes = int(context.get("nodes", 1))
    host = "each host" if nodes > 1 else "this host"
    sizes = counted([fact.world_size for fact in over], "rank")
    text = (
        f"More threads than cores at {sizes}: the ranks of {host} share "
        f"{counted(cores, 'core')}, and each rank runs {counted(threads, 'thread')}."
    )
    return [f"{text} {worst.caveat}"]


def _of_kind(
    context: Mapping[str, Any], worlds: Sequence[WorldResult], kind: str
) -> list[RunFinding]:
    facts = (fact for world in worlds for fact in findings(context, world))
    return [fact for fact in facts if fact.kind == kind and fact.caveat]


def _above_ideal(
    context: Mapping[str, Any], worlds: Sequence[WorldResult], scaling: Sequence[Scaling]
) -> list[str]:
    base = worlds[0] if worlds else None
    found = []
    for world, scale in zip(worlds, scaling, strict=True):
        if base is None or world is base or not scale.efficiency > 1.0:
            continue
        ratio = _work_per_sample(world) / _work_per_sample(base)
        spread = max(world.timing.relative_spread, base.timing.relative_spread)
        text = (
            f"Efficiency at {world.world_size} ranks is {scale.efficiency:.1%}, above the ideal; "
            "adding ranks alone cannot cause that"
        )
        if not math.isnan(ratio):
            text += (
                f". A rank's own work per sample took {ratio:.2f} times as long as at world size "
                f"{base.world_size}"
            )
        if scale.efficiency - 1 <= spread:
            text += f"; the step times spread by {spread:.0%}, so this may be noise."
        elif context.get("scaling") == "strong":
            text += "; under strong scaling each rank's batch shrinks and may fit a faster cache."
        else:
            text += "; something else slowed down the baseline, so repeat the run."
        found.append(text)
    return found


def _too_short(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> list[str]:
    short = _of_kind(context, worlds, "few_steps")
    if not short:
        return []
    counts = [fact.figures["measured_steps"] for fact in short]
    if len(set(counts)) == 1:
        counts = counts[:1]
    more = ", for example with --steps 30" if "workload" in context else ""
    sizes = counted([fact.world_size for fact in short], "rank")
    steps = counted(counts, "measured step")
    return [f"Only {steps} at {sizes}; at least {FEW_STEPS} are needed{more}."]


def _about_compression(context: Mapping[str, Any], world: WorldResult) -> list[str]:
    if not world.communication.compression and world.recording.device_collectives:
        return []  # compressors of gradients on a device record nothing
    return compression_remarks(
        context,
        world.communication.compression,
        world.world_size,
        len(world.ranks),
        world.communication.call_steps,
    )


def _about_steps(world: WorldResult, facts: Mapping[str, list[str]]) -> list[str]:
    """Returns the remarks that are valid only if all steps ran with the same settings.

    ``facts``: caveats of the world size, by kind.
    """
    found = []
    name = counted(world.world_size, "rank")
    if world.timing.relative_spread > _NOISY:
        found.append(
            f"Noisy at {name}: the interquartile range is "
            f"{world.timing.relative_spread:.0%} of the median step.{_uneven_batches(world)}"
        )
    found += facts.get("stalled_steps", [])
    found += _about_causes(world)
    late = world.lateness.late_rank
    if late is not None:
        is_late, wait_ms = f"Rank {late.rank} is late at {name}", ns_to_ms(late.wait_ns)
        sentence = with_cost(is_late, late, wait_ms, world.world_size)
        found.append(f"{sentence} {_about_lateness(late)}")
    return found


def _about_causes(world: WorldResult) -> list[str]:
    found = []
    name, costs = counted(world.world_size, "rank"), world.lateness.wait_costs[:_MOST_CAUSES]
    if (
        sum(cost.wait_ms for cost in world.lateness.wait_costs)
        >= _MUCH_WAITING * world.parts.step_ms
    ):
        causes = [
            f"rank {cost.rank} ({cost.cause}) {cost.share:.0%}"
            for cost in costs
            if round(cost.share, 2) > 0
        ]
        if sum(cost.share for cost in costs) >= _MOSTLY:
            found.append(f"Waiting at {name} was caused mostly by {listed(causes)}.")
        else:
            number = len(world.lateness.wait_costs)
            found.append(
                f"Waiting at {name} was spread over {number} causes (a rank and its "
                f"activity): the {len(costs)} largest together explain less than half of it."
            )
    held_up = world.lateness.longer_phase
    if held_up is not None:
        found.append(
            f"At {name}, rank {held_up.rank}'s {held_up.phase} takes {in_ms(held_up.longer_ms)} "
            f"longer than on the other ranks: {listed(_what_held_up(held_up))}."
        )
    return found


def _what_held_up(phase: LongerPhase) -> list[str]:
    found = []
    if phase.throttled_ms >= phase.no_core_ms / 2 > 0:
        found.append(
            f"the CPU quota of the rank's cgroup stopped the rank for {in_ms(phase.throttled_ms)} "
            "of this difference"
        )
    elif phase.no_core_ms > 0:
        switches = f"{plain_digits(phase.involuntary_switches)} more involuntary switches"
        more = f" ({switches} per step)" if phase.involuntary_switches >= 1 else ""
        found.append(
            f"the rank was ready to run but had no core for {in_ms(phase.no_core_ms)} of this "
            f"difference{more}"
        )
    if phase.major_faults >= 1:
        pages = plain_digits(phase.major_faults)
        found.append(f"the rank reads {pages} more pages per step from disk")
    if phase.memory_stall_ms > 0:
        stalled = f"stalled for memory for {in_ms(phase.memory_stall_ms)} of this difference"
        found.append(f"tasks of the rank's host {stalled}")
    if phase.has_many_faults:
        found.append(f"the rank has {phase.minor_faults:,.0f} more page faults per step")
    return found


def _about_world(world: WorldResult, facts: Mapping[str, list[str]]) -> list[str]:
    found = [*facts.get("sampled_steps", [])]
    name = counted(world.world_size, "rank")
    if world.recording.foreign and world.recording.clock_error_us > 0:
        found.append(
            f"Ranks' clocks were compared at {name} using the ends of their collectives: offsets "
            f"are known to ±{_bound(world.recording.clock_error_us)}. In each exposed stretch of "
            "communication, the split into waiting and transfer may be off by twice this error."
        )
    elif world.recording.foreign:
        pass  # an entry of ``problems`` says why the clocks were not compared
    elif not world.recording.clocks_shared:
        found += facts.get("clocks_not_compared", [])
    elif world.recording.clock_error_us > 0:
        found.append(
            f"Ranks' clocks were compared over the network at {name}: offsets are known to "
            f"±{_bound(world.recording.clock_error_us)}. In each exposed stretch of "
            "communication, the split into waiting and transfer may be off by twice this error."
        )
    if world.recording.gloo_threads_assumed:
        found.append(
            f"At {name} a trace does not record how many threads run a gloo group's collectives; "
            "the queue and wait times of its calls in this group are computed with torch's default "
            f"of {DEFAULT_GLOO_THREADS} threads."
        )
    if world.recording.device_collectives:
        found.append(_about_devices(world, name))
    for kind in _TOLD_AFTER_CLOCKS:
        found += facts.get(kind, [])
    found.extend(f"At {name}: {problem}." for problem in world.recording.problems)
    found += [_about_check(name, each) for each in world.cross_checks if each.agrees is False]
    return found


def _about_check(name: str, check: CrossCheck) -> str:
    other, ours = (f"{plain_digits(x, 4)} {check.unit}" for x in (check.other, check.ours))
    ours += f" ({check.percent})" if check.percent else ""
    return f"Cross-check at {name}: {check.what} is {other}, but commprof's figure is {ours}."


def _about_lateness(late: LateRank) -> str:
    text = (
        f"It was late in {late.late_steps} of {late.measured_steps} measured steps and "
        f"{cost_in_all(late)}; "
    )
    if late.phase is None and math.isnan(late.phase_share):
        return text + "the phase in which it fell behind is not known."
    if late.phase is None:
        return text + (
            "its lateness is spread over several phases, none of which explains more than "
            f"{late.phase_share:.0%}."
        )
    text += f"it fell behind {fell_behind(late.phase)}"
    if math.isnan(late.phase_share):
        return (
            f"{text}. In three of four steps, this part of the step takes at least "
            f"{in_ms(late.slower_ms)} longer on this rank than the median of the other ranks."
        )
    return f"{text}, which explains {late.phase_share:.0%} of the waiting."


def _uneven_batches(world: WorldResult) -> str:
    low, high = world.training.samples_per_step
    if not low < high:
        return ""
    return (
        f" The steps are not equal: the last step of an epoch has {low:.0f} samples, the other "
        f"steps have {high:.0f}."
    )


def _about_overhead(overhead: Overhead) -> str:
    found = [] if overhead.cpu is None else [("CPU time of the training threads", overhead.cpu)]
    parts = [_about_cost(*one) for one in (*found, ("step time", overhead.wall))]
    steps = (
        f"{overhead.wall.steps_on} steps with capture on, "
        f"{overhead.wall.steps_off} with capture off"
    )
    return (
        f"commprof's own cost, from pairs of neighbouring steps ({steps}, over all world sizes): "
        f"{'; '.join(parts)}."
    )


def _about_cost(clock: str, cost: OwnCost) -> str:
    effect, control = cost.on_over_off, cost.control
    if not cost.measurable:
        return (
            f"{clock} not measurable precisely in this run (95 % interval {_percent(effect.low)} "
            f"to {_percent(effect.high)})"
        )
    text = (
        f"{clock} {_percent(effect.value)} [{_percent(effect.low)}, {_percent(effect.high)}] "
        f"(control, pairs of steps with capture off: {_percent(control.value)} "
        f"[{_percent(control.low)}, {_percent(control.high)}])"
    )
    return text if cost.told_apart else f"{text}, not distinguishable from zero"


def _about_records(world: WorldResult) -> str:
    cost_ns = world.profiler_cost.records_per_step * world.profiler_cost.record_cost_ns
    share = ns_to_ms(cost_ns) / world.timing.step_median_ms
    return (
        f"Recording alone: {world.profiler_cost.records_per_step:.0f} records per step and rank at "
        f"{world.profiler_cost.record_cost_ns:.0f} ns each (measured in the run) cost "
        f"{cost_ns / 1e3:.1f} µs, {share:.4%} of the step at {counted(world.world_size, 'rank')}."
    )


def _work_per_sample(world: WorldResult) -> float:
    own = sum(rank.parts.own_work_ms for rank in world.ranks)
    samples = sum(rank.samples for rank in world.ranks)
    return own * world.timing.measured_steps / samples if own > 0 and samples else math.nan


def _bound(value_us: float) -> str:
    """Formats a bound, rounded up to whole µs, or to whole ms from 1 ms; "-" if unknown."""
    if math.isnan(value_us):
        return "-"
    return f"{math.ceil(value_us)} µs" if value_us < 1000 else f"{math.ceil(value_us / 1000)} ms"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"


def _about_devices(world: WorldResult, name: str) -> str:
    text = f"At {name}, {world.recording.device_collectives} collectives ran on a GPU. "
    if world.recording.foreign and not world.evidence.recorded.times:
        return (
            f"At {name}, {world.recording.device_collectives} collectives were called, but their "
            "kernels were not recorded, so it is not known when the collectives ran."
        )
    if world.recording.foreign:
        return text + "Exposed time is the time in which only their kernels ran on the device."
    untimed = world.recording.device_collectives - world.recording.device_timed
    if world.recording.device_timed:
        text += (
            "Steps, phases and exposed time are those of the GPU's compute stream, timed by device "
            "events. An event's time may be off by "
            f"±{_bound(world.recording.device_clock_error_us)} on the host's "
            "clock; durations are more exact. "
        )
        if world.world_size > 1:
            text += (
                "In each exposed stretch of communication, the split into waiting and transfer may "
                "be off by twice the error of an event's time. "
            )
    if untimed:
        whose = (
            f"{untimed} of the GPU collectives"
            if world.recording.device_timed
            else "the GPU collectives"
        )
        reason = world.evidence.device_timing.why_none
        why = f" ({reason})" if reason else ""
        text += (
            f"commprof did not measure when {whose} completed, nor how long GPU streams waited for "
            f"them{why}: exposed, wait, transfer and hidden include only times on the host. "
            "The collectives of a replayed CUDA graph are not recorded, because a replay issues no "
            "calls. "
        )
    return text.rstrip()


#: The CPUs of at most this many ranks are listed one by one.
_LISTED = 4


def placement_remarks(context: Mapping[str, Any]) -> list[str]:
    """Returns a remark on the CPUs to which ranks were pinned at the largest world size."""
    worlds = (context.get("pinning") or {}).get("worlds") or {}
    pinned = [size for size, found in worlds.items() if found["mode"] != "none"]
    if not pinned:
        return []
    largest = max(pinned, key=int)
    found = worlds[largest]
    sets = " | ".join(found["sets"][:_LISTED]) + (" | ..." if len(found["sets"]) > _LISTED else "")
    shared = "" if found["disjoint"] else "NOT exclusive: "
    return [
        f"Ranks were pinned to CPUs ({found['mode']}). At world size {largest}, the ranks' CPU "
        f"sets are {sets}; {shared}{found['reason']}."
    ]


_STEPS = {
    UPDATE: (
        "Step boundaries were inferred from optimizer.step(). For exact boundaries, call "
        "commprof.step() at the end of the loop's body."
    ),
    BACKWARD: (
        "Step boundaries were inferred from backward passes that communicated, because no "
        "optimizer stepped or because commprof.profile() was called without find_steps=True. For "
        "exact boundaries, call commprof.step() at the end of the loop's body."
    ),
}
_SAMPLES = (
    "samples/s counts the batches that DataLoaders returned, using dimension 0 of their tensors; "
    "a batch read by several ranks is counted once per rank."
)


def script_remarks(
    worlds: Sequence[WorldResult], summaries: Sequence[SummaryResult] = ()
) -> list[str]:
    """Returns remarks on steps, updates and samples that commprof inferred from the script."""
    ends = {world.timing.steps_end for world in worlds} | {
        summary.timing.steps_end for summary in summaries
    }
    found = [text for source, text in _STEPS.items() if source in ends]
    found += [
        f"At world size {world.world_size}, commprof leaves {world.timing.merged_steps} of the "
        "detected steps out of all figures: each holds the backward passes of several "
        "iterations, because the script skipped updates."
        for world in worlds
        if world.timing.merged_steps
    ]
    found += dict.fromkeys(text for world in worlds for text in world.timing.repeats.sentences)
    if any(world.training.samples_source == "dataloader" for world in worlds):
        found.append(_SAMPLES)
    return found
