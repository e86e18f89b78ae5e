"""Reads a run directory: ``run.json``, and the ranks' results and traces of each world size."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from commprof.errors import CommprofError, TraceError
from commprof.files import Shape, checked, names_in, read_json
from commprof.invocation import quoted
from commprof.text import clauses
from commprof.trace.documents import MOST_RANKS
from commprof.trace.first_blocks import first_metadata_of
from commprof.trace.packed_data import PackedData
from commprof.trace.reader import Trace, read_trace
from commprof.trace.run.endings import (
    Endings,
    LaunchedAttempt,
    attempt_paths,
    holds_traces,
    last_attempt,
    launcher_problem,
    rank_problems,
    read_endings,
    why_not_recorded,
)
from commprof.trace.run.replicas import Replicas, replicas_of

if TYPE_CHECKING:
    from commprof.recordings.profiler import Recording


def read_result(path: Path) -> dict[str, Any]:
    """Reads a rank's result file; unknown keys are not checked.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not a result file; the message says what is wrong.
    """
    try:
        value: dict[str, Any] = checked(read_json(path), _ACCOUNT)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not value["losses"]:
        raise ValueError(f"{path}: losses is empty")
    if len(value["step_samples"]) != len(value["step_ns"]):
        raise ValueError(f"{path}: step_samples and step_ns have different lengths")
    return value


_ACCOUNT: Final[dict[str, Shape]] = {
    "step_ns": list[int],
    "step_samples": list[int],
    "losses": list[float],
    "average_loss": float,
    # For each step that measures commprof's overhead: state of the capture, and time in ns.
    "overhead": list[tuple[str, int]],
    # CPU time of the training thread in the same steps.
    "overhead_cpu_ns": list[int] | None,
    "record_cost_ns": float | None,
    "steps_per_epoch": int | None,
    "weights_crc32": int | None,
    "expected": list[dict[str, Any]] | None,
    "memory": dict | None,
}


RUN_FILE = "run.json"
#: File with the run's options, for ``commprof run --config``.
CONFIG_FILE = "config.yaml"
#: File with the last results of ``commprof predict``, for the run's page.
PREDICTIONS_FILE = "predictions.json"
_GIVE = (
    "give a directory that commprof recorded into, or traces of torch.profiler (a file, a folder "
    "or an archive); commprof report also reads Flight Recorder dumps"
)
#: Key of ``run.json`` for the directories of compared strategies.
STRATEGIES = "strategies"


@dataclass(frozen=True)
class WorldRun:
    """Files of one world size of a run.

    ``results`` and ``traces`` lack ranks that have no such file.
    """

    world_size: int
    directory: Path
    #: Result of the training loop, by rank.
    results: dict[int, dict[str, Any]]
    traces: dict[int, Trace]
    #: Sentences about unreadable files, and about ranks that were disturbed.
    problems: tuple[str, ...]
    #: Index of the last attempt; 0 without restarts.
    attempt: int = 0
    endings: Endings | None = None


def world_directory(run: Path, world_size: int) -> Path:
    """Returns the directory into which the ranks of one world size write."""
    return run / f"world_{world_size}"


def read_context(run: Path) -> dict[str, Any]:
    """Reads command, settings and machine of a run, from ``run.json`` or from traces alone.

    Raises:
        CommprofError: ``run`` is not a recording, or cannot be read.
    """
    try:
        return _context(run)
    except OSError as error:
        raise CommprofError(f"{quoted(run)} cannot be read: {error}") from None


def _context(run: Path) -> dict[str, Any]:
    other = other_recording(run)
    if other is not None:
        return other.context
    if not run.is_dir():
        _refuse_for_another_command(run)
        problem = "holds no recording" if run.exists() else "does not exist"
        raise CommprofError(f"{quoted(run)} {problem}; {_GIVE}")
    path = run / RUN_FILE
    try:
        os.stat(path)  # unlike Path.exists, raises OSError without permission
    except FileNotFoundError:
        return _context_of_traces(run)
    try:
        value = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise CommprofError(f"{quoted(path)} cannot be read: {error}") from None
    try:
        return _checked_context(value)
    except ValueError as error:
        raise CommprofError(f"{quoted(path)} was not written by commprof run: {error}") from None


def strategy_directories(run: Path) -> list[Path]:
    """Lists the directories of the strategies that a run compares.

    Raises:
        CommprofError: ``run`` is not a recording, or cannot be read.
    """
    names = read_context(run).get(STRATEGIES)
    named = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return [run / name for name in named if (run / name / RUN_FILE).exists()]


def read_world(run: Path, world_size: int) -> WorldRun:
    """Reads the files of one world size's last attempt; a missing rank is not an error."""
    other = other_recording(run)
    if other is not None:
        return WorldRun(other.world_size, run, {}, other.traces, other.problems)
    directory = traced_in(run, world_size)
    replicas = _replicas(run)
    if replicas is not None:
        joined = replicas.traces
        problems = [*clauses(_about_damage(joined), ": "), *rank_problems(list(joined.values()))]
        return WorldRun(world_size, run, {}, joined, tuple(problems))
    endings = read_endings(directory)
    attempts = attempt_paths(directory)
    number = max(attempts, default=0)
    launched = _launched(endings, number)
    results: dict[int, dict[str, Any]] = {}
    traces: dict[int, Trace] = {}
    failed: list[tuple[int, str, str]] = []
    packed = PackedData()
    paths, names = attempts.get(number, {}), set(names_in(directory))
    for rank in range(world_size):
        trace_path = paths.get(rank)
        result_name = f"rank_{rank}.json"
        try:
            if trace_path is not None:
                traces[rank] = read_trace(trace_path, packed)
        except (OSError, ValueError, TraceError) as error:
            failed.append(about_file(rank, str(error), trace_path or directory))
        try:
            if result_name in names and (directory / result_name).exists():
                results[rank] = read_result(directory / result_name)
        except (OSError, ValueError) as error:
            failed.append(about_file(rank, str(error), directory / result_name))
    problems = clauses([*failed, *_about_damage(traces)], ": ")
    problems += rank_problems(list(traces.values()), launched)
    return WorldRun(
        world_size=world_size,
        directory=directory,
        results=results,
        traces=traces,
        problems=tuple([*filter(None, [launcher_problem(endings)]), *problems]),
        attempt=number,
        endings=endings,
    )


def _about_damage(traces: Mapping[int, Trace]) -> list[tuple[int, str, str]]:
    return [
        about_file(rank, f"{problem} ({trace.path})", trace.path)
        for rank, trace in traces.items()
        for problem in trace.problems
    ]


def other_recording(path: Path) -> Recording | None:
    """Reads another profiler's recording at ``path``; None if there is none."""
    try:
        is_own = path.is_dir() and (
            (path / RUN_FILE).exists() or holds_traces(path) or other_jobs(path)
        )
        stamp = path.stat().st_mtime_ns
    except OSError:
        return None
    return None if is_own else _read_once(path, os.path.abspath(path), stamp)


def _refuse_for_another_command(path: Path) -> None:
    """Refuses a recording that only another command reads.

    Raises:
        CommprofError: there is such a command; the message names it.
    """
    from commprof.recordings.recognise import taken_elsewhere

    message = taken_elsewhere(path)
    if message:
        raise CommprofError(message)


@functools.lru_cache(maxsize=2)
def _read_once(path: Path, _place: str, _stamp: int) -> Recording | None:
    """Reads a recording; ``_place`` and ``_stamp`` are only keys of the cache."""
    from commprof.recordings.profiler import read_recording  # not needed for commprof's own runs

    return read_recording(path)


def trace_sources(run: Path, world_size: int) -> Mapping[int, Path | Trace]:
    """Lists the traces of one world size's last attempt, by rank.

    Traces of replicas are returned as objects, and other traces as paths.
    """
    replicas = _replicas(run)
    if replicas is not None and len(replicas.traces) == world_size:
        return replicas.traces
    paths = last_attempt(traced_in(run, world_size))
    return {rank: path for rank, path in paths.items() if rank < world_size}


def _replicas(run: Path) -> Replicas | None:
    """Reads replicas that separate launchers started; None for runs of ``commprof run``."""
    return None if (run / RUN_FILE).exists() else replicas_of(run)


def run_of(directory: Path, world_size: int) -> Path:
    """Returns the run directory that a world size's directory belongs to."""
    parent = directory.parent
    return parent if world_directory(parent, world_size) == directory else directory


def traced_in(run: Path, world_size: int) -> Path:
    """Returns the directory that holds the traces of one world size of a run."""
    directory = world_directory(run, world_size)
    return directory if directory.is_dir() else run  # else the traces are in ``run`` itself


def _launched(endings: Endings | None, number: int) -> LaunchedAttempt | None:
    of_attempt = [a for a in endings.attempts if a.attempt == number] if endings else []
    return of_attempt[-1] if of_attempt else None


def about_file(rank: int, text: str, path: Path) -> tuple[int, str, str]:
    """Returns a statement about a rank's file ``path``, for :func:`clauses`.

    In the form for several ranks, ``rank_3.`` in the name of the file, for example, becomes
    ``rank_N.``.
    """
    name = path.name.replace(f"rank_{rank}.", "rank_N.", 1)
    return rank, text, text.replace(str(path), str(path.with_name(name)))


def other_jobs(run: Path) -> list[Path]:
    """Lists the directories of further jobs that recorded into this directory, in order.

    Directories of the job's own replicas are left out.
    """
    patterns = ("job_*/rank_*.trace", "world_*/job_*/rank_*.trace")
    jobs = {trace.parent for pattern in patterns for trace in run.glob(pattern)}
    if jobs and (replicas := _replicas(run)) is not None:
        jobs -= {life.directory for life in replicas.lives}
    return sorted(jobs, key=lambda job: (len(str(job)), job))


def _context_of_traces(run: Path) -> dict[str, Any]:
    paths = list(last_attempt(run).values())
    if not paths and (jobs := other_jobs(run)):
        raise CommprofError(
            f"{quoted(run)} holds traces of several jobs in subdirectories; give one of them: "
            + ", ".join(map(quoted, jobs))
        )
    if not paths:
        os.listdir(run)  # raises OSError without permission
        _refuse_for_another_command(run)
        if why := why_not_recorded(run):
            raise CommprofError(f"{quoted(run)} holds no trace: {why}")
        raise CommprofError(
            f"{quoted(run)} holds neither {RUN_FILE} nor rank_N.trace nor traces of "
            f"torch.profiler; {_GIVE}"
        )
    metadata_of = _readable(paths)
    metadata = next(iter(metadata_of.values()))
    replicas = _replicas(run)
    if replicas is not None:
        metadata_of = {trace.path: trace.metadata for trace in replicas.traces.values()}
    sizes = {path: metadata["world_size"] for path, metadata in metadata_of.items()}
    if len(set(sizes.values())) > 1:
        raise CommprofError(
            f"{quoted(run)} holds traces of several jobs: "
            + ", ".join(f"{path.name} of {size} ranks" for path, size in sizes.items())
            + "; move the traces of each job into a directory of its own"
        )
    started = _date(metadata["clock"]["realtime_ns"])
    command = shlex.join(metadata["command"])
    return {
        "timestamp": started,
        "command": command,
        "commprof": metadata["commprof"],
        "torch": metadata["torch"],
        "capture": metadata["capture"],
        "description": f"Recorded by commprof: {command}",
        "backend": metadata["backend"],
        "threads_per_rank": metadata["threads"],
        "world_sizes": [next(iter(sizes.values()))],
        "machine": metadata["machine"],
        "errors": {},
        **({} if replicas is None else {"replicas": _lives(run, replicas)}),
    }


def _lives(run: Path, replicas: Replicas) -> list[dict[str, Any]]:
    """Describes each life of each replica, for reports and their JSON.

    Times count from the begin of the first life. ``ranks`` is empty if the world does not contain
    the life.
    """
    begin_s = min(life.begin_s for life in replicas.lives)
    by_path = {trace.path: rank for rank, trace in replicas.traces.items()}
    return [
        {
            "replica": life.replica,
            "label": life.label,
            "directory": os.path.relpath(life.directory, run),
            "ranks": [by_path[t.path] for t in life.traces.values() if t.path in by_path],
            "steps": life.steps,
            "begin_s": life.begin_s - begin_s,
            "end_s": life.end_s - begin_s,
            "ending": life.ending,
        }
        for life in replicas.lives
    ]


def _readable(paths: list[Path]) -> dict[Path, dict[str, Any]]:
    """Reads the metadata of all readable traces.

    Raises:
        TraceError, OSError: no trace can be read.
    """
    blocks = dict(zip(paths, first_metadata_of(paths), strict=True))
    readable = {path: block for path, block in blocks.items() if isinstance(block, dict)}
    if blocks and not readable:
        raise next(block for block in blocks.values() if isinstance(block, Exception))
    return readable


def _date(realtime_ns: int) -> str:
    try:
        date = datetime.fromtimestamp(realtime_ns / 1e9, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "unknown"
    return date.isoformat(timespec="seconds")


_RUN_FILE: Final[dict[str, Shape]] = {
    **dict.fromkeys(("timestamp", "description", "backend", "torch", "capture"), str),
    "threads_per_rank": int,
    "world_sizes": list[int],
    "machine": {"usable_cpu_count": int, "cpu_model": str},
    "errors": dict,
    # Optional.
    **dict.fromkeys(("command", "scaling", "strategy"), str | None),
    **dict.fromkeys(("nodes", "hosts"), int | None),
    **dict.fromkeys(("pinning", "training", "reproduction", "predicted"), dict | None),
}


_PREDICTED: Final[dict[str, Shape]] = {
    "run": str,
    "setting": str,
    "world_size": int,
    "step_ms": dict.fromkeys(("value", "low", "high"), float),
    "is_interval": bool,
}


def _checked_context(value: object) -> dict[str, Any]:
    """Checks the content of a ``run.json``, and leaves out optional keys that are null.

    Raises:
        ValueError: the content cannot be used.
    """
    found: dict[str, Any] = checked(value, _RUN_FILE)
    context = {key: item for key, item in found.items() if item is not None or key not in _RUN_FILE}
    if not all(1 <= size <= MOST_RANKS for size in context["world_sizes"]):
        raise ValueError(f"a number in world_sizes is not from 1 to {MOST_RANKS}")
    if context.get("predicted") is not None:
        checked(context["predicted"], _PREDICTED, "predicted")
    return context
