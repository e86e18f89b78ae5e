"""What a reader must know before believing the figures, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from commprof.analysis.align.summaries import SummaryResult
from commprof.analysis.checks.losses import loss_remarks
from commprof.analysis.collectives.calls import DEFAULT_GLOO_THREADS
from commprof.analysis.collectives.compression import compression_remarks
from commprof.analysis.late.costs import LongerPhase
from commprof.analysis.late.stragglers import LateRank, fell_behind
from commprof.analysis.scaling import Scaling
from commprof.analysis.step.cores import crowded, no_core_share, usable_cores
from commprof.analysis.step.overhead import Overhead, OwnCost
from commprof.analysis.world import WorldResult
from commprof.text import counted, listed, plural
from commprof.trace.found_steps import BACKWARD, UPDATE
from commprof.units import ns_to_ms

#: Fewer measured steps than this say little about spread.
FEW_STEPS = 10
#: Share of the step from which waiting is told by its causes, and how many of these.
_MUCH_WAITING, _MOST_CAUSES = 0.05, 3
#: Quartile distance over median above which a run is called noisy.
_NOISY = 0.15
#: Share of the exposed time that may be left out without a word.
_WORTH_A_WORD = 0.005


def remarks(
    context: Mapping[str, Any],
    worlds: Sequence[WorldResult],
    scaling: Sequence[Scaling],
    overhead: Overhead | None,
    in_turns: bool = False,
    summaries: Sequence[SummaryResult] = (),
) -> tuple[str, ...]:
    """All remarks on a run, the weightiest first.

    in_turns: candidates of a trial shared the steps; of these nothing is said then, for they
    differ by what was tried.
    """
    found = loss_remarks(context, worlds)
    found += _oversubscription(context, worlds)
    found += placement_remarks(context)
    if not in_turns:
        found += _above_ideal(context, worlds, scaling)
        found += _too_short(context, worlds)
    found += script_remarks(worlds, summaries)
    for world in worlds:
        found += [] if in_turns else _about_steps(world)
        found += _about_world(world)
        found += [] if in_turns else _about_compression(context, world)
    if overhead is not None:
        found.append(_about_overhead(overhead))
    if worlds and not math.isnan(worlds[-1].record_cost_ns):
        found.append(_about_records(worlds[-1]))
    if context.get("capture") == "python":
        found.append(
            "Capture ran in pure Python: only the buckets of DDP were seen, no other collective, "
            "and the DDP hook that this takes adds a pass over the gradients."
        )
    return tuple(found)


def _oversubscription(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> list[str]:
    """What was started, from counts, and what came of it, from run delay alone."""
    over = [world for world in worlds if crowded(context, world)]
    if not over:
        return []
    worst = max(over, key=lambda world: world.world_size)
    cores, threads = usable_cores(context["machine"]), int(context["threads_per_rank"])
    nodes = int(context.get("nodes", 1))
    host = "each host" if nodes > 1 else "this host"
    sizes = counted([w.world_size for w in over], "rank")
    text = (
        f"More threads than cores at {sizes}: ranks may use "
        f"{counted(cores, 'core')} of {host} and each runs {counted(threads, 'thread')}."
    )
    share, where = no_core_share(worst), f"At {counted(worst.world_size, 'rank')}"
    if math.isnan(share):
        return [f"{text} Whether they waited for cores was not measured."]
    return [
        f"{text} {where} the training thread was ready to run without a core for {share:.0%} of "
        "its exposed time."
    ]


def _above_ideal(
    context: Mapping[str, Any], worlds: Sequence[WorldResult], scaling: Sequence[Scaling]
) -> list[str]:
    base = worlds[0] if worlds else None
    found = []
    for world, scale in zip(worlds, scaling, strict=True):
        if base is None or world is base or not scale.efficiency > 1.0:
            continue
        ratio = _work_per_sample(world) / _work_per_sample(base)
        spread = max(_relative_spread(world), _relative_spread(base))
        text = (
            f"Efficiency at {world.world_size} ranks is {scale.efficiency:.1%}, above the ideal, "
            "which adding ranks cannot cause"
        )
        if not math.isnan(ratio):
            text += (
                f". A rank's own work per sample took {ratio:.2f} times what it took at "
                f"{base.world_size}"
            )
        if scale.efficiency - 1 <= spread:
            text += f"; the step times spread by {spread:.0%}, so this may be noise."
        elif context.get("scaling") == "strong":
            text += "; under strong scaling each rank's batch shrinks and may fit a nearer cache."
        else:
            text += "; the baseline was slowed down by something else, so repeat the run."
        found.append(text)
    return found


def _too_short(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> list[str]:
    short = [world for world in worlds if world.measured_steps < FEW_STEPS]
    if not short:
        return []
    counts = [world.measured_steps for world in short]
    if len(set(counts)) == 1:
        counts = counts[:1]
    more = ": --steps 30" if "workload" in context else ""
    sizes = counted([w.world_size for w in short], "rank")
    return [
        f"Only {counted(counts, 'measured step')} at {sizes}; at least {FEW_STEPS} are needed"
        f"{more}."
    ]


def _about_compression(context: Mapping[str, Any], world: WorldResult) -> list[str]:
    return compression_remarks(context, world.compression, world.world_size, world.measured_steps)


def _about_steps(world: WorldResult) -> list[str]:
    """What holds only if all steps are of one setting."""
    found = []
    name = counted(world.world_size, "rank")
    if _relative_spread(world) > _NOISY:
        found.append(
            f"Noisy at {name}: the interquartile range is {_relative_spread(world):.0%} of the "
            f"median step.{_uneven_batches(world)}"
        )
    if world.stalled_steps:
        steps = ", ".join(f"{step} ({ms / 1000:.3g} s)" for step, ms in world.stalled_steps)
        found.append(
            f"Stalled at {name}: {plural(len(world.stalled_steps), 'step')} {steps}, more than ten "
            "times the median. Means and samples/s include that; the verdict does not."
        )
    found += _about_causes(world)
    late = world.late_rank
    if late is not None:
        found.append(
            f"Rank {late.rank} comes late at {name}: each of the others waits "
            f"{ns_to_ms(late.wait_ns):.1f} ms per step for it, {late.share:.0%} of all waiting "
            f"{_by_chance(late)}. {_about_lateness(late)}"
        )
    return found


def _about_causes(world: WorldResult) -> list[str]:
    """Where most of much waiting began, and which rank had no core."""
    found = []
    name, costs = counted(world.world_size, "rank"), world.wait_costs[:_MOST_CAUSES]
    if sum(cost.wait_ms for cost in world.wait_costs) >= _MUCH_WAITING * world.parts.step_ms:
        told = [f"rank {cost.rank} ({cost.cause}) {cost.share:.0%}" for cost in costs]
        found.append(f"Waiting at {name} began most at {listed(told)}.")
    held_up = world.longer_phase
    if held_up is not None:
        found.append(
            f"At {name} rank {held_up.rank}'s {held_up.phase} takes {held_up.longer_ms:.3g} ms "
            f"longer than the others'; {listed(_what_held_up(held_up))}."
        )
    return found


def _what_held_up(phase: LongerPhase) -> list[str]:
    """What the kernel counted in it beyond the other ranks, in parts of a sentence."""
    found = []
    if phase.throttled_ms >= phase.no_core_ms / 2 > 0:
        found.append(f"{phase.throttled_ms:.3g} ms of them its cgroup throttled it")
    elif phase.no_core_ms > 0:
        switches = phase.involuntary_switches
        more = f" ({switches:.3g} more involuntary switches a step)" if switches >= 1 else ""
        found.append(f"{phase.no_core_ms:.3g} ms of them it was runnable without a core{more}")
    if phase.major_faults >= 1:
        found.append(f"it reads {phase.major_faults:.3g} more pages a step from disk")
    if phase.memory_stall_ms > 0:
        found.append(f"its host was short of memory for {phase.memory_stall_ms:.3g} ms of them")
    if phase.has_many_faults:
        found.append(f"it has {phase.minor_faults:,.0f} more page faults a step")
    return found


def _about_world(world: WorldResult) -> list[str]:
    found = []
    name = counted(world.world_size, "rank")
    if world.foreign and world.clock_error_us > 0:
        found.append(
            f"Ranks' clocks were compared at {name} by the ends of their collectives: offsets "
            f"known to ±{_micros(world.clock_error_us)} µs. Waiting and transfer of one exposure "
            "may be off by twice that, one against the other."
        )
    elif world.foreign:
        pass  # why they were not compared, a problem says
    elif not world.clocks_shared:
        found.append(
            f"At {name} the ranks ran on several machines, whose clocks were not compared: "
            "waiting and transfer cannot be separated."
        )
    elif world.clock_error_us > 0:
        found.append(
            f"Ranks' clocks were compared over the network at {name}: offsets known to "
            f"±{_micros(world.clock_error_us)} µs. Waiting and transfer of one exposure may be off "
            "by twice that, one against the other."
        )
    if world.gloo_threads_assumed:
        found.append(
            f"At {name} a trace does not say how many threads run a gloo group's collectives: "
            f"queue and wait of each call are by torch's default of {DEFAULT_GLOO_THREADS}."
        )
    if world.device_collectives:
        found.append(_about_devices(world, name))
    if world.missing_ranks:
        found.append(_about_missing(world, name))
    if world.clocks_shared and math.isnan(world.parts.wait_ms):
        found.append(
            f"At {name} some collectives were not seen on all ranks of their group: waiting and "
            "transfer cannot be separated."
        )
    unsplit = world.parts.unsplit_ms / world.parts.exposed_ms if world.parts.exposed_ms else 0.0
    if not math.isnan(world.parts.wait_ms) and unsplit > _WORTH_A_WORD:
        found.append(
            f"At {name} {unsplit:.1%} of the exposed time is in neither wait nor transfer: it was "
            "for operations that were not seen on all their ranks, or for a recv from any source."
        )
    if failed := [row for row in world.collectives if row.failed]:
        calls = sum(row.failed for row in failed)
        found.append(
            f"At {name} {calls} {plural(calls, 'call')} of collectives ended with an error "
            f"({', '.join(dict.fromkeys(row.op for row in failed))}): they count as exposed time, "
            "and in no median."
        )
    if world.dropped_records:
        found.append(
            f"At {name} {world.dropped_records} records were dropped because a buffer was full: "
            "communication times may be too small."
        )
    found.extend(f"At {name}: {problem}." for problem in world.problems)
    found.extend(
        f"Cross-check at {name}: {check.what} is {check.other:.4g} {check.unit} and commprof's "
        f"figure {check.ours:.4g} {check.unit}, {check.difference:+.1%}."
        for check in world.cross_checks
        if check.agrees is False
    )
    return found


def _about_missing(world: WorldResult, name: str) -> str:
    ranks = plural(len(world.missing_ranks), "rank")
    text = (
        f"At {name} no usable trace came from {ranks} {listed(world.missing_ranks)}: times are "
        "those of the other ranks"
    )
    if math.isnan(world.samples_per_s):
        return f"{text}, and samples/s, speed-up and efficiency are not known."
    return f"{text}, samples those of all ranks, by the training loop's account."


def _by_chance(late: LateRank) -> str:
    if math.isnan(late.p_value):
        steps = counted(late.measured_steps, "step")
        return f"in the {steps} recorded, too few to tell it from chance"
    return f"(by chance: p = {late.p_value:.4f})"


def _about_lateness(late: LateRank) -> str:
    text = (
        f"It was late in {late.late_steps} of {late.measured_steps} measured steps and cost the "
        f"others {late.cost_s:.3g} s of waiting in all; "
    )
    if late.phase is None and math.isnan(late.phase_share):
        return text + "the phase in which it fell behind is not known."
    if late.phase is None:
        return text + (
            "its lateness is spread over phases, of which none explains more than "
            f"{late.phase_share:.0%}."
        )
    text += f"it fell behind {fell_behind(late)}"
    if math.isnan(late.phase_share):
        return (
            f"{text}: that takes it {late.slower_ms:.3g} ms longer than the median of the others, "
            "or more, in three of four steps."
        )
    return f"{text}, which explains {late.phase_share:.0%} of that."


def _uneven_batches(world: WorldResult) -> str:
    low, high = world.samples_per_step
    if not low < high:
        return ""
    return (
        f" The steps are not equal: an epoch's last one has {low:.0f} samples, others {high:.0f}."
    )


def _about_overhead(overhead: Overhead) -> str:
    found = [] if overhead.cpu is None else [("CPU time of the training threads", overhead.cpu)]
    parts = [_about_cost(*one) for one in (*found, ("step time", overhead.wall))]
    steps = f"{overhead.wall.steps_on} and {overhead.wall.steps_off} steps"
    return (
        f"commprof's own cost, capture on against off, {steps} in turn over all world sizes: "
        f"{'; '.join(parts)}."
    )


def _about_cost(clock: str, cost: OwnCost) -> str:
    effect, control = cost.on_over_off, cost.control
    if not cost.measurable:
        return (
            f"{clock} not measurable here, between {_percent(effect.low)} and "
            f"{_percent(effect.high)} by these steps"
        )
    text = (
        f"{clock} {_percent(effect.value)} [{_percent(effect.low)}, {_percent(effect.high)}] "
        f"(control, off against off: {_percent(control.value)} [{_percent(control.low)}, "
        f"{_percent(control.high)}])"
    )
    return text if cost.told_apart else f"{text}, which may be nothing"


def _about_records(world: WorldResult) -> str:
    cost_ns = world.records_per_step * world.record_cost_ns
    share = ns_to_ms(cost_ns) / world.step_median_ms
    return (
        f"Recording itself: {world.records_per_step:.0f} records per step and rank at "
        f"{world.record_cost_ns:.0f} ns each (measured in the run) are {cost_ns / 1e3:.1f} µs, "
        f"{share:.4%} of the step at {counted(world.world_size, 'rank')}."
    )


def _work_per_sample(world: WorldResult) -> float:
    own = sum(rank.parts.own_work_ms for rank in world.ranks)
    samples = sum(rank.samples for rank in world.ranks)
    return own * world.measured_steps / samples if own > 0 and samples else math.nan


def _relative_spread(world: WorldResult) -> float:
    low, high = world.step_quartiles_ms
    return (high - low) / world.step_median_ms if world.step_median_ms > 0 else 0.0


def _micros(value_us: float) -> str:
    """Rounded up: a bound stays one."""
    return "-" if math.isnan(value_us) else f"{math.ceil(value_us)}"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"


def _about_devices(world: WorldResult, name: str) -> str:
    text = f"At {name} {world.device_collectives} collectives ran on a GPU. "
    if world.foreign:
        return text + (
            "Exposed time is that in which their kernels ran and no other kernel of the device did."
        )
    untimed = world.device_collectives - world.device_timed
    if world.device_timed:
        text += (
            "Steps, phases and exposed time are those of its compute stream, timed by device "
            f"events: on the host's clock to ±{_micros(world.device_clock_error_us)} µs, as "
            "lengths more exactly. "
        )
    if untimed:
        whose = f"Of {untimed} of them" if world.device_timed else "Of all of them"
        why = f" ({world.no_device_times})" if world.no_device_times else ""
        text += (
            f"{whose} the completion and the waiting on its streams were not measured{why}: "
            "exposed, wait, transfer and hidden hold only what the host saw. Collectives of a "
            "replayed CUDA graph are issued by nobody and are not among them. "
        )
    return text.rstrip()


#: Ranks whose CPUs are listed one by one.
_LISTED = 4


def placement_remarks(context: Mapping[str, Any]) -> list[str]:
    """Where ranks were pinned at the largest world size, and whether each had CPUs of its own."""
    worlds = (context.get("pinning") or {}).get("worlds") or {}
    pinned = [size for size, found in worlds.items() if found["mode"] != "none"]
    if not pinned:
        return []
    largest = max(pinned, key=int)
    found = worlds[largest]
    sets = " | ".join(found["sets"][:_LISTED]) + (" | ..." if len(found["sets"]) > _LISTED else "")
    shared = "" if found["disjoint"] else "NOT of their own: "
    return [
        f"Ranks pinned to CPUs ({found['mode']}), at {largest}: {sets}; {shared}{found['reason']}."
    ]


_STEPS = {
    UPDATE: (
        "Step boundaries were inferred from optimizer.step(). For exact ones call commprof.step() "
        "at the end of the loop's body."
    ),
    BACKWARD: (
        "Step boundaries were inferred from backward passes that communicated, because no "
        "optimizer stepped. For exact ones call commprof.step() at the end of the loop's body."
    ),
}
_SAMPLES = (
    "samples/s counts the batches that DataLoaders returned, by dimension 0 of their tensors; a "
    "batch read by several ranks is counted once per rank."
)


def script_remarks(
    worlds: Sequence[WorldResult], summaries: Sequence[SummaryResult] = ()
) -> list[str]:
    """Remarks on what commprof found out by itself; none where it was told."""
    ends = {world.steps_end for world in worlds} | {found.steps_end for found in summaries}
    found = [text for source, text in _STEPS.items() if source in ends]
    found += [
        f"At world size {world.world_size} {world.merged_steps} of the steps found hold the "
        "backward passes of several, but not their updates: the script left updates out there. "
        "They are in no figure."
        for world in worlds
        if world.merged_steps
    ]
    found += dict.fromkeys(text for world in worlds for text in world.repeats.sentences)
    if any(world.samples_source == "dataloader" for world in worlds):
        found.append(_SAMPLES)
    return found
