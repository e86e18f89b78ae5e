"""Describes how the ranks of a job ended.

The launcher keeps ``endings.json`` next to the traces: one entry per attempt, with the exit code of
each rank that failed.

Each restart of a job is a new attempt, with its own traces in the same directory. Attempts count
from 0: ``rank_3.trace`` belongs to attempt 0, and ``rank_3.attempt_2.trace`` to attempt 2.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commprof.errors import UsageError, ending_of_process
from commprof.files import names_in, read_json, replace_file
from commprof.text import clauses, counted, named_ranks
from commprof.trace.reader import Trace
from commprof.trace.run.processes import State, state_of
from commprof.units import ns_to_s

_RESTARTS = "TORCHELASTIC_RESTART_COUNT"

_NAME = re.compile(r"rank_(\d{1,9})(?:\.attempt_(\d{1,9}))?\.trace")


def rank_and_attempt(path: Path) -> tuple[int, int] | None:
    """Returns rank and attempt from the name of a trace; None for other names."""
    return _rank_and_attempt(path.name)


def _rank_and_attempt(name: str) -> tuple[int, int] | None:
    named = _NAME.fullmatch(name)
    return (int(named[1]), int(named[2] or 0)) if named else None


def holds_traces(directory: Path) -> bool:
    """True if a directory holds at least one trace."""
    return any(_rank_and_attempt(name) for name in names_in(directory))


def attempt_paths(directory: Path) -> dict[int, dict[int, Path]]:
    """Lists a directory's traces by attempt and by rank, both in order."""
    listed = _listed(directory, tuple(names_in(directory)))
    return {attempt: {**paths} for attempt, paths in listed.items()}


@functools.lru_cache(maxsize=4)
def _listed(directory: Path, names: tuple[str, ...]) -> dict[int, dict[int, Path]]:
    paths: dict[int, dict[int, Path]] = {}
    for name in names:
        named = _rank_and_attempt(name)
        if named is not None:
            rank, attempt = named
            paths.setdefault(attempt, {})[rank] = directory / name
    return {attempt: dict(sorted(paths[attempt].items())) for attempt in sorted(paths)}


def last_attempt(directory: Path) -> dict[int, Path]:
    """Lists the traces of the last attempt by rank."""
    attempts = attempt_paths(directory)
    return attempts[max(attempts)] if attempts else {}


def stem_of(rank: int, attempt: int) -> str:
    """Returns the common beginning of the names of a rank's files in one attempt."""
    return f"rank_{rank}" if attempt == 0 else f"rank_{rank}.attempt_{attempt}"


def restart_count() -> int:
    """Returns how often this process's launcher has restarted its ranks.

    Raises:
        UsageError: torchrun's variable TORCHELASTIC_RESTART_COUNT does not hold a number.
    """
    text = os.environ.get(_RESTARTS) or "0"
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(f"{_RESTARTS}={text!r} is not a number of restarts (allowed: 0 or more)")
    return int(text)


#: File with the reason why a process recorded nothing.
NOT_RECORDED_FILE = "not_recorded.txt"


def why_not_recorded(directory: Path) -> str:
    """Returns the text of the directory's ``NOT_RECORDED_FILE``; empty if there is no such file."""
    try:
        return (directory / NOT_RECORDED_FILE).read_text(errors="replace").strip()
    except OSError:
        return ""


ENDINGS_FILE = "endings.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class LaunchedAttempt:
    """One start of all ranks by a launcher."""

    #: Index of the attempt, from 0; each restart adds 1.
    attempt: int
    #: CLOCK_MONOTONIC of the launcher's machine before the ranks were started.
    begin_ns: int
    #: The same clock after all ranks had ended; 0 if ranks still run, or the launcher was killed.
    end_ns: int
    #: Exit code of each rank that failed, or minus the number of the signal that ended the rank.
    exit_codes: Mapping[int, int]
    #: Number of processes that the kernel's OOM killer ended in the launcher's cgroup during the
    #: attempt.
    oom_kills: int

    @property
    def ended(self) -> bool:
        """True if the launcher saw the end of the attempt."""
        return self.end_ns > 0


@dataclass(frozen=True)
class Endings:
    """A launcher's record of its attempts at one world size."""

    #: ``pid``, ``machine`` and ``clock`` of the launcher, as in a trace's metadata.
    launcher: Mapping[str, Any]
    attempts: tuple[LaunchedAttempt, ...]

    def save(self, directory: Path) -> None:
        """Writes the file completely or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        rows = [
            {**asdict(a), "exit_codes": {str(rank): code for rank, code in a.exit_codes.items()}}
            for a in self.attempts
        ]
        value = {"schema_version": _SCHEMA_VERSION, "launcher": self.launcher, "attempts": rows}
        replace_file(directory / ENDINGS_FILE, json.dumps(value, indent=1) + "\n")


def read_endings(directory: Path) -> Endings | None:
    """Reads a launcher's record of its attempts; None if there is no readable record."""
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
    """Returns a sentence on the launcher; empty if it saw its ranks end, or without a record."""
    if endings is None or not endings.attempts or endings.attempts[-1].ended:
        return ""
    pid = endings.launcher["pid"]
    state = state_of(endings.launcher)
    if state is State.GONE:
        return f"the launcher (process {pid}) was killed before its ranks had ended"
    if state is State.UNKNOWN:
        return "the launcher never recorded that its ranks ended: it was killed or still runs"
    return (
        f"the launcher (process {pid}) {'is stopped' if state is State.STOPPED else 'still runs'}"
    )


def rank_problems(traces: Sequence[Trace], launched: LaunchedAttempt | None = None) -> list[str]:
    """Returns sentences on ranks that were disturbed or did not end normally.

    Equal sentences on several ranks are joined. Sentences on the comparison of the models, and on
    different versions of torch, follow.
    """
    problems = [
        (trace.rank, *predicate)
        for trace in traces
        for predicate in (_ending(trace, launched), _full_disk(trace), _paused(trace))
        if predicate is not None
    ]
    return [*clauses(problems), *filter(None, map(_in_sync, traces)), *_versions_of_torch(traces)]


def _versions_of_torch(traces: Sequence[Trace]) -> list[str]:
    ranks: dict[str, list[int]] = {}
    for trace in traces:
        release = str(trace.metadata.get("torch") or "").partition("+")[0]
        if release:
            ranks.setdefault(release, []).append(trace.rank)
    if len(ranks) < 2:
        return []
    versions = "; ".join(f"{release} on {named_ranks(ranks[release])}" for release in sorted(ranks))
    return [
        f"the ranks ran different versions of torch ({versions}), which may divide gradients into "
        "different buckets and issue different collectives: install one version everywhere"
    ]


def exit_text(code: int, oom_kills: int = 0, of_several: bool = False) -> str:
    """Describes an exit code of one process, or of several processes.

    The text includes ``oom_kills`` if SIGKILL ended the process.
    """
    text = ending_of_process(code, of_several)
    if code == -signal.SIGKILL and oom_kills:
        text += (
            ": out of memory (processes that the kernel killed in the launcher's cgroup: "
            f"{oom_kills})"
        )
    return text


#: Predicate of a sentence about one rank, and its form for several ranks.
_Predicate = tuple[str, str]


def _ending(trace: Trace, launched: LaunchedAttempt | None) -> _Predicate | None:
    raised = str(trace.metadata.get("ending", {}).get("error", ""))
    code = None if launched is None else launched.exit_codes.get(trace.rank)
    seen, of_each = ("", "") if code is None or not launched else _exit_texts(code, launched)
    if trace.complete:
        parts = [part for part in (raised and f"it raised {raised}", seen) if part]
        of_all = [part for part in (raised and f"each raised {raised}", of_each) if part]
        return (f"failed: {'; '.join(parts)}", f"failed: {'; '.join(of_all)}") if parts else None
    alone, of_several = (seen, of_each) if seen else _by_state(trace)
    return (
        f"never closed its trace: {alone}; the records in the trace are used",
        f"never closed their traces: {of_several}; the records in the traces are used",
    )


def _exit_texts(code: int, launched: LaunchedAttempt) -> _Predicate:
    return exit_text(code, launched.oom_kills), exit_text(code, launched.oom_kills, True)


def _by_state(trace: Trace) -> _Predicate:
    pid = trace.metadata["pid"]
    return {
        State.GONE: (
            f"its process {pid} is gone (killed, or ended by os._exit)",
            "their processes are gone (killed, or ended by os._exit)",
        ),
        State.STOPPED: (
            f"its process {pid} is stopped (kill -CONT {pid} resumes it)",
            "their processes are stopped (kill -CONT resumes each)",
        ),
        State.RUNS: (f"its process {pid} still runs", "their processes still run"),
        State.UNKNOWN: ("it was killed or still runs", "they were killed or still run"),
    }[state_of(trace.metadata)]


def _full_disk(trace: Trace) -> _Predicate | None:
    failed = trace.metadata.get("write_failed")
    if not failed:
        return None
    why = f"{failed['reason']} (errno {failed['errno']})"
    since = _since_start(trace, failed["monotonic_ns"])
    of_several = since.replace("its start", "their starts")
    return (
        f"could not write its trace {since}: {why}",
        f"could not write their traces {of_several}: {why}",
    )


def _paused(trace: Trace) -> _Predicate | None:
    pauses = trace.metadata.get("pauses")
    if not pauses or not pauses["count"]:
        return None
    count = pauses["count"]
    longest = f"the longest {_since_start(trace, pauses['longest_begin_ns'])}"
    where = longest if count > 1 else _since_start(trace, pauses["longest_begin_ns"])
    paused = (
        f"did not run for {ns_to_s(pauses['total_ns']):.1f} s "
        f"({'once' if count == 1 else f'{count} times'}, {where})"
    )
    by = "SIGSTOP, a debugger or a frozen cgroup"
    if any(trace.path.parent.glob(f"hang_*_rank_{trace.rank}.native.stack.txt")):
        by = f"by py-spy, which read native stacks of a hang, or by {by}"
    return (
        f"{paused}: its process was stopped ({by}), or its machine was paused",
        f"{paused}: their processes were stopped ({by}), or their machines were paused",
    )


def _in_sync(trace: Trace) -> str:
    sync_checks = trace.metadata.get("sync_checks")
    if not sync_checks:
        return ""
    every = "every step" if sync_checks["every"] == 1 else f"every {sync_checks['every']} steps"
    looked = f"{counted(sync_checks['checks'], 'time')}, {every}"
    if not sync_checks["ranks"]:
        return f"the models of all ranks were compared {looked}: they are bit-identical"
    ranks = named_ranks([int(rank) for rank in sync_checks["ranks"]])
    return (
        f"the model of {ranks} differed from the models of most other ranks; the first difference "
        f"was found after step {sync_checks['first_step']} (compared bit by bit {looked})"
    )


def _since_start(trace: Trace, at_ns: int) -> str:
    seconds = ns_to_s(at_ns - trace.metadata["clock"]["monotonic_ns"])
    return f"{max(seconds, 0.0):.1f} s after its start"
