"""From a run directory to its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import RunResult, pool_overhead, scale
from commprof.analysis.world import analyse_world
from commprof.trace.run_directory import read_run_file, read_world


def analyse_run(directory: Path) -> RunResult:
    """Analyses every world size that a run finished, and names those that it did not.

    Raises:
        CommprofError: ``directory`` is no run directory.
    """
    context: dict[str, Any] = read_run_file(directory)
    worlds, failures = [], []
    for world_size in context["world_sizes"]:
        world = analyse_world(read_world(directory, world_size))
        error = context["errors"].get(str(world_size))
        if error is not None:
            failures.append((world_size, error))
        elif world is None:
            failures.append((world_size, "did not run"))
        if world is not None and world.measured_steps > 0:
            worlds.append(world)
    scaling = scale(worlds)
    pooled = pool_overhead(worlds)
    return RunResult(
        context=context,
        worlds=tuple(worlds),
        scaling=scaling,
        overhead=pooled,
        failures=tuple(failures),
        remarks=remarks(context, worlds, scaling, pooled),
    )
