"""Analysis of a run or a world size in one call, without problems that the machine caused."""

from __future__ import annotations

from pathlib import Path

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.scaling import RunResult
from commprof.analysis.step.measured import measured_world
from commprof.analysis.world import WorldResult, world_result
from commprof.trace.run.run_directory import WorldRun


def analyse_run(directory: Path) -> RunResult:
    """Returns the figures of a run directory."""
    return analyse_in_detail(directory)[0]


def analyse_world(run: WorldRun) -> WorldResult | None:
    """Returns the figures of one world size; None if no rank left a trace."""
    seen = measured_world(run)
    return None if seen is None else world_result(run, seen)


def problems_of(world: WorldResult) -> list[str]:
    """Returns all problems except pauses: a shared host may stop this machine for a while."""
    return [problem for problem in world.recording.problems if "did not run for" not in problem]
