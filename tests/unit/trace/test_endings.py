from __future__ import annotations

import json
import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.late.attempts import Attempt, attempts_of, attempts_remarks
from commprof.capture.ending import error_line
from commprof.trace import ring
from commprof.trace.reader import Trace, read_trace
from commprof.trace.run.endings import (
    Endings,
    LaunchedAttempt,
    launcher_problem,
    rank_problems,
    read_endings,
)
from commprof.trace.run.processes import State, state_of
from commprof.trace.run.run_directory import read_context, read_world
from tests.support.builders import trace_bytes as made
from tests.support.builders.traces import MS, Rank

HERE = {
    "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    "pid_namespace": os.readlink("/proc/self/ns/pid"),
    "time_namespace": os.readlink("/proc/self/ns/time"),
}
START_NS = 5_000_000_000


def trace(tmp_path: Path, *blocks: bytes, pid: int = 7, **changes: Any) -> Trace:
    machine = {**made.metadata()["machine"], **changes.pop("machine", {})}
    clock = {"source": "CLOCK_MONOTONIC", "monotonic_ns": START_NS, "realtime_ns": 2, **changes}
    path = tmp_path / "rank_1.trace"
    path.write_bytes(made.trace(*blocks, pid=pid, machine=machine, clock=clock))
    return read_trace(path)


def more(**metadata: Any) -> bytes:
    return made.document(made.METADATA_BLOCK, metadata)


def gone_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (("2.13.0", "2.13.0+cpu", "2.13.0+cu126"), ""),
        (("2.13.0", "", "2.13.0"), ""),  # NCCL's plugin does not know torch's version
        (("2.13.0+cpu", "2.15.0", "2.15.0"), "(2.13.0 on rank 0; 2.15.0 on ranks 1, 2)"),
    ],
)
def test_ranks_of_different_versions_of_torch_are_named_in_one_sentence(
    tmp_path: Path, versions: tuple[str, ...], said: str
) -> None:
    traces = []
    for rank, version in enumerate(versions):
        path = tmp_path / f"rank_{rank}.trace"
        path.write_bytes(made.trace(made.end(), rank=rank, world_size=3, torch=version))
        traces.append(read_trace(path))
    problems = rank_problems(traces)
    assert len(problems) == bool(said)
    assert all(f"different versions of torch {said}, which" in text for text in problems)


def test_a_rank_that_ended_normally_has_no_problem(tmp_path: Path) -> None:
    assert rank_problems([trace(tmp_path, made.end())]) == []


def test_a_failed_rank_is_reported_with_its_exception_and_exit_code(tmp_path: Path) -> None:
    raised = more(ending={"error": "LookupError: a mistake"})
    attempt = LaunchedAttempt(0, 1, 2, {1: 1}, 0)
    (problem,) = rank_problems([trace(tmp_path, raised, made.end())], attempt)
    assert problem == (
        "rank 1 failed: it raised LookupError: a mistake; its process ended with exit code 1"
    )


@pytest.mark.parametrize(
    ("code", "kills", "words"),
    [
        (-9, 0, "its process was ended by SIGKILL;"),
        (-9, 2, "SIGKILL: out of memory (processes that the kernel killed in the launcher's"),
        (-9, 2, "launcher's cgroup: 2);"),
        (-11, 2, "its process was ended by SIGSEGV;"),
        (9, 0, "its process ended with exit code 9;"),
    ],
)
def test_the_signal_or_exit_code_seen_by_the_launcher_is_reported(
    tmp_path: Path, code: int, kills: int, words: str
) -> None:
    attempt = LaunchedAttempt(0, 1, 2, {1: code}, kills)
    (problem,) = rank_problems([trace(tmp_path)], attempt)
    assert problem.startswith("rank 1 never closed its trace: ")
    assert words in problem


def test_a_full_disk_and_pauses_of_a_rank_are_reported(tmp_path: Path) -> None:
    failed = {"errno": 28, "reason": "No space left on device", "monotonic_ns": START_NS + 10**9}
    pauses = {"count": 2, "total_ns": 3 * 10**9, "longest_ns": 2 * 10**9}
    pauses["longest_begin_ns"] = START_NS + 4 * 10**9
    disk, paused = rank_problems(
        [trace(tmp_path, more(write_failed=failed), more(pauses=pauses), made.end())]
    )
    assert disk == (
        "rank 1 could not write its trace 1.0 s after its start: No space left on device (errno 28)"
    )
    assert paused.startswith("rank 1 did not run for 3.0 s (2 times, the longest 4.0 s after its")


def test_a_pause_in_which_native_stacks_were_read_is_not_a_stranger_s(tmp_path: Path) -> None:
    """py-spy stops a process to read C++ frames."""
    pauses = {"count": 1, "total_ns": 10**9, "longest_ns": 10**9, "longest_begin_ns": START_NS}

    def told() -> str:
        (paused,) = rank_problems([trace(tmp_path, more(pauses=pauses), made.end())])
        return paused

    (tmp_path / "hang_1_rank_11.native.stack.txt").touch()
    assert ": its process was stopped (SIGSTOP, a debugger or a frozen cgroup), or its" in told()
    (tmp_path / "hang_1_rank_1.native.stack.txt").touch()
    assert ": its process was stopped (by py-spy, which read native stacks of a hang, or " in told()


def test_results_of_model_comparisons_are_reported(tmp_path: Path) -> None:
    found = {"every": 10, "checks": 4, "first_step": 19, "ranks": ["1", "3"]}
    (problem,) = rank_problems([trace(tmp_path, more(sync_checks=found), made.end())])
    said = (
        "model of ranks 1, 3 differed from the models of most other ranks; the first difference "
        "was found after step 19"
    )
    assert said in problem
    (well,) = rank_problems([trace(tmp_path, more(sync_checks={**found, "ranks": []}), made.end())])
    assert well == (
        "the models of all ranks were compared 4 times, every 10 steps: they are bit-identical"
    )
    once = {"every": 1, "checks": 1, "first_step": 0, "ranks": []}
    (text,) = rank_problems([trace(tmp_path, more(sync_checks=once), made.end())])
    assert "compared 1 time, every step:" in text


def test_state_of_distinguishes_running_stopped_gone_and_unknown_processes(tmp_path: Path) -> None:
    now = time.monotonic_ns()
    mine = trace(tmp_path, pid=os.getpid(), machine=HERE, monotonic_ns=now).metadata
    assert state_of(mine) is State.RUNS
    # A process that began after the trace is another process with the same pid.
    assert state_of({**mine, "clock": {"monotonic_ns": 1}}) is State.GONE
    assert state_of({**mine, "pid": gone_pid()}) is State.GONE
    assert state_of({**mine, "machine": {**HERE, "boot_id": "another"}}) is State.UNKNOWN
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(sleeper.pid, 19)
        os.waitpid(sleeper.pid, os.WUNTRACED)
        assert state_of({**mine, "pid": sleeper.pid, "clock": {"monotonic_ns": 2**62}}) is (
            State.STOPPED
        )
    finally:
        sleeper.kill()
        sleeper.wait()


def endings(*attempts: LaunchedAttempt, pid: int) -> Endings:
    launcher = {"pid": pid, "machine": HERE, "clock": {"monotonic_ns": time.monotonic_ns()}}
    return Endings(launcher, attempts)


def test_endings_are_unchanged_by_saving_and_reading(tmp_path: Path) -> None:
    written = endings(LaunchedAttempt(0, 1, 2, {1: -9}, 1), LaunchedAttempt(1, 3, 0, {}, 0), pid=1)
    written.save(tmp_path)
    assert read_endings(tmp_path) == written
    for broken in ("", "[]", '{"schema_version": 1}', "{" * 100_000):
        (tmp_path / "endings.json").write_text(broken)
        assert read_endings(tmp_path) is None


def test_a_killed_launcher_is_reported() -> None:
    running = LaunchedAttempt(0, 1, 0, {}, 0)
    assert launcher_problem(None) == ""
    assert launcher_problem(endings(LaunchedAttempt(0, 1, 2, {}, 0), pid=1)) == ""
    assert "was killed" in launcher_problem(endings(running, pid=gone_pid()))
    assert "still runs" in launcher_problem(endings(running, pid=os.getpid()))


def test_exceptions_are_described_in_one_line() -> None:
    assert error_line(None) == error_line(SystemExit(0)) == error_line(SystemExit()) == ""
    assert error_line(SystemExit(3)) == "SystemExit: 3"
    assert error_line(ValueError("one\ntwo")) == "ValueError: one"
    assert error_line(ValueError()) == "ValueError: "
    try:
        try:
            raise LookupError("the cause")
        except LookupError:
            raise SystemExit(1)  # noqa: B904  as torch's mp.spawn does
    except SystemExit as exit_:
        line = error_line(exit_)
    assert line == "LookupError: the cause"


def write_attempts(directory: Path, *attempts: tuple[int, int]) -> None:
    """``attempts`` are pairs of a begin in ms (-1: no records) and a number of 100 ms steps."""
    for attempt, (begin_ms, steps) in enumerate(attempts):
        for number in (0, 1):
            rank = Rank(number, 2)
            if begin_ms >= 0:
                rank.step_begin(begin_ms * MS)
            for step in range(steps):
                at = (begin_ms + 100 * step) * MS
                rank.step(at, at + 100 * MS)
            stem = f"rank_{number}" if attempt == 0 else f"rank_{number}.attempt_{attempt}"
            rank.write(directory / f"{stem}.trace")


@pytest.mark.parametrize(
    ("attempts", "lost"),
    [
        ([(0, 3), (900, 0), (1500, 2)], [1.2, None, None]),
        ([(0, 3), (-1, 0), (1500, 2)], [1.2, None, None]),
        ([(0, 0), (900, 0), (1500, 2), (2000, 1)], [1.5, None, 0.3, None]),
        ([(-1, 0), (900, 0), (1500, 2)], [None, 0.6, None]),
        ([(0, 3), (900, 0)], [None, None]),
    ],
)
def test_attempts_without_steps_count_as_lost_time(
    tmp_path: Path, attempts: list[tuple[int, int]], lost: list[float | None]
) -> None:
    write_attempts(tmp_path, *attempts)
    found = attempts_of(read_world(tmp_path, 2))
    assert [None if math.isnan(a.lost_s) else round(a.lost_s, 6) for a in found] == lost
    total = sum(filter(None, lost))
    said = f": for {f'{total:.1f} s' if total else 'an unknown time'} no step was trained."
    assert said in attempts_remarks(found)[0]


def test_a_restart_is_reported_with_both_attempts_and_the_lost_time(tmp_path: Path) -> None:
    write_attempts(tmp_path, (0, 3), (900, 2))
    endings(LaunchedAttempt(0, 1, 2, {1: -9}, 0), LaunchedAttempt(1, 3, 4, {}, 0), pid=1).save(
        tmp_path
    )
    run = read_world(tmp_path, 2)
    assert run.attempt == 1
    assert [path.path.name for path in run.traces.values()] == [
        "rank_0.attempt_1.trace",
        "rank_1.attempt_1.trace",
    ]
    first, second = attempts_of(run)
    assert (first.number, first.ranks, first.steps) == (0, 2, 3)
    assert first.ending == "rank 1: its process was ended by SIGKILL"
    assert first.duration_s == pytest.approx(0.3)
    assert first.lost_s == pytest.approx(0.6)
    assert (second.number, second.steps, second.ending) == (1, 2, "")
    (remark,) = attempts_remarks((first, second))
    assert "restarted once: for 0.6 s no step was trained" in remark


def test_an_attempt_without_traces_counts_as_a_restart() -> None:
    left = [Attempt(2, number, 2, 10, 1.0, math.nan, "") for number in (0, 2)]
    assert "the job was restarted 2 times: for" in attempts_remarks(tuple(left))[0]


def test_one_attempt_is_no_restart(tmp_path: Path) -> None:
    Rank(0, 1).write(tmp_path / "rank_0.trace")
    assert attempts_of(read_world(tmp_path, 1)) == ()
    assert attempts_remarks(()) == []


def test_an_empty_trace_does_not_prevent_reading_the_others(tmp_path: Path) -> None:
    (tmp_path / "rank_0.trace").touch()
    Rank(1, 2).write(tmp_path / "rank_1.trace")
    assert read_context(tmp_path)["world_sizes"] == [2]
    run = read_world(tmp_path, 2)
    assert list(run.traces) == [1]
    assert "only 0 bytes" in run.problems[0]


def test_what_holds_for_many_ranks_is_one_sentence(tmp_path: Path) -> None:
    for rank in range(299):
        path = tmp_path / f"rank_{rank}.trace"
        if rank < 128:
            path.write_bytes(made.trace(rank=rank, world_size=299, pid=rank + 7))
        else:
            path.touch()
    attempt = LaunchedAttempt(0, 1, 2, dict.fromkeys(range(100), -9), 0)
    endings(attempt, pid=1).save(tmp_path)
    empty, killed, unknown = read_world(tmp_path, 299).problems
    assert empty == (f"ranks 128-298: {tmp_path}/rank_N.trace: not a commprof trace (only 0 bytes)")
    assert killed == (
        "ranks 0-99 never closed their traces: their processes were ended by SIGKILL; the records "
        "in the traces are used"
    )
    assert unknown == (
        "ranks 100-127 never closed their traces: they were killed or still run; the records in "
        "the traces are used"
    )


def test_rings_of_dead_processes_without_a_trace_are_removed(tmp_path: Path) -> None:
    now = {"monotonic_ns": time.monotonic_ns()}
    pids = {"orphan": gone_pid(), "kept": gone_pid(), "alive": os.getpid()}
    (tmp_path / "kept.trace").touch()
    left = {}
    for name, pid in pids.items():
        prefix = f"{tmp_path}/commprof-{os.getuid()}-{pid}-{name}-"
        owner = {"trace": f"{tmp_path}/{name}.trace", "session": made.SESSION, "pid": pid}
        ring.owner_path(prefix).write_text(json.dumps({**owner, "machine": HERE, "clock": now}))
        left[name] = Path(f"{prefix}0.ring")
        left[name].write_bytes(made.ring({}))
    assert ring.remove_orphans(tmp_path) == 1
    assert {name: path.exists() for name, path in left.items()} == {
        **{"orphan": False, "kept": True, "alive": True}
    }
    assert len(list(tmp_path.glob("*-owner"))) == 2
