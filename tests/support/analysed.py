"""A run or a world size as figures in one call, and the problems that are not the machine's."""

from __future__ import annotations

from pathlib import Path

from commprof.analysis.align.measured import measured_world
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.scaling import RunResult
from commprof.analysis.world import WorldResult, world_result
from commprof.trace.run.run_directory import WorldRun


def analyse_run(directory: Path) -> RunResult:
    """Of a run directory."""
    return analyse_in_detail(directory)[0]


def analyse_world(run: WorldRun) -> WorldResult | None:
    """Of one world size; None if no rank left a trace."""
    seen = measured_world(run)
    return None if seen is None else world_result(run, seen)


def problems_of(world: WorldResult) -> list[str]:
    """Returns all but pauses: a shared host may stop this machine for a while."""
    return [problem for problem in world.problems if "did not run for" not in problem]
