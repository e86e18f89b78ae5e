"""From a run directory to its result."""

from __future__ import annotations

from pathlib import Path

from commprof.analysis.losses import loss_agreement
from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import RunResult, pool_overhead, scale
from commprof.analysis.summaries import analyse_summaries
from commprof.analysis.world import WorldResult, analyse_world
from commprof.trace.run_directory import read_context, read_world


def analyse_run(directory: Path) -> RunResult:
    """Analyses every world size that left traces, and names those that failed.

    Args:
        directory: of ``commprof run``, or where ``commprof.profile()`` wrote its traces.

    Raises:
        CommprofError: ``directory`` is neither.
    """
    context = read_context(directory)
    worlds, failures, summaries = [], [], []
    for world_size in context["world_sizes"]:
        run = read_world(directory, world_size)
        summary = analyse_summaries(run)
        if summary is not None:
            summaries.append(summary)
        world = analyse_world(run)
        if world is not None and world.measured_steps > 0:
            worlds.append(world)
        reason = context["errors"].get(str(world_size)) or (
            _without_figures(world) if summary is None else ""
        )
        if reason:
            failures.append((world_size, reason))
    scaling = scale(worlds)
    pooled = pool_overhead(worlds)
    return RunResult(
        context=context,
        worlds=tuple(worlds),
        scaling=scaling,
        overhead=pooled,
        failures=tuple(failures),
        remarks=remarks(context, worlds, scaling, pooled),
        summaries=tuple(summaries),
        loss_agreement=loss_agreement(context, worlds),
    )


def _without_figures(world: WorldResult | None) -> str:
    """Why a world size that reported no error has no figures; empty if it has."""
    if world is None:
        return "did not run to its end"
    return "" if world.measured_steps > 0 else "no step was recorded by all ranks"
