"""Computes the result of a run from its directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from commprof.analysis.causes.registry import named_causes
from commprof.analysis.collectives.kinds import SteplessCollectives, stepless_collectives
from commprof.analysis.collectives.nccl import NcclWorld, nccl_world
from commprof.analysis.cores import with_all_cpus
from commprof.analysis.detail import WorldDetail, world_detail
from commprof.analysis.evidence import Figure, evidence_of
from commprof.analysis.late.attempts import Attempt, attempts_of, attempts_remarks
from commprof.analysis.late.incidents import WatchedCalls, find_incidents
from commprof.analysis.loss_curves import loss_agreement
from commprof.analysis.remarks import remarks
from commprof.analysis.replicas import replicas_remarks
from commprof.analysis.scaling import RunResult, pool_overhead, scale
from commprof.analysis.step.measured import MeasuredWorld, in_turns, measured_world
from commprof.analysis.summaries import analyse_hosts, analyse_summaries
from commprof.analysis.world import WorldResult, world_result
from commprof.memory import return_free_memory, uncollected
from commprof.text import counted, listed
from commprof.trace.host_summary import SeenHost, running_hosts
from commprof.trace.run.endings import why_not_recorded
from commprof.trace.run.run_directory import (
    WorldRun,
    other_jobs,
    read_context,
    read_world,
    traced_in,
)

_MARK_STEPS = "Call commprof.step() at the end of each training iteration to see step times"


# Garbage collection would find nothing to free here, and would take a sixth of a report's time.
@uncollected()
def analyse_in_detail(
    directory: Path,
    read: Callable[[Path, int], WorldRun] = read_world,
    all_calls: bool = False,
    steps_only: bool = False,
) -> tuple[RunResult, tuple[WorldDetail, ...]]:
    """Analyses every world size that left traces, and reports the world sizes that failed.

    Args:
        directory: run directory of ``commprof run``, or the directory into which
            ``commprof.profile()`` wrote its traces.
        read: reads one world size of the run.
        all_calls: True to hold the calls of all steps in memory, even for a long run.
        steps_only: True to leave out what a comparison of steps does not need, such as remarks and
            causes; see :func:`world_result`.

    Returns:
        The result, and step-by-step figures of each of its ``worlds``.

    Raises:
        CommprofError: ``directory`` is not such a directory.
    """
    context = read_context(directory)
    worlds, details, failures, summaries, incidents = [], [], [], [], []
    stepless: list[SteplessCollectives] = []
    nccl: list[NcclWorld] = []
    attempts: list[Attempt] = []
    running: list[str] = []
    shared = False
    backends: set[str] = set()
    for world_size in context["world_sizes"]:
        hosts = running_hosts(traced_in(directory, world_size))
        live = analyse_hosts(hosts)
        if live is not None and live.world_size == world_size:
            # The files of a running job's hosts are enough: the traces are not read.
            summaries.append(live)
            running.append(_last_heard(hosts))
            untraced = WorldRun(world_size, traced_in(directory, world_size), {}, {}, ())
            incidents.append(find_incidents(untraced, None))
            continue
        running += [_is_missing(host) for host in hosts if host.missing]
        run = read(directory, world_size)
        backends |= {
            group.backend for trace in run.traces.values() for group in trace.groups.values()
        }
        if not {"workload", "script"} & context.keys():  # no launcher described this machine
            machine = with_all_cpus(context["machine"], run.traces.values())
            context = {**context, "machine": machine}
        if "replicas" not in context:  # otherwise restarts are reported per replica
            attempts += attempts_of(run)
        shared = shared or in_turns(run)
        summary = analyse_summaries(run)
        if summary is not None:
            summaries.append(summary)
        calls = WatchedCalls()
        seen = measured_world(run, None if steps_only else calls.add, all_calls)
        evidence = None if seen is None else evidence_of(seen)
        if not steps_only:
            incidents.append(find_incidents(run, seen, calls, evidence))
        return_free_memory()
        world = None if seen is None else world_result(run, seen, steps_only, evidence)
        without = None if steps_only else _stepless(run, seen)
        stepless += [without] if without is not None else []
        nccl += [] if steps_only else _of_nccl(run, seen)
        if seen is not None and world is not None and not _without_figures(world, run):
            if not (shared or steps_only):  # a trial's steps have different settings
                world = replace(world, named_causes=named_causes(context, world, seen))
            worlds.append(world)
            detail = world_detail(run, seen)
            details.append(_supported(detail, world))
        reason = context["errors"].get(str(world_size)) or (
            _without_figures(world, run) if summary is None else ""
        )
        if reason and without is not None:
            reason = f"{reason.rstrip('.')}. {_MARK_STEPS}"
        if reason:
            failures.append((world_size, _with_problems(reason, run, world)))
    # For a script, run.json names the backend that a built-in workload would use, which may differ
    # from the script's backend. Without run.json, the context names no backend if the job has no
    # default group.
    backends.discard("")
    if backends and ("script" in context or not context["backend"]):
        context = {**context, "backend": ", ".join(sorted(backends))}
    scaling = scale(worlds)
    pooled = pool_overhead(worlds)
    result = RunResult(
        context=context,
        worlds=tuple(worlds),
        scaling=scaling,
        overhead=pooled,
        failures=tuple(failures),
        remarks=()
        if steps_only
        else (
            *remarks(context, worlds, scaling, pooled, shared, summaries),
            *running,
            *_restarts(attempts),
            *replicas_remarks(context),
            *_further_jobs(directory),
        ),
        summaries=tuple(summaries),
        loss_agreement=loss_agreement(context, worlds),
        attempts=tuple(attempts),
        incidents=tuple(filter(None, incidents)),
        in_turns=shared,
        stepless=tuple(stepless),
        nccl=tuple(nccl),
    )
    return result, tuple(details)


def _last_heard(hosts: Sequence[SeenHost]) -> str:
    ages = [host.age_s for host in hosts]
    heard = f"{min(ages):.0f} to {max(ages):.0f} s ago"
    return (
        f"{counted(len(ages), 'host')} of the job wrote these figures {heard}. "
        "When the job has ended, the traces give more figures."
    )


def _is_missing(host: SeenHost) -> str:
    sentence = host.sentence()
    return f"{sentence[0].upper()}{sentence[1:]}. Therefore the figures come from the traces."


def _supported(detail: WorldDetail, world: WorldResult) -> WorldDetail:
    """Removes the figures that the recordings do not support."""
    if not world.evidence.supports(Figure.PARTS):
        return detail.unknown()
    return detail if world.evidence.supports(Figure.EXPOSED) else detail.unseen()


def _stepless(run: WorldRun, seen: MeasuredWorld | None) -> SteplessCollectives | None:
    if seen is None:
        return None
    found = seen.matching, seen.traces, seen.tables, seen.clocks_shared
    return stepless_collectives(run.world_size, *found)


def _of_nccl(run: WorldRun, seen: MeasuredWorld | None) -> list[NcclWorld]:
    if seen is None:
        return []
    found = nccl_world(run.world_size, seen.recorded, seen.traces, seen.clocks_shared)
    return [] if found is None else [found]


def _without_figures(world: WorldResult | None, run: WorldRun) -> str:
    """Returns why a world size has no figures; empty if it has figures."""
    if world is None:
        ended = run.endings is not None and all(
            attempt.ended and not attempt.exit_codes for attempt in run.endings.attempts[-1:]
        )
        recorded_nothing = "ran to its end, but no rank left a trace"
        return why_not_recorded(run.directory) or (
            recorded_nothing if ended else "did not run to its end"
        )
    if world.timing.measured_steps == 0:
        return "no step was recorded by all ranks"
    # Only damaged traces have steps of length 0.
    return "" if world.timing.step_median_ms > 0 < world.parts.step_ms else "its steps took no time"


def _with_problems(reason: str, run: WorldRun, world: WorldResult | None) -> str:
    if not _without_figures(world, run):
        return reason
    return ". ".join([reason.rstrip("."), *run.problems])


def _further_jobs(directory: Path) -> list[str]:
    jobs = other_jobs(directory)
    if not jobs:
        return []
    names = listed([str(job.relative_to(directory)) for job in jobs])
    return [
        f"The figures leave out the recordings in {names}, below this directory. These recordings "
        "come from another job, or from other processes of this job's ranks, such as processes for "
        "asynchronous checkpoints. Each of these directories has its own report."
    ]


def _restarts(attempts: list[Attempt]) -> list[str]:
    sizes = dict.fromkeys(each.world_size for each in attempts)
    return [
        text
        for size in sizes
        for text in attempts_remarks(tuple(a for a in attempts if a.world_size == size))
    ]
