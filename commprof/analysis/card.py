"""Computes a run's card: one screen on what limits the step's speed, and what to do next.

The verdict (:mod:`commprof.analysis.verdict`) judges one of the run's world sizes. The card's times
are means for this world size, over its ranks and over the steps that did not stall.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.cores import usable_cores
from commprof.analysis.detail import WorldDetail
from commprof.analysis.evidence import Figure
from commprof.analysis.exchange import SmallCalls
from commprof.analysis.findings import PYTHON_BRIEF, briefs, captured_in_python
from commprof.analysis.late.anomalies import STEP
from commprof.analysis.late.incidents import Incidents
from commprof.analysis.late.slower_ranks import SlowerRanks
from commprof.analysis.late.stragglers import LateRank, fell_behind
from commprof.analysis.loss_curves import CURVES_DISAGREE
from commprof.analysis.mean_step import MeanStep, mean_step
from commprof.analysis.next_step import NextStep
from commprof.analysis.replicas import times_started
from commprof.analysis.scaling import RunResult
from commprof.analysis.verdict import Verdict
from commprof.analysis.world import WorldResult
from commprof.field_groups import FieldGroup
from commprof.text import counted, listed
from commprof.units import ns_to_ms


@dataclass(frozen=True)
class CardPart:
    """One part of the mean step."""

    #: "data", "forward", "backward", "wait", "transfer", "exposed" (communication that is not split
    #: into "wait" and "transfer"), "optimizer" or "other". Parts of a device's time may also be
    #: "unphased_compute" (kernels of an unknown phase), "copies" or "idle".
    name: str
    ms: float
    #: Fraction of the mean step.
    share: float


@dataclass(frozen=True)
class CardRank:
    """The rank that the others wait for."""

    rank: int
    #: Where the rank falls behind, such as "in the forward phase"; empty if unknown.
    where: str
    #: Mean time per step that a waiting rank waits for this rank.
    wait_ms: float
    #: Fraction of all waiting.
    share: float
    late_steps: int
    measured_steps: int
    #: Probability that chance alone makes a rank cause so much waiting, see ``LateRank``.
    p_value: float


@dataclass(frozen=True)
class CardLink:
    """The network link between the hosts."""

    interfaces: tuple[str, ...]
    #: Bytes sent per host and measured step.
    step_bytes: float
    #: Rate of one host's outgoing link while a collective was in flight.
    in_flight_gbit_per_s: float
    #: Interfaces of every host that carried nearly nothing, and are not known to be rated slower
    #: than the interface in use.
    idle: tuple[str, ...]


@dataclass(frozen=True)
class CardSize:
    """Throughput and scaling of one world size; unknown figures are NaN."""

    world_size: int
    samples_per_s: float
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class CardCommunication(FieldGroup):
    """The mean step's communication, and how it is divided."""

    #: NaN if unknown. Then ``exposed_share``, ``best_step_ms``, and the times of hidden
    #: communication, waiting and transfer are also NaN.
    exposed_ms: float
    #: Fraction of the mean step; also an upper bound on the gain from faster communication.
    exposed_share: float
    #: Clause on why the exposed communication is unknown; empty if it is known.
    exposed_lacks: str
    #: Communication in flight while the ranks did other work.
    hidden_ms: float
    #: NaN if waiting and transfer are not separated. Then ``transfer_ms`` is also NaN.
    wait_ms: float
    transfer_ms: float
    #: Lower bound of the mean step: its length without exposed communication.
    best_step_ms: float


@dataclass(frozen=True)
class CardLateness(FieldGroup):
    """Whether a rank makes the others wait."""

    late: CardRank | None
    #: True if the recordings show that no rank is late.
    nobody_late: bool
    #: Clause on what the recordings lack to show that no rank is late; empty if they lack nothing.
    nobody_late_lacks: str
    slower: SlowerRanks | None


@dataclass(frozen=True)
class CardNextStep(FieldGroup):
    """What to do next."""

    #: Next action, in words; may be empty.
    advice: str
    #: Next command to type; empty if the advice is to change the script.
    command: str
    all_command: str
    #: Catalogue id of the cause that ``advice`` is about; empty if it is about no cause.
    cause: str = ""
    #: Lines of code that mend this cause; empty without a cause.
    fix: str = ""


@dataclass(frozen=True)
class Card:
    """A run's figures for one screen."""

    description: str
    #: Backend and version of torch; empty if neither is recorded.
    setup: str
    #: World size that the verdict judges.
    world_size: int
    #: Number of steps over which the times are means, without stalled steps.
    steps: int
    step_ms: float
    #: Sentences about a hang, about ranks that issued different collectives, or about a mistake
    #: that makes the result wrong; empty if nothing went wrong.
    incident: str
    verdict: str
    #: Parts in the order of a step, whose times add up to ``step_ms``; empty if not known.
    parts: tuple[CardPart, ...]
    communication: CardCommunication
    lateness: CardLateness
    small_calls: SmallCalls | None
    #: The link between hosts, if the transfer takes long enough to matter; None on one host.
    link: CardLink | None
    scaling: tuple[CardSize, ...]
    #: Caveats that can change the verdict, one sentence each, the most important first.
    caveats: tuple[str, ...]
    following: CardNextStep


def card(
    result: RunResult, details: Sequence[WorldDetail], verdict: Verdict | None, directory: Path
) -> Card | None:
    """Returns the card of a run.

    None if there is no verdict, or if a trial alternated settings during the run.

    Args:
        result: figures of the run.
        details: step-by-step figures of each world size, in the order of ``result.worlds``.
        verdict: the verdict on the same run.
        directory: run directory as the user types it.
    """
    if verdict is None or result.in_turns:
        return None
    found = zip(result.worlds, details, strict=True)
    world, detail = next(each for each in found if each[0].world_size == verdict.world_size)
    step = mean_step(detail)
    late, lacking = _late(world.lateness.late_rank), world.evidence.lacking(Figure.EXPOSED)
    run = invocation.quoted(directory)
    following = verdict.next_step
    advice, command = following.advice, following.command
    if not command and not following.fix:
        command = _command_to_inspect(run, late)
    apart = world.communication.apart is not None and world.communication.apart.advice
    incident, remedy = _incident(result.incidents, len(result.worlds) > 1)
    named = next((c for c in world.named_causes if c.id == following.cause), None)
    if named is not None and named.is_wrong and not incident and not apart:
        incident = f"Training gives a wrong result. {following.advice}"
    if not apart and any(_comes_first(of_size, named is not None) for of_size in result.incidents):
        following = NextStep("", "")
        advice = remedy or "First see what went wrong during the run:"
        command = invocation.command("report", run, "--all")
    split = step.split_ms if not lacking else {}
    return Card(
        description=str(result.context["description"]),
        setup=_setup(result.context),
        world_size=world.world_size,
        steps=len(step.by_step_ms),
        step_ms=step.step_ms,
        incident=incident,
        verdict=verdict.headline,
        parts=_parts(step) if world.evidence.supports(Figure.PARTS) else (),
        communication=CardCommunication(
            exposed_ms=math.nan if lacking else step.exposed_ms,
            exposed_share=math.nan if lacking else step.share("communication"),
            exposed_lacks=lacking,
            hidden_ms=math.nan if lacking else step.hidden_ms,
            wait_ms=split.get("waiting", math.nan),
            transfer_ms=split.get("transfer", math.nan),
            best_step_ms=math.nan if lacking else step.step_ms - step.exposed_ms,
        ),
        lateness=CardLateness(
            late=late,
            nobody_late=late is None
            and world.lateness.slower is None
            and world.evidence.supports(Figure.NOBODY_LATE),
            nobody_late_lacks=world.evidence.lacking(Figure.NOBODY_LATE),
            slower=world.lateness.slower,
        ),
        small_calls=verdict.exchange.small_calls,
        link=_link(verdict.exchange.link),
        scaling=tuple(
            CardSize(each.world_size, each.training.samples_per_s, scale.speedup, scale.efficiency)
            for each, scale in zip(result.worlds, result.scaling, strict=True)
        ),
        caveats=tuple(_caveats(result, world, step)),
        following=CardNextStep(
            advice=advice,
            command=command,
            all_command=invocation.command("report", run, "--all"),
            cause=following.cause,
            fix=following.fix,
        ),
    )


def _setup(context: Mapping[str, Any]) -> str:
    torch = str(context["torch"])
    version = f"torch {torch}" if torch not in ("", "unknown") else ""
    return ", ".join(filter(None, (str(context["backend"]), version)))


def _comes_first(of_size: Incidents, is_cause: bool) -> bool:
    """True if the user should look at incidents before following other advice.

    Advice about a cause from the catalogue (``is_cause``) comes before changes of speed, and before
    events that the watchdog reported.
    """
    if of_size.hangs or of_size.mismatches:
        return True
    if of_size.last_wait is not None and of_size.last_wait.hung:
        return True
    return bool(of_size.anomalies or of_size.events) and not is_cause


def _incident(incidents: Sequence[Incidents], several_sizes: bool) -> tuple[str, str]:
    """Returns a sentence on the run's first hang or mismatch, and what to do about it."""
    for of_size in incidents:
        size = f"At {counted(of_size.world_size, 'rank')}: " * several_sizes
        for mismatch in of_size.mismatches:
            hung = "The job hung. " if of_size.hangs else ""
            return f"{size}{hung}{mismatch.sentence}.", mismatch.remedy
        for hang in of_size.hangs:
            return f"{size}The job hung: {hang.sentence}.", ""
        if of_size.last_wait is not None:
            sentence = of_size.last_wait.sentence
            return f"{size}{sentence[:1].upper()}{sentence[1:]}.", (
                "Run the job again with --watchdog auto, which shows the stacks of the ranks that "
                "are waited for. This report shows the last steps:"
            )
    return "", ""


def _parts(step: MeanStep) -> tuple[CardPart, ...]:
    split = (
        (("wait", "waiting"), ("transfer", "transfer"), ("exposed", "unsplit"))
        if step.split_ms
        else ()
    )
    times = {"data": step.parts_ms["data"]}
    times |= {"forward": step.forward_ms, "backward": step.backward_ms}
    times |= {"unphased_compute": step.unphased_compute_ms} if step.is_of_device else {}
    times |= {name: step.split_ms[of] for name, of in split} or {"exposed": step.exposed_ms}
    own = ("optimizer", "other", "copies", "idle")
    times |= {name: step.parts_ms[name] for name in own if name in step.parts_ms}
    return tuple(CardPart(name, ms, ms / step.step_ms) for name, ms in times.items())


def _late(late: LateRank | None) -> CardRank | None:
    if late is None:
        return None
    return CardRank(
        rank=late.rank,
        where=fell_behind(late.phase),
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


def _command_to_inspect(run: str, late: CardRank | None) -> str:
    more = ("--format", "html") if late is not None else ("--all",)
    return invocation.command("report", run, *more)


def _caveats(result: RunResult, world: WorldResult, step: MeanStep) -> Iterator[str]:
    for of_size in result.incidents:
        # Of the changes found in one step, the change of the step's length comes last, because
        # another change may have caused it.
        order = sorted(
            (change for _, change in of_size.anomalies),
            key=lambda change: (change.found_step, change.what == STEP),
        )
        changes = [change.sentence for change in order]
        for sentence in [*changes, *(event.sentence for event in of_size.events)][:1]:
            size = counted(of_size.world_size, "rank")
            yield f"{sentence}." if len(result.worlds) == 1 else f"{size}: {sentence}."
    yield from _failed(result)
    told = briefs(result.context, world)
    yield from _told(told, "cores")
    larger = [each.world_size for each in result.worlds if each.world_size > world.world_size]
    if larger:
        cores = counted(usable_cores(result.context["machine"]), "usable core")
        yield f"Runs of {listed(larger)} ranks are not judged: they need more than the {cores}."
    yield from _told(told, "stalled_steps")
    if result.loss_agreement is not None and not result.loss_agreement.agrees:
        yield CURVES_DISAGREE
    yield from _told(told, "weights_differ")
    if started := times_started(result.context):
        yield started
    if result.attempts:
        yield f"The job was restarted: {counted(len(result.attempts), 'attempt')}."
    yield from _told(told, "missing_ranks", "clocks_not_compared", "unsplit")
    unseen = world.evidence.supports(Figure.PARTS) and not world.evidence.supports(Figure.OTHER)
    if unseen and not step.is_of_device:
        yield 'No forward pass was recorded, so its time counts as "other".'
    yield from _told(told, "failed_calls", "dropped_records")
    if captured_in_python(result.context):
        yield PYTHON_BRIEF
    if not world.evidence.steps_marked:
        yield "No step is marked: each round of collectives is a step, or a part of one."
    yield from _told(told, "few_steps")


def _told(told: Mapping[str, str], *kinds: str) -> Iterator[str]:
    return (told[kind] for kind in kinds if kind in told)


def _failed(result: RunResult) -> Iterator[str]:
    with_figures = {world.world_size for world in result.worlds}
    with_figures |= {summary.world_size for summary in result.summaries}
    for size, reason in result.failures:
        said = "The run failed at" if size in with_figures else "There are no figures for"
        yield f"{said} {counted(size, 'rank')}: {reason}"
