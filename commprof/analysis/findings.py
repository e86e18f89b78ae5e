"""Facts that limit how far the figures of one world size can be trusted.

Each fact is defined once, with its figures and sentences, so that all outputs about a run show the
same figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from commprof.analysis.cores import crowded, lacked_cores, no_core_share
from commprof.analysis.evidence import no_trace_from, were_dropped
from commprof.analysis.step.breakdown import WORTH_A_LOOK
from commprof.analysis.step.waiting import NOT_SPLIT, is_split
from commprof.analysis.world import WorldResult
from commprof.text import counted, in_ms, in_seconds, listed, named_ranks, plural

#: With fewer measured steps than this, the spread of step times is hardly known.
FEW_STEPS = 10
#: Exposed time that is not split into waiting and transfer is mentioned only if it is more than
#: this fraction of all exposed time.
_WORTH_A_WORD = 0.005


@dataclass(frozen=True)
class RunFinding:
    """One fact on a run that a reader must know before relying on its figures."""

    #: Name of the fact, such as "dropped_records".
    kind: str
    world_size: int
    #: The fact's figures by name; names carry units. NaN if a figure was not measured.
    figures: Mapping[str, Any]
    #: Sentence for the card, shorter than a line; empty if the card does not mention the fact.
    brief: str
    #: Sentence for the list of caveats; empty if the fact is no caveat.
    caveat: str
    #: Sentence for the verdict on this world size; empty if the verdict does not mention the fact.
    verdict: str = ""


def findings(context: Mapping[str, Any], world: WorldResult) -> tuple[RunFinding, ...]:
    """Returns all findings on one world size of a run.

    ``context`` is the content of the run's ``run.json``.
    """
    return (
        *_weights_differ(world),
        *_cores(context, world),
        *_few_steps(world),
        *_stalled(world),
        *_sampled(world),
        *_missing_ranks(world),
        *_not_split(world),
        *_failed_calls(world),
        *_dropped_records(world),
    )


def briefs(context: Mapping[str, Any], world: WorldResult) -> Mapping[str, str]:
    """Returns the sentences for the run's summary card, by kind of finding."""
    return {fact.kind: fact.brief for fact in findings(context, world) if fact.brief}


def captured_in_python(context: Mapping[str, Any]) -> bool:
    """True if the whole run was captured without the native module."""
    return context.get("capture") == "python"


PYTHON_BRIEF = "Capture ran in pure Python: only the buckets of DDP were seen."
PYTHON_CAVEAT = (
    f"{PYTHON_BRIEF.rstrip('.')}, and no other collective. The DDP hook that pure-Python capture "
    "needs adds a pass over the gradients."
)


def _cores(context: Mapping[str, Any], world: WorldResult) -> Iterator[RunFinding]:
    share, is_crowded = no_core_share(world), crowded(context, world)
    if not (is_crowded or lacked_cores(world)):
        return
    brief = verdict = ""
    if lacked_cores(world):
        brief = f"Ranks waited for CPU cores during {share:.0%} of the exposed time."
        verdict = (
            f"Ranks waited for CPU cores: for {share:.1%} of the exposed time, they were ready to "
            "run but had no core. This figure leaves out the other parts of the step, where ranks "
            "may have waited for cores too."
        )
    elif math.isnan(share):
        brief = "More threads than cores; whether ranks waited for cores was not measured."
    # This is also true if the exposed time is NaN.
    elif not world.parts.exposed_ms >= WORTH_A_LOOK * world.parts.step_ms:
        brief = "More threads than cores: ranks may have waited for cores while they computed."
    elif "gloo" in context["backend"]:  # no count shows when gloo's threads had no core
        brief = "More threads than cores: gloo's threads may have waited for cores."
    caveat = (
        "Whether they waited for cores was not measured."
        if math.isnan(share)
        else f"At {_ranks(world)} the training thread had no core for {share:.0%} of its exposed "
        "time, although it was ready to run."
    )
    figures = {"no_core_share": share, "more_threads_than_cores": is_crowded}
    yield RunFinding(
        "cores", world.world_size, figures, brief, caveat if is_crowded else "", verdict
    )


def _few_steps(world: WorldResult) -> Iterator[RunFinding]:
    measured, stalled = world.timing.measured_steps, len(world.timing.stalled_steps)
    if measured - stalled >= FEW_STEPS:
        return
    brief = (
        f"Only {counted(measured - stalled, 'measured step')}: more would make the verdict surer."
    )
    few = f"Only {counted(measured, 'measured step')}; at least {FEW_STEPS} are needed."
    yield RunFinding(
        "few_steps",
        world.world_size,
        {"measured_steps": measured, "stalled_steps": stalled},
        brief if world.evidence.steps_marked else "",
        few if measured < FEW_STEPS else "",
    )


def _sampled(world: WorldResult) -> Iterator[RunFinding]:
    stretches = world.recording.sampled_steps
    if not stretches:
        return
    said = listed([f"{first} to {last}" for first, last in stretches])
    recording, measured = world.recording, world.timing.measured_steps
    rest = "Step times, their parts, waiting, the late rank and incidents come from all steps."
    if recording.left_out_steps:
        rest = (
            "Step times, their parts, waiting, the late rank and changes of speed come from "
            f"{measured:,} of {measured + recording.left_out_steps:,} measured steps, in stretches "
            f"that are spread evenly over the run: a step takes {in_ms(world.timing.step_mean_ms)} "
            f"on average in these stretches, and {in_ms(recording.mean_of_all_ms)} in all steps. "
            "Mismatched calls were looked for in all steps."
        )
    yield RunFinding(
        "sampled_steps",
        world.world_size,
        {
            "stretches": [list(stretch) for stretch in stretches],
            "left_out_steps": recording.left_out_steps,
            "mean_of_all_ms": recording.mean_of_all_ms,
        },
        "",
        f"The run at {_ranks(world)} is long, so tables of collectives, gains and causes come from "
        f"a sample: steps {said} of "
        f"{counted(measured + recording.left_out_steps, 'measured step')} (--all-calls uses all "
        f"steps). {rest}",
    )


def _stalled(world: WorldResult) -> Iterator[RunFinding]:
    stalls = world.timing.stalled_steps
    if not stalls:
        return
    waited_for = world.lateness.stalled_for
    whose = {step: f", waiting for rank {rank}" for step, rank in waited_for.items()}
    steps = [f"{step} ({in_seconds(ms)}{whose.get(step, '')})" for step, ms in stalls]
    more = f" and {len(stalls) - 1} more" if len(stalls) > 1 else ""
    which = "which is" if len(stalls) == 1 else "which are"
    yield RunFinding(
        "stalled_steps",
        world.world_size,
        {
            "steps": [
                {"step": step, "ms": ms, "waited_for": waited_for.get(step)} for step, ms in stalls
            ]
        },
        f"Left out of the verdict: stalled step {steps[0]}{more}.",
        f"Stalled at {_ranks(world)}: {plural(len(stalls), 'step')} {', '.join(steps)}, more than "
        "ten times the median. Means and samples/s include stalled steps; the verdict does not.",
        f"The verdict leaves out {', '.join(f'step {step}' for step in steps)}, {which} more than "
        "ten times as long as the median step: find out separately what happened then.",
    )


def _missing_ranks(world: WorldResult) -> Iterator[RunFinding]:
    missing = world.recording.missing_ranks
    if not missing:
        return
    fact = no_trace_from(missing)
    samples = "the number of samples is known for all ranks, because the training loop recorded it"
    caveat = f"At {_ranks(world)} {fact}: times are those of the other ranks; {samples}."
    if math.isnan(world.training.samples_per_s):
        caveat = (
            f"At {_ranks(world)} {fact}: times are those of the other ranks, and samples/s, "
            "speed-up and efficiency are not known."
        )
    figures = {"ranks": list(missing)}
    yield RunFinding("missing_ranks", world.world_size, figures, f"{fact.capitalize()}.", caveat)


def _not_split(world: WorldResult) -> Iterator[RunFinding]:
    parts, ranks, recording = world.parts, _ranks(world), world.recording
    if world.world_size > 1 and not recording.clocks_shared:
        # For recordings of other tools, ``recording.problems`` gives the reason.
        yield RunFinding(
            "clocks_not_compared",
            world.world_size,
            {},
            "The ranks' clocks cannot be compared: waiting and transfer are not separated.",
            ""
            if recording.foreign
            else f"At {ranks} the ranks ran on several machines, whose clocks were not compared: "
            "waiting and transfer cannot be separated.",
        )
    elif recording.clocks_shared and math.isnan(parts.wait_ms) and parts.exposed_ms >= 0:
        yield RunFinding(
            "not_split",
            world.world_size,
            {},
            "",
            f"At {ranks} some collectives were not seen on all ranks of their group: waiting and "
            "transfer cannot be separated.",
        )
    unsplit = parts.unsplit_ms / parts.exposed_ms if parts.exposed_ms else 0.0
    if not math.isnan(parts.wait_ms) and unsplit > _WORTH_A_WORD:
        much = recording.clocks_shared and not is_split(parts.exposed_ms, parts.unsplit_ms)
        yield RunFinding(
            "unsplit",
            world.world_size,
            {"unsplit_ms": parts.unsplit_ms, "share": unsplit},
            f"{unsplit:.0%} {NOT_SPLIT}." if much else "",
            f"At {ranks} {unsplit:.1%} {NOT_SPLIT}: it belongs to operations that were not "
            "recorded on all of their ranks, or to a recv from any source.",
        )


def _failed_calls(world: WorldResult) -> Iterator[RunFinding]:
    failed = [(row.kind.op, row.failed) for row in world.communication.collectives if row.failed]
    if world.recording.sampled_steps:  # the table of collectives lacks calls in such runs
        failed = list(world.recording.failed_calls)
    if not failed:
        return
    operations = list(dict.fromkeys(op for op, _ in failed))
    calls = sum(count for _, count in failed)
    fact = f"{counted(calls, 'collective call')} ended with an error"
    caveat = (
        f"At {_ranks(world)}, {fact} ({', '.join(operations)}). They count as exposed time, but "
        "are left out of all medians."
    )
    figures = {"calls": calls, "operations": operations}
    yield RunFinding("failed_calls", world.world_size, figures, f"{fact}.", caveat)


def _dropped_records(world: WorldResult) -> Iterator[RunFinding]:
    if dropped := world.recording.dropped_records:
        fact, meaning = f"{dropped} records were dropped", "communication times may be too small"
        yield RunFinding(
            "dropped_records",
            world.world_size,
            {"records": dropped},
            f"{fact}: {meaning}.",
            f"At {_ranks(world)} {dropped_records(dropped, meaning)}",
        )


def dropped_records(count: int, meaning: str) -> str:
    """Returns a sentence on dropped records; ``meaning`` says which figures may be wrong."""
    return f"{were_dropped(f'{count} records')}: {meaning}."


def _weights_differ(world: WorldResult) -> Iterator[RunFinding]:
    if ranks := world.training.weights_differ:
        yield RunFinding(
            "weights_differ",
            world.world_size,
            {"ranks": list(ranks)},
            f"Weights after training differ on {named_ranks(ranks)}.",
            f"At {world.world_size} ranks the weights of {named_ranks(ranks)} differ from the "
            "weights of the other ranks after training. All weights must be equal to the last bit: "
            "a synchronisation was left out, or the ranks trained differently.",
        )


def _ranks(world: WorldResult) -> str:
    return counted(world.world_size, "rank")
