"""What a report finds wrong with a run, less what the machine that runs the tests may cause."""

from __future__ import annotations

from commprof.analysis.world import WorldResult


def problems_of(world: WorldResult) -> list[str]:
    """Returns all but pauses: a shared host may stop this machine for a while."""
    return [problem for problem in world.problems if "did not run for" not in problem]
