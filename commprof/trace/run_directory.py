"""What a run leaves on disk: ``run.json``, and per world size the ranks' results and traces.

::

    RUN/run.json                   what was asked for, and where
    RUN/world_4/rank_0.json        the training loop's own account of rank 0
    RUN/world_4/rank_0.trace       what capture recorded in rank 0
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commprof.errors import CommprofError
from commprof.trace.reader import Trace, TraceError, read_trace

RUN_FILE = "run.json"


@dataclass(frozen=True)
class WorldRun:
    """One world size of a run; ranks that left nothing are missing from both maps."""

    world_size: int
    directory: Path
    #: By rank: the training loop's account.
    results: dict[int, dict[str, Any]]
    #: By rank.
    traces: dict[int, Trace]
    #: Files that could not be read, in sentences.
    problems: tuple[str, ...]


def world_directory(run: Path, world_size: int) -> Path:
    """Where the ranks of one world size write."""
    return run / f"world_{world_size}"


def read_run_file(run: Path) -> dict[str, Any]:
    """What was asked for and where.

    Raises:
        CommprofError: ``run`` is no run directory.
    """
    try:
        value = json.loads((run / RUN_FILE).read_text())
    except (OSError, ValueError) as error:
        raise CommprofError(
            f"{run} is not a run directory of commprof: {RUN_FILE}: {error}"
        ) from None
    if not isinstance(value, dict):
        raise CommprofError(f"{run / RUN_FILE} holds no JSON object")
    return value


def read_world(run: Path, world_size: int) -> WorldRun:
    """Reads whatever the ranks of one world size left; never fails for a rank that is missing."""
    directory = world_directory(run, world_size)
    results: dict[int, dict[str, Any]] = {}
    traces: dict[int, Trace] = {}
    problems: list[str] = []
    for rank in range(world_size):
        result_path = directory / f"rank_{rank}.json"
        trace_path = directory / f"rank_{rank}.trace"
        try:
            if result_path.exists():
                results[rank] = json.loads(result_path.read_text())
            if trace_path.exists():
                traces[rank] = read_trace(trace_path)
                problems += [f"{trace_path}: {p}" for p in traces[rank].problems]
        except (OSError, ValueError, TraceError) as error:
            problems.append(f"{trace_path.parent}: rank {rank}: {error}")
    return WorldRun(world_size, directory, results, traces, tuple(problems))
