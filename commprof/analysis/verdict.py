"""Verdict on a run: sentences that name the largest part of the step.

The parts of the mean step are compute, data, optimizer, communication that the training thread
waits for, and other; if a device's kernels were recorded, copies and idle take the place of other.
The largest part bounds the step if it is the largest in at least 95 % of bootstrap samples of the
steps. Otherwise the verdict names the two largest parts. A late rank is named first if the other
ranks wait long for it. The verdict ends with a next step, such as a command that tries a change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commprof.analysis.cores import judged_place, usable_cores
from commprof.analysis.detail import WorldDetail
from commprof.analysis.evidence import Figure
from commprof.analysis.exchange import Exchange, exchange
from commprof.analysis.findings import findings
from commprof.analysis.late import lines
from commprof.analysis.late.slower_ranks import SlowerRanks
from commprof.analysis.late.stragglers import LateRank, fell_behind, who_waits
from commprof.analysis.mean_step import MeanStep, mean_step
from commprof.analysis.next_step import (
    NextStep,
    next_step,
    rank_to_look_at,
    ranks_to_look_at,
    time_spent,
    time_spent_for,
)
from commprof.analysis.scaling import RunResult
from commprof.analysis.world import WorldResult
from commprof.stats.intervals import resampled_means
from commprof.text import counted, in_ms, listed, plain_digits
from commprof.units import ns_to_ms

#: A part bounds the step if it is the largest in at least this fraction of bootstrap resamples.
_TOLD_APART = 0.95
#: The two largest parts are called about equal if their ratio is at least this.
_ABOUT_EQUAL = 0.8
#: Smallest fraction that sentences mention. It applies to the growth of the step, to the parts of
#: this growth, and to communication.
_WORTH_A_WORD = 0.03

#: Smallest fraction of the step that is shown; a smaller one would read 0.0%.
_SHOWN = 0.0005

#: Names of the parts in sentences.
_WORDS = {
    "compute": "compute (forward and backward)",
    "communication": "communication",
    "data": "loading data",
    "optimizer": "the optimizer",
    "other": "code outside forward, backward and optimizer",
    "waiting": "waiting for the last rank",
    "transfer": "data transfer",
    "unsplit": "not attributed",
}
#: Name of "other" if no forward pass was recorded: "other" may then include forward passes.
_NO_PHASE = "time in no recorded phase (no forward pass was seen)"
_DEVICE_WORDS = {
    **_WORDS,
    "copies": "copies to, from and within the GPUs",
    "idle": "idle GPUs (no kernel and no copy ran)",
}
#: Names of parts in a list of differences. All other parts are named by their keys.
_SHORT = {"transfer": "data transfer", "unsplit": "communication not attributed"}


@dataclass(frozen=True)
class Binding:
    """The part that bounds the step of one world size."""

    world_size: int
    #: A key of ``MeanStep.parts_ms``; None if it is uncertain which part is the largest.
    part: str | None
    #: The two largest parts and their fractions of the mean step, in descending order. Empty if
    #: communication was not measured.
    largest: tuple[tuple[str, float], ...]
    #: The keys "waiting", "transfer" and "unsplit" and their fractions of the mean step. Empty if
    #: waiting and transfer are not separated.
    communication: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run; its sentences are about one world size."""

    #: World size that ``judged_place`` chooses.
    world_size: int
    bindings: tuple[Binding, ...]
    #: Sentences on the most important finding.
    headline: str
    sentences: tuple[str, ...]
    next_step: NextStep
    exchange: Exchange


def verdict(result: RunResult, details: Sequence[WorldDetail]) -> Verdict | None:
    """Returns the verdict on a run; None if it has no figures."""
    if not result.worlds:
        return None
    steps = [mean_step(detail) for detail in details]
    bindings = tuple(_binding(w, step) for w, step in zip(result.worlds, steps, strict=True))
    place = judged_place(result.context, result.worlds)
    world, step = result.worlds[place], steps[place]
    facts = {f.kind: [f.verdict] for f in findings(result.context, world) if f.verdict}
    sentences = [
        *facts.get("stalled_steps", []),
        *_larger(result.context, result.worlds, world),
        *facts.get("cores", []),
        *_communication(world, step),
        *_sharded(world, step),
        *_late(world, step),
        *_in_the_phases(world),
        *_unseen_forward(world, bindings[place]),
        *_growth(result, steps, place),
    ]
    words, found = _words(world, step), exchange(world, step)
    late = rank_to_look_at(result.context, world, step)
    slower = ranks_to_look_at(result.context, world, step)
    headline = _not_known(world, step) or _headline(
        bindings[place], step, words, slower or late, _ranks(world)
    )
    if late is None and slower is None:
        headline = " ".join(filter(None, (headline, _held_up(world, step) or found.sentence)))
    if world.communication.apart is not None:
        headline = f"{world.communication.apart.sentence} {headline}"
    if comparison := _against_prediction(result.context, world):
        headline = f"{headline} {comparison}"
    return Verdict(
        world.world_size,
        bindings,
        headline,
        tuple(sentences),
        next_step(result.context, world, step, words, found),
        found,
    )


def _not_known(world: WorldResult, step: MeanStep) -> str:
    """Returns a headline that says which figures are not known; empty if all are known."""
    if world.evidence.supports(Figure.EXPOSED):
        return ""
    known = f"At {_ranks(world)} the mean step takes {in_ms(step.step_ms)}"
    why = world.evidence.lacking(Figure.EXPOSED if step.is_of_device else Figure.PARTS)
    if why:
        return f"{known}. It is not known which part bounds the step: {why}."
    return (
        f"{known}; its communication was not recorded. The time in which ranks wait for "
        "communication is counted in the other parts of the step."
    )


def _against_prediction(context: Mapping[str, Any], world: WorldResult) -> str:
    predicted = context.get("predicted")
    if predicted is None or predicted["world_size"] != world.world_size:
        return ""
    step, measured_ms = predicted["step_ms"], world.timing.step_median_ms
    inside = step["low"] <= measured_ms <= step["high"]
    times = (step["low"], step["high"], step["value"], measured_ms)
    low, high, value, measured = (plain_digits(time_ms, 4) for time_ms in times)
    bounds = f"[{low}, {high}]" if predicted["is_interval"] else f"({low} to {high})"
    return (
        f"Predicted step from {predicted['run']} with {predicted['setting']}: {value} {bounds} "
        f"ms. Measured: {measured} ms, {'inside' if inside else 'outside'} that range; the "
        f"prediction is off by {step['value'] / measured_ms - 1:+.1%}."
    )


def _held_up(world: WorldResult, step: MeanStep) -> str:
    """Returns a sentence on a late rank that the headline does not name; empty if none is late."""
    late = world.lateness.late_rank
    if late is None:
        return ""
    where = f" falls behind {where}" if (where := fell_behind(late.phase)) else " is late"
    return f"Rank {late.rank}{where}: {time_spent(late, world.world_size, step)}."


def _binding(world: WorldResult, step: MeanStep) -> Binding:
    if not world.evidence.supports(Figure.EXPOSED):
        return Binding(world.world_size, None, (), ())
    means = step.by_step_ms.mean(axis=0)
    order = np.argsort(-means, kind="stable")
    parts = tuple(step.parts_ms)
    largest = tuple((parts[i], step.share(parts[i])) for i in order[:2].tolist())
    wins = float((np.argmax(resampled_means(step.by_step_ms), axis=1) == order[0]).mean())
    part = largest[0][0] if wins >= _TOLD_APART else None
    split = tuple((name, step.share(name)) for name in step.split_ms)
    return Binding(world.world_size, part, largest, split)


def _words(world: WorldResult, step: MeanStep) -> Mapping[str, str]:
    if not step.is_of_device:
        other = _NO_PHASE if not world.evidence.supports(Figure.OTHER) else _WORDS["other"]
        return {**_WORDS, "other": other}
    known, unknown = step.forward_ms + step.backward_ms, step.unphased_compute_ms
    compute = _WORDS["compute"]
    if known <= 0:
        compute = "compute (phase not known)"
    elif unknown / step.step_ms >= _SHOWN:
        shares = f"{known / step.step_ms:.1%} forward and backward"
        compute = f"compute ({shares}, {unknown / step.step_ms:.1%} phase not known)"
    return {**_DEVICE_WORDS, "compute": compute}


def _ranks(world: WorldResult) -> str:
    ranks = counted(world.world_size, "rank")
    recorded_ranks = world.world_size - len(world.recording.missing_ranks)
    if not world.evidence.recorded.job_size:
        return f"an unknown number of ranks ({recorded_ranks} recorded)"
    return f"{ranks} ({recorded_ranks} recorded)" if world.recording.missing_ranks else ranks


def _headline(
    binding: Binding,
    step: MeanStep,
    words: Mapping[str, str],
    late: LateRank | SlowerRanks | None,
    ranks: str,
) -> str:
    """Returns a sentence on the late ranks, or on the largest part if there is no late rank."""
    (first, share), (second, other) = binding.largest
    if late is not None:
        largest = f"part is {words[first]}: {share:.1%}"
        if binding.part is None:
            largest = f"parts are {words[first]} ({share:.1%}) and {words[second]} ({other:.1%})"
        where = fell_behind(late.phase)
        if isinstance(late, SlowerRanks):
            delays, they = f"{late.named} delay the step", "they fall"
            spent = time_spent_for(late, binding.world_size, step)
        else:
            delays, they = f"rank {late.rank} delays the step", "it falls"
            spent = time_spent(late, binding.world_size, step)
        behind = f"{they} behind {where}, and " if where else ""
        return (
            f"At {ranks}, {delays}: {behind}{spent}. The mean step takes "
            f"{in_ms(step.step_ms)}; its largest {largest}."
        )
    if binding.part is not None:
        split = _split(binding) if first == "communication" else ""
        return (
            f"At {ranks} the step is bound by {words[first]}: {share:.1%} of the mean step of "
            f"{in_ms(step.step_ms)}{split}."
        )
    named = f"{words[first]} ({share:.1%}) and {words[second]} ({other:.1%})"
    if other >= _ABOUT_EQUAL * share:
        return f"At {ranks} the step is limited about equally by {named}."
    return (
        f"At {ranks} the largest parts of the step are {named}; the steps vary too much to say "
        "which of the two is larger."
    )


def _split(binding: Binding) -> str:
    known = sorted(binding.communication, key=lambda part: -part[1])
    listed = ", ".join(f"{share:.1%} {_WORDS[name]}" for name, share in known if share >= _SHOWN)
    return f" ({listed})" if listed else ""


def _larger(
    context: Mapping[str, Any], worlds: Sequence[WorldResult], world: WorldResult
) -> list[str]:
    found = []
    larger = [w.world_size for w in worlds if w.world_size > world.world_size]
    if larger:
        sizes = listed(larger)
        found.append(
            f"The verdict is about {counted(world.world_size, 'rank')}, the largest world size "
            f"with a core for each thread: {sizes} ranks run more threads than the "
            f"{_usable(context)}."
        )
    return found


def _usable(context: Mapping[str, Any]) -> str:
    return counted(usable_cores(context["machine"]), "usable core")


def _communication(world: WorldResult, step: MeanStep) -> list[str]:
    if not world.evidence.supports(Figure.EXPOSED):
        return []
    if not step.exposed_ms > 0:
        alone = "There is only one rank, so there is nothing to communicate."
        is_alone = world.world_size == 1 and world.evidence.recorded.job_size
        return [alone] if is_alone else []
    share = f"{step.share('communication'):.1%}"
    whose = "The GPU's compute stream" if world.recording.device_timed else "The training thread"
    text = f"{whose} waits for communication during {share} of the mean step"
    if any(rank.kernels is not None for rank in world.ranks):
        text = f"Nothing but communication runs during {share} of the mean step"
    if step.split_ms:
        text += (
            f": {step.share('waiting'):.1%} for the last rank, {step.share('transfer'):.1%} for "
            "the transfer"
        )
    text += (
        f". If communication took no time and all else stayed equal, a step would be at most "
        f"{share} ({in_ms(step.exposed_ms)}) shorter (upper bound)."
    )
    if step.hidden_ms > 0:
        text += f" Another {in_ms(step.hidden_ms)} of communication was hidden by other work."
    return [text]


def _sharded(world: WorldResult, step: MeanStep) -> list[str]:
    if world.communication.sharding is None or step.share("communication") < _WORTH_A_WORD:
        return []
    return [*filter(None, [world.communication.sharding.sentence(step.step_ms)])]


def _unseen_forward(world: WorldResult, binding: Binding) -> list[str]:
    known = world.recording.foreign or world.evidence.supports(Figure.OTHER)
    if known or "other" not in dict(binding.largest):
        return []
    return [
        "No forward pass was recorded. Without DDP or FSDP, the forward pass of a model counts as "
        '"other" unless `with prof.phase("forward")` marks it.'
    ]


def _late(world: WorldResult, step: MeanStep) -> list[str]:
    late, slower = world.lateness.late_rank, world.lateness.slower
    if slower is not None:
        return [f"{slower.told[0].upper()}{slower.told[1:]}."]
    if late is None:
        if not world.evidence.supports(Figure.NOBODY_LATE):
            return []
        return ["No single rank stands out as the one that the others wait for."]
    where = fell_behind(late.phase)
    who, several = who_waits(late.waiting_ranks, world.world_size)
    return [
        f"{who[0].upper()}{who[1:]} {'wait' if several else 'waits'} for rank {late.rank}"
        f"{', which falls behind ' + where if where else ''}: "
        f"{in_ms(ns_to_ms(late.wait_ns))} per step on each waiting rank, "
        f"which is {late.share:.0%} of all waiting."
    ]


def _in_the_phases(world: WorldResult) -> list[str]:
    found, grown = lines.sentences(world.lateness.longer_lines), world.lateness.grown_functions
    return found if grown is None else [*found, grown.sentence]


def _growth(result: RunResult, steps: Sequence[MeanStep], place: int) -> list[str]:
    """Compares the world size at ``place`` with the smallest one; empty for the smallest one."""
    worlds, scale = result.worlds, result.scaling[place]
    first = min(range(len(worlds)), key=lambda i: worlds[i].world_size)
    base, world = worlds[first], worlds[place]
    if place == first or math.isnan(scale.speedup):
        return []
    text = (
        f"From {base.world_size} to {counted(world.world_size, 'rank')} the throughput grew by a "
        f"factor of {scale.speedup:.2f}, {scale.efficiency:.0%} of the ideal."
    )
    ideal = {"weak": 1.0, "strong": base.world_size / world.world_size}.get(
        result.context.get("scaling", "")
    )
    if ideal is None:
        return [text]
    ideal_ms = ideal * steps[first].step_ms
    total = steps[place].step_ms - ideal_ms
    if total < _WORTH_A_WORD * ideal_ms:
        return [text]
    if not all(each.evidence.supports(Figure.EXPOSED) for each in (base, world)):
        return [text]
    now, before = _apart(steps[place], steps[first])
    more = {name: now[name] - ideal * before[name] for name in now}
    listed = [
        f"{'+' if ms > 0 else ''}{in_ms(ms)} {_SHORT.get(name, name)}"
        for name, ms in sorted(more.items(), key=lambda item: -item[1])
        if abs(ms) >= _WORTH_A_WORD * total
    ]
    return [f"{text} A step is {in_ms(total)} longer than with ideal scaling: {', '.join(listed)}."]


def _apart(*steps: MeanStep) -> list[dict[str, float]]:
    """Returns the parts of each mean step in ms, by name.

    If all steps separate waiting from transfer, these two replace "communication".
    """
    if not all(step.split_ms for step in steps):
        return [dict(step.parts_ms) for step in steps]
    return [
        {
            **{name: ms for name, ms in step.parts_ms.items() if name != "communication"},
            **step.split_ms,
        }
        for step in steps
    ]
