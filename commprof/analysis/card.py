"""The figures of a run's card: what bounds the step, and what follows from it, for one screen.

All times are those of the world size that the verdict judges, as means over its ranks and over the
steps that did not stall. Only caveats that can change the verdict are among the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from commprof import invocation
from commprof.analysis.collectives.exchange import SmallCalls
from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.late.stragglers import LateRank, fell_behind
from commprof.analysis.remarks import FEW_STEPS
from commprof.analysis.scaling import RunResult
from commprof.analysis.step.cores import crowded, lacked_cores, no_core_share, usable_cores
from commprof.analysis.step.detail import WorldDetail
from commprof.analysis.step.mean_step import WORTH_A_LOOK, MeanStep, mean_step
from commprof.analysis.verdict import MOST_UNSPLIT, Verdict, nobody_is_late
from commprof.analysis.world import WorldResult
from commprof.text import counted, in_seconds, listed, named_ranks
from commprof.units import ns_to_ms


@dataclass(frozen=True)
class CardPart:
    """A part of the mean step."""

    #: "data", "forward", "backward", "wait", "wire", "exposed" (communication that is not split),
    #: "optimizer" or "other".
    name: str
    ms: float
    #: Of the mean step.
    share: float


@dataclass(frozen=True)
class CardRank:
    """The rank that the others wait for."""

    rank: int
    #: Where it falls behind, as the end of a sentence; empty where that is not known.
    where: str
    #: Mean waiting per step and waiting rank.
    wait_ms: float
    #: Of all waiting.
    share: float
    late_steps: int
    measured_steps: int
    #: Chance of such a concentration if lots named the late rank of each step.
    p_value: float


@dataclass(frozen=True)
class CardLink:
    """The way between hosts."""

    interfaces: tuple[str, ...]
    #: Per host and measured step.
    step_bytes: float
    #: Of one host's outgoing link while a collective was in flight.
    in_flight_gbit_per_s: float
    #: Interfaces of every host that carried nearly nothing and are rated no slower.
    idle: tuple[str, ...]


@dataclass(frozen=True)
class CardSize:
    """Throughput of one world size; NaN where it is not known or has no baseline."""

    world_size: int
    samples_per_s: float
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class Card:
    """What a run says on one screen."""

    description: str
    #: The one that the verdict judges.
    world_size: int
    #: Steps behind the times; those that stalled are not among them.
    steps: int
    step_ms: float
    #: One or two sentences.
    verdict: str
    #: In the order of a step; they add up to ``step_ms``.
    parts: tuple[CardPart, ...]
    exposed_ms: float
    #: Of the mean step; also an upper bound on what work on communication can win.
    exposed_share: float
    #: Communication that ran beside other work.
    hidden_ms: float
    #: NaN where waiting and transfer are not separated.
    wait_ms: float
    wire_ms: float
    #: The mean step if no communication were exposed and all else stayed: a lower bound.
    best_step_ms: float
    #: None if nobody is named.
    late: CardRank | None
    #: Without a late rank: whether enough is known to say that nobody stands out.
    nobody_late: bool
    small_calls: SmallCalls | None
    #: The way between hosts, where the transfer is worth a look; None on one host.
    link: CardLink | None
    scaling: tuple[CardSize, ...]
    #: What can change the verdict, a sentence each, the weightiest first.
    caveats: tuple[str, ...]
    #: What to do next; may be empty.
    advice: str
    #: What to type next.
    command: str
    #: What to type to see everything.
    all_command: str


def card(
    result: RunResult, details: Sequence[WorldDetail], verdict: Verdict | None, directory: Path
) -> Card | None:
    """The card of a run; None without figures, and of steps that a trial's candidates shared.

    Args:
        result: of the run.
        details: of the same world sizes.
        verdict: on the same run.
        directory: of the run, as it is to be typed.
    """
    if verdict is None or result.in_turns:
        return None
    found = zip(result.worlds, details, strict=True)
    world, detail = next(each for each in found if each[0].world_size == verdict.world_size)
    step = mean_step(detail)
    late = _late(world.late_rank)
    run = invocation.quoted(directory)
    advice, command = verdict.next_step.advice, verdict.next_step.command or _look(run, late)
    if result.incidents:
        advice = "First see what went wrong while it ran:"
        command = invocation.command("report", run, "--all")
    split = step.split_ms or {"waiting": math.nan, "wire": math.nan}
    return Card(
        description=str(result.context["description"]),
        world_size=world.world_size,
        steps=len(step.by_step_ms),
        step_ms=step.step_ms,
        verdict=verdict.headline,
        parts=_parts(step),
        exposed_ms=step.exposed_ms,
        exposed_share=step.share("communication"),
        hidden_ms=step.hidden_ms,
        wait_ms=split["waiting"],
        wire_ms=split["wire"],
        best_step_ms=step.step_ms - step.exposed_ms,
        late=late,
        nobody_late=nobody_is_late(world),
        small_calls=verdict.exchange.small_calls,
        link=_link(verdict.exchange.link),
        scaling=tuple(
            CardSize(each.world_size, each.samples_per_s, scale.speedup, scale.efficiency)
            for each, scale in zip(result.worlds, result.scaling, strict=True)
        ),
        caveats=tuple(_caveats(result, world, step)),
        advice=advice,
        command=command,
        all_command=invocation.command("report", run, "--all"),
    )


def _parts(step: MeanStep) -> tuple[CardPart, ...]:
    split = (("wait", "waiting"), ("wire", "wire"), ("exposed", "unsplit")) if step.split_ms else ()
    times = {"data": step.parts_ms["data"]}
    times |= {"forward": step.forward_ms, "backward": step.backward_ms}
    times |= {name: step.split_ms[of] for name, of in split} or {"exposed": step.exposed_ms}
    times |= {name: step.parts_ms[name] for name in ("optimizer", "other")}
    return tuple(CardPart(name, ms, ms / step.step_ms) for name, ms in times.items())


def _late(late: LateRank | None) -> CardRank | None:
    if late is None:
        return None
    return CardRank(
        rank=late.rank,
        where=fell_behind(late),
        wait_ms=ns_to_ms(late.wait_ns),
        share=late.share,
        late_steps=late.late_steps,
        measured_steps=late.measured_steps,
        p_value=late.p_value,
    )


def _link(links: HostLinks | None) -> CardLink | None:
    if links is None:
        return None
    return CardLink(links.interfaces, links.step_bytes, links.in_flight_gbit_per_s, links.idle)


def _look(run: str, late: CardRank | None) -> str:
    """Where no command measures what would help: what shows more of it."""
    more = ("--format", "html") if late is not None else ("--all",)
    return invocation.command("report", run, *more)


def _caveats(result: RunResult, world: WorldResult, step: MeanStep) -> Iterator[str]:
    if found := [each.world_size for each in result.incidents]:
        yield f"Hangs, ranks out of step or changes of level were seen at {counted(found, 'rank')}."
    for size, reason in result.failures:
        yield f"{counted(size, 'rank')} gave no figures: {reason}"
    if lacked_cores(world):
        share = f"{no_core_share(world):.0%}"
        yield f"Ranks waited for CPU cores in {share} of the exposed time."
    elif math.isnan(no_core_share(world)) and crowded(result.context, world):
        yield "More threads than cores; whether ranks waited for cores was not measured."
    elif crowded(result.context, world) and step.share("communication") < WORTH_A_LOOK:
        yield "More threads than cores: ranks may have waited for cores in their work too."
    larger = [each.world_size for each in result.worlds if each.world_size > world.world_size]
    if larger:
        cores = counted(usable_cores(result.context["machine"]), "usable core")
        yield f"Not judged: {listed(larger)} ranks, which run more threads than the {cores}."
    yield from _stalled(world)
    if result.loss_agreement is not None and not result.loss_agreement.agrees:
        yield "The world sizes did not train alike: their loss curves disagree."
    if world.weights_differ:
        yield f"Weights after training differ on {named_ranks(world.weights_differ)}."
    if result.attempts:
        yield f"The job was restarted: {counted(len(result.attempts), 'attempt')}."
    if world.missing_ranks:
        yield f"No usable trace came from {named_ranks(world.missing_ranks)}."
    if world.world_size > 1 and not world.clocks_shared:
        yield "The ranks' clocks cannot be compared: waiting and transfer are not separate."
    elif step.split_ms and step.split_ms["unsplit"] > MOST_UNSPLIT * step.exposed_ms:
        share = f"{step.split_ms['unsplit'] / step.exposed_ms:.0%}"
        yield f"{share} of the exposed time is in neither waiting nor transfer."
    if world.parts.forward_ms == 0:
        yield "No forward pass was seen: its time counts as other."
    if failed := sum(row.failed for row in world.collectives):
        yield f"{counted(failed, 'call')} of collectives ended with an error."
    if world.dropped_records:
        yield f"{world.dropped_records} records were dropped: communication may be too small."
    if result.context.get("capture") == "python":
        yield "Capture ran in pure Python: only the buckets of DDP were seen."
    if (steps := len(step.by_step_ms)) < FEW_STEPS:
        yield f"Only {counted(steps, 'measured step')}: more would make the verdict surer."


def _stalled(world: WorldResult) -> Iterator[str]:
    stalls = world.stalled_steps
    if stalls:
        (first, ms), rest = stalls[0], len(stalls) - 1
        more = f" and {rest} more" if rest else ""
        yield f"Left out, for it stalled: step {first} ({in_seconds(ms)}){more}."
