"""What a step is bound by, in plain words, from measured figures alone.

The part of the mean step that is largest names what binds it, if it is the largest in at least
95 % of bootstrap samples of the steps; otherwise nothing is named. It promises nothing of a change:
what that would bring has to be tried, and the verdict ends with the command that does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commprof.analysis.breakdown import Floats
from commprof.analysis.detail import WorldDetail
from commprof.analysis.intervals import resampled_means
from commprof.analysis.next_step import NextStep, next_step, shared_cores
from commprof.analysis.pauses import HOST_PAUSE
from commprof.analysis.scaling import RunResult, Scaling
from commprof.analysis.world import WorldResult
from commprof.units import ns_to_ms

#: How often the largest part must be the largest to be named.
_TOLD_APART = 0.95
#: A part of the growth of a step below this share is not worth a word.
_WORTH_A_WORD = 0.03

#: What a part is called in a sentence.
_WORDS = {
    "compute": "compute (forward and backward)",
    "waiting": "waiting for the last rank",
    "wire": "the wire, after the last rank had arrived",
    "communication": "communication, of which waiting and wire are not told apart",
    "unsplit": "communication of which the last rank is not known",
    "data": "loading data",
    "optimizer": "the optimizer",
    "other": "what no phase was declared for",
}


#: Parts that no other rank is needed for.
_OWN_WORK = ("compute", "data", "optimizer", "other")


@dataclass(frozen=True)
class Binding:
    """What one world size's step is bound by."""

    world_size: int
    #: "compute", "waiting", "wire", "communication" (waiting and wire not told apart),
    #: "unsplit" (what is in neither), "data", "optimizer" or "other"; None where two of them cannot
    #: be told apart.
    part: str | None
    #: The two largest parts and their shares of the mean step, the larger one first.
    largest: tuple[tuple[str, float], ...]
    #: All parts, the largest first.
    order: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """On a run; its sentences are about the largest world size with figures."""

    bindings: tuple[Binding, ...]
    #: One line.
    headline: str
    sentences: tuple[str, ...]
    next_step: NextStep


def verdict(result: RunResult, details: Sequence[WorldDetail]) -> Verdict | None:
    """None without figures."""
    if not result.worlds:
        return None
    bindings = tuple(_binding(detail) for detail in details)
    world, detail = result.worlds[-1], details[-1]
    sentences = [
        *_shared_cores(result.context, world),
        *_communication(world, detail),
        *_late(world),
        *_growth(result.context, result.worlds, result.scaling),
    ]
    own_work = _WORDS[next(name for name in bindings[-1].order if name in _OWN_WORK)]
    return Verdict(
        bindings,
        _headline(bindings[-1], world),
        tuple(sentences),
        next_step(result.context, world, own_work),
    )


def _parts_of(detail: WorldDetail) -> dict[str, Floats]:
    """Per step the mean over ranks; the parts add up to the step."""
    mean = {name: values.mean(axis=0) for name, values in detail.parts_ms.items()}
    parts = {"compute": mean["forward"] + mean["backward"]}
    known = {
        name: np.nan_to_num(detail.parts_ms[name], nan=0.0).mean(axis=0)
        for name in ("wait", "wire")
    }
    unsplit = np.maximum(0.0, mean["exposed"] - known["wait"] - known["wire"])
    if np.isnan(detail.parts_ms["wait"][detail.parts_ms["exposed"] > 0]).all():
        parts["communication"] = mean["exposed"]
    else:
        parts |= {"waiting": known["wait"], "wire": known["wire"], "unsplit": unsplit}
    return parts | {name: mean[name] for name in ("data", "optimizer", "other")}


def _binding(detail: WorldDetail) -> Binding:
    parts = _parts_of(detail)
    names, values = list(parts), np.stack(list(parts.values()), axis=1)
    means = values.mean(axis=0)
    order = np.argsort(-means, kind="stable")
    step = float(means.sum())
    largest = tuple((names[i], float(means[i]) / step) for i in order[:2].tolist())
    wins = float((np.argmax(resampled_means(values), axis=1) == order[0]).mean())
    part = largest[0][0] if wins >= _TOLD_APART else None
    return Binding(detail.world_size, part, largest, tuple(names[i] for i in order.tolist()))


def _headline(binding: Binding, world: WorldResult) -> str:
    ranks = _ranks(world.world_size)
    (first, share), (second, other) = binding.largest
    if binding.part is None:
        return (
            f"At {ranks} the step is bound by {_WORDS[first]} or by {_WORDS[second]}: {share:.0%} "
            f"and {other:.0%} of the mean step, which these steps do not tell apart."
        )
    return (
        f"At {ranks} the step is bound by {_WORDS[first]}: {share:.0%} of the mean step of "
        f"{_ms(world.parts.step_ms)}."
    )


def _shared_cores(context: Mapping[str, Any], world: WorldResult) -> list[str]:
    shared = shared_cores(context, world)
    if not shared:
        return []
    return [
        f"{shared[:-1]}, so each part, compute included, holds time in which a rank waited for a "
        "core."
    ]


def _communication(world: WorldResult, detail: WorldDetail) -> list[str]:
    parts = world.parts
    if world.world_size == 1 and not parts.exposed_ms > 0:
        return ["One rank alone: there is nothing to communicate."]
    share = parts.exposed_ms / parts.step_ms
    text = f"The training thread stood still for communication in {share:.1%} of the mean step"
    if not math.isnan(parts.wait_ms):
        text += (
            f": {parts.wait_ms / parts.step_ms:.1%} waiting for the last rank and "
            f"{parts.wire_ms / parts.step_ms:.1%} on the wire"
        )
    text += (
        ". If that vanished and nothing else changed, a step would be shorter by just that; "
        "nothing done to exposed communication alone can bring more."
    )
    if parts.hidden_ms > 0:
        text += f" Another {_ms(parts.hidden_ms)} of communication ran beside other work."
    return [text]


def _late(world: WorldResult) -> list[str]:
    late = world.late_rank
    if late is None:
        if world.world_size < 2 or math.isnan(world.parts.wait_ms):
            return []
        return ["No single rank stands out as the one that the others wait for."]
    where = f", where its {late.phase} phase falls behind" if late.phase else ""
    if late.phase == HOST_PAUSE:
        where = " because its process did not run (host pause)"
    return [
        f"The others wait for rank {late.rank}{where}: {_ms(ns_to_ms(late.wait_ns))} per step and "
        f"waiting rank, {late.share:.0%} of all waiting."
    ]


def _growth(
    context: Mapping[str, Any], worlds: Sequence[WorldResult], scaling: Sequence[Scaling]
) -> list[str]:
    """Throughput from the smallest to the largest world size, and what the loss is made of."""
    base, world, scale = worlds[0], worlds[-1], scaling[-1]
    if world is base or math.isnan(scale.speedup):
        return []
    text = (
        f"From {base.world_size} to {_ranks(world.world_size)} the throughput grew "
        f"{scale.speedup:.2f} times, {scale.efficiency:.0%} of the ideal."
    )
    ideal = {"weak": 1.0, "strong": base.world_size / world.world_size}.get(
        context.get("scaling", "")
    )
    if ideal is None:
        return [text]
    now, before = _named_parts(world), _named_parts(base)
    total = world.parts.step_ms - ideal * base.parts.step_ms
    if not total > 0 or now.keys() != before.keys():
        return [text]
    more = {name: now[name] - ideal * before[name] for name in now}
    shares = sorted(((ms / total, name) for name, ms in more.items()), reverse=True)
    listed = [f"{name} {share:.0%}" for share, name in shares if share >= _WORTH_A_WORD]
    return [f"{text} Of the {_ms(total)} that a step takes longer than ideal: {', '.join(listed)}."]


def _named_parts(world: WorldResult) -> dict[str, float]:
    parts = world.parts
    named = {
        "compute": parts.forward_ms + parts.backward_ms,
        "data": parts.data_ms,
        "optimizer": parts.optimizer_ms,
        "other": parts.other_ms,
    }
    if math.isnan(parts.wait_ms):
        return {**named, "communication": parts.exposed_ms}
    split = {"waiting": parts.wait_ms, "wire": parts.wire_ms, "unsplit": parts.unsplit_ms}
    return {**named, **split}


def _ranks(world_size: int) -> str:
    return f"{world_size} rank{'' if world_size == 1 else 's'}"


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if abs(value) >= 100 else f"{value:.3g} ms"
