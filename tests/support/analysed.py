from __future__ import annotations

from pathlib import Path

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.scaling import RunResult
from commprof.analysis.step.measured import measured_world
from commprof.analysis.world import WorldResult, world_result
from commprof.trace.run.run_directory import WorldRun


def analyse_run(directory: Path) -> RunResult:
    return analyse_in_detail(directory)[0]


def analyse_world(run: WorldRun) -> WorldResult | None:
    seen = measured_world(run)
    return None if seen is None else world_result(run, seen)


def problems_of(world: WorldResult) -> list[str]:
    """Returns all problems except pauses, because a shared host may pause this machine."""
    return [problem for problem in world.recording.problems if "did not run for" not in problem]
