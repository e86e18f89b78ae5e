"""How the ranks of a job ended: what the launcher saw of them, and what their traces say.

The launcher keeps ``endings.json`` beside the traces: one entry per attempt, with the exit code of
each rank that failed.

The traces of a job that was restarted: each attempt has its own, side by side.

``rank_3.trace`` is of the first attempt, ``rank_3.attempt_2.trace`` of the second restart.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commprof.errors import UsageError, ending_of_process
from commprof.files import read_json, replace_file
from commprof.trace.reader import Trace
from commprof.trace.run.processes import State, state_of
from commprof.units import ns_to_s

_RESTARTS = "TORCHELASTIC_RESTART_COUNT"

_NAME = re.compile(r"rank_(\d{1,9})(?:\.attempt_(\d{1,9}))?\.trace")


def rank_and_attempt(path: Path) -> tuple[int, int] | None:
    """Reads rank and attempt from the name of a trace; None for another file."""
    name = _NAME.fullmatch(path.name)
    return (int(name[1]), int(name[2] or 0)) if name else None


def attempt_paths(directory: Path) -> dict[int, dict[int, Path]]:
    """Traces by attempt, in order, and by rank."""
    found: dict[int, dict[int, Path]] = {}
    for path in directory.glob("rank_*.trace"):
        named = rank_and_attempt(path)
        if named is not None:
            found.setdefault(named[1], {})[named[0]] = path
    return {attempt: dict(sorted(found[attempt].items())) for attempt in sorted(found)}


def last_attempt(directory: Path) -> dict[int, Path]:
    """Traces by rank of the attempt that began last: what a report's figures are of."""
    attempts = attempt_paths(directory)
    return attempts[max(attempts)] if attempts else {}


def stem_of(rank: int, attempt: int) -> str:
    """First part of the names of a rank's files."""
    return f"rank_{rank}" if attempt == 0 else f"rank_{rank}.attempt_{attempt}"


def restart_count() -> int:
    """How often this process's launcher has restarted its ranks.

    Raises:
        UsageError: the variable that says so holds something else.
    """
    text = os.environ.get(_RESTARTS) or "0"
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(f"{_RESTARTS}={text!r} is no number of restarts (allowed: 0 or more)")
    return int(text)


ENDINGS_FILE = "endings.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class LaunchedAttempt:
    """One start of all ranks by a launcher."""

    #: From 0; each restart is one more.
    attempt: int
    #: CLOCK_MONOTONIC of the launcher's machine: before the ranks were started.
    begin_ns: int
    #: After the last was gone; 0 while they run, and where the launcher was killed.
    end_ns: int
    #: By rank that failed: exit code of its process, minus the signal's number if one ended it.
    exit_codes: Mapping[int, int]
    #: Processes that the kernel killed for memory in the launcher's cgroup meanwhile.
    oom_kills: int

    @property
    def ended(self) -> bool:
        """True if the launcher saw the end of the attempt."""
        return self.end_ns > 0


@dataclass(frozen=True)
class Endings:
    """What a launcher noted of one world size."""

    #: As in a trace's metadata: ``pid``, ``machine``, ``clock``.
    launcher: Mapping[str, Any]
    attempts: tuple[LaunchedAttempt, ...]

    def save(self, directory: Path) -> None:
        """Writes the file whole or not at all; raises OSError."""
        rows = [
            {**asdict(a), "exit_codes": {str(rank): code for rank, code in a.exit_codes.items()}}
            for a in self.attempts
        ]
        value = {"schema_version": _SCHEMA_VERSION, "launcher": self.launcher, "attempts": rows}
        replace_file(directory / ENDINGS_FILE, json.dumps(value, indent=1) + "\n")


def read_endings(directory: Path) -> Endings | None:
    """Reads what a launcher noted; None where there is nothing that can be read."""
    try:
        value = read_json(directory / ENDINGS_FILE)
        if value["schema_version"] != _SCHEMA_VERSION:
            return None
        attempts = tuple(_attempt(row) for row in value["attempts"])
        launcher = value["launcher"]
        int(launcher["pid"]), int(launcher["clock"]["monotonic_ns"])
        if not all(
            isinstance(launcher["machine"][key], str)
            for key in ("boot_id", "pid_namespace", "time_namespace")
        ):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Endings(launcher, attempts)


def _attempt(row: Any) -> LaunchedAttempt:
    return LaunchedAttempt(
        attempt=int(row["attempt"]),
        begin_ns=int(row["begin_ns"]),
        end_ns=int(row["end_ns"]),
        exit_codes={int(rank): int(code) for rank, code in row["exit_codes"].items()},
        oom_kills=int(row["oom_kills"]),
    )


def launcher_problem(endings: Endings | None) -> str:
    """Says what became of the launcher, if it did not end as it should; else empty."""
    if endings is None or not endings.attempts or endings.attempts[-1].ended:
        return ""
    pid = endings.launcher["pid"]
    state = state_of(endings.launcher)
    if state is State.GONE:
        return f"the launcher (process {pid}) was killed before its ranks had ended"
    if state is State.UNKNOWN:
        return "the launcher never wrote down that its ranks ended: it was killed or still runs"
    return (
        f"the launcher (process {pid}) {'is stopped' if state is State.STOPPED else 'still runs'}"
    )


def rank_problems(trace: Trace, launched: LaunchedAttempt | None = None) -> list[str]:
    """Says what disturbed one rank and how it ended; empty for one that was well."""
    found = [_ending(trace, launched), _full_disk(trace), _paused(trace), _in_sync(trace)]
    return [text for text in found if text]


def exit_text(code: int, oom_kills: int = 0) -> str:
    """Says how a process ended, from its exit code in a :class:`LaunchedAttempt`."""
    text = ending_of_process(code)
    if code == -signal.SIGKILL and oom_kills:
        text += f": the kernel, out of memory ({oom_kills} killed in the launcher's cgroup)"
    return text


def _ending(trace: Trace, launched: LaunchedAttempt | None) -> str:
    raised = str(trace.metadata.get("ending", {}).get("error", ""))
    code = None if launched is None else launched.exit_codes.get(trace.rank)
    seen = "" if code is None or not launched else exit_text(code, launched.oom_kills)
    if trace.complete:
        parts = [part for part in (raised and f"it raised {raised}", seen) if part]
        return f"rank {trace.rank} failed: {'; '.join(parts)}" if parts else ""
    return (
        f"rank {trace.rank} never closed its trace: {seen or _by_state(trace)}; "
        "what it recorded until then is used"
    )


def _by_state(trace: Trace) -> str:
    pid = trace.metadata["pid"]
    return {
        State.GONE: f"its process {pid} is gone, killed or ended by os._exit",
        State.STOPPED: f"its process {pid} is stopped (kill -CONT {pid} lets it go on)",
        State.RUNS: f"its process {pid} still runs",
        State.UNKNOWN: "it was killed or still runs",
    }[state_of(trace.metadata)]


def _full_disk(trace: Trace) -> str:
    failed = trace.metadata.get("write_failed")
    if not failed:
        return ""
    return (
        f"rank {trace.rank} could not write its trace {_since_start(trace, failed['monotonic_ns'])}"
        f": {failed['reason']} (errno {failed['errno']})"
    )


def _paused(trace: Trace) -> str:
    pauses = trace.metadata.get("pauses")
    if not pauses or not pauses["count"]:
        return ""
    count = pauses["count"]
    longest = f"the longest {_since_start(trace, pauses['longest_begin_ns'])}"
    where = longest if count > 1 else _since_start(trace, pauses["longest_begin_ns"])
    return (
        f"rank {trace.rank} did not run for {ns_to_s(pauses['total_ns']):.1f} s "
        f"({'once' if count == 1 else f'{count} times'}, {where}): its process was stopped "
        "(SIGSTOP, a debugger, a frozen cgroup), or its machine was"
    )


def _in_sync(trace: Trace) -> str:
    """Rank 0's comparisons of the ranks' models, see ``capture/sync_check.py``."""
    found = trace.metadata.get("sync_checks")
    if not found:
        return ""
    looked = f"{found['checks']} times, every {found['every']} steps"
    if not found["ranks"]:
        return f"the models of all ranks were compared {looked}: the same bits"
    ranks = ", ".join(found["ranks"])
    return (
        f"the model of rank {ranks} has had other bits than most since step {found['first_step']} "
        f"at the latest (compared {looked})"
    )


def _since_start(trace: Trace, at_ns: int) -> str:
    seconds = ns_to_s(at_ns - trace.metadata["clock"]["monotonic_ns"])
    return f"{max(seconds, 0.0):.1f} s after its start"
