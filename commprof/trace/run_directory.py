"""What a run leaves on disk: ``run.json``, and per world size the ranks' results and traces.

::

    RUN/run.json                   what was asked for, and where
    RUN/config.yaml                the same as options, to run it again
    RUN/world_4/rank_0.json        the training loop's own account of rank 0
    RUN/world_4/rank_0.trace       what capture recorded in rank 0

Of several strategies each has such a directory in RUN, and ``RUN/run.json`` names them.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commprof.errors import CommprofError, TraceError
from commprof.trace.reader import Trace, read_trace

RUN_FILE = "run.json"
#: What ``commprof run --config`` takes to repeat a run.
CONFIG_FILE = "config.yaml"
#: Key of ``run.json``: the directories of the strategies that were run side by side.
STRATEGIES = "strategies"
_CONTEXT_KEYS = {
    *("timestamp", "description", "backend", "torch", "capture", "threads_per_rank"),
    *("world_sizes", "machine", "errors"),
}


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


def read_context(run: Path) -> dict[str, Any]:
    """What was run and where: of a run directory, or of a directory of traces alone.

    Raises:
        CommprofError: ``run`` is neither.
    """
    path = run / RUN_FILE
    if not path.exists():
        return _context_of_traces(run)
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CommprofError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict) or _CONTEXT_KEYS - value.keys():
        raise CommprofError(f"{path} was not written by commprof run: it lacks keys of a run file")
    return value


def strategy_directories(run: Path) -> list[Path]:
    """Those of the strategies that were run side by side and left a run; of any other run none.

    Raises:
        CommprofError: ``run`` is no run directory.
    """
    names = read_context(run).get(STRATEGIES)
    named = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return [run / name for name in named if (run / name / RUN_FILE).exists()]


def read_world(run: Path, world_size: int) -> WorldRun:
    """Reads whatever the ranks of one world size left; never fails for a rank that is missing."""
    directory = world_directory(run, world_size)
    if not directory.is_dir():
        directory = run  # of traces alone
    results: dict[int, dict[str, Any]] = {}
    traces: dict[int, Trace] = {}
    problems: list[str] = []
    for rank in range(world_size):
        result_path = directory / f"rank_{rank}.json"
        trace_path = directory / f"rank_{rank}.trace"
        try:
            if trace_path.exists():
                traces[rank] = read_trace(trace_path)
                problems += _problems_of(rank, traces[rank])
            if result_path.exists():
                results[rank] = json.loads(result_path.read_text())
        except (OSError, ValueError, TraceError) as error:
            problems.append(f"rank {rank}: {error}")
    return WorldRun(world_size, directory, results, traces, tuple(problems))


def trace_paths(run: Path, world_size: int) -> dict[int, Path]:
    """The traces of one world size by rank, as far as there are any."""
    directory = world_directory(run, world_size)
    directory = directory if directory.is_dir() else run  # of traces alone
    paths = {rank: directory / f"rank_{rank}.trace" for rank in range(world_size)}
    return {rank: path for rank, path in paths.items() if path.exists()}


def _problems_of(rank: int, trace: Trace) -> list[str]:
    found = [f"rank {rank}: {problem} ({trace.path})" for problem in trace.problems]
    if not trace.complete:
        found.append(
            f"rank {rank} never closed its trace: it was killed or still runs; "
            "what it recorded until then is used"
        )
    return found


def other_jobs(run: Path) -> list[Path]:
    """Directories of further jobs that recorded into this one, in order."""
    patterns = ("job_*/rank_*.trace", "world_*/job_*/rank_*.trace")
    jobs = {trace.parent for pattern in patterns for trace in run.glob(pattern)}
    return sorted(jobs, key=lambda job: (len(str(job)), job))


def _context_of_traces(run: Path) -> dict[str, Any]:
    """The same keys as in ``run.json``, as far as traces know them."""
    paths = [path for path in sorted(run.glob("rank_*.trace")) if path.stem[5:].isdecimal()]
    if not paths and (jobs := other_jobs(run)):
        raise CommprofError(
            f"{run} holds no traces itself but those of several jobs; report one of them: "
            + ", ".join(map(str, jobs))
        )
    if not paths:
        raise CommprofError(
            f"{run} holds neither {RUN_FILE} nor rank_N.trace; give the directory that "
            "commprof run or commprof.profile() wrote to"
        )
    metadata = read_trace(paths[0]).metadata
    sizes = {path: read_trace(path).world_size for path in paths}
    if len(set(sizes.values())) > 1:
        raise CommprofError(
            f"{run} holds traces of several jobs: "
            + ", ".join(f"{path.name} of {size} ranks" for path, size in sizes.items())
            + "; move those of each job into a directory of its own"
        )
    started = datetime.fromtimestamp(metadata["clock"]["realtime_ns"] / 1e9, timezone.utc)
    command = shlex.join(metadata["command"])
    return {
        "timestamp": started.isoformat(timespec="seconds"),
        "command": command,
        "commprof": metadata["commprof"],
        "torch": metadata["torch"],
        "capture": metadata["capture"],
        "description": f"Recorded by commprof.profile() in {command}",
        "backend": metadata["backend"],
        "threads_per_rank": metadata["threads"],
        "world_sizes": [metadata["world_size"]],
        "machine": metadata["machine"],
        "errors": {},
    }
