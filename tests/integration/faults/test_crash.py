from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from commprof import _native
from commprof.trace import columns
from commprof.trace.blocks import read_blocks
from commprof.trace.codes import BlockType
from commprof.trace.reader import Trace, read_trace, salvage
from commprof.trace.schema import RECORD_DTYPE, Kind
from tests.support.machines.faults.victims import (
    Ended,
    finish,
    rings_of,
    run_scenario,
    run_scenario_cold,
    start_scenario,
)

native_only = pytest.mark.skipif(_native.native is None, reason="needs the C++ module")
captures = pytest.mark.parametrize(
    "native",
    [pytest.param(True, id="native", marks=native_only), pytest.param(False, id="python")],
)


def trace_of(directory: Path, rank: int = 0) -> Trace:
    trace = read_trace(directory / f"rank_{rank}.trace")
    assert trace.problems == ()
    return trace


def boundaries(trace: Trace) -> list[int]:
    marks = trace.records[trace.records["kind"] == Kind.STEP]
    return [int(mark["op_id"]) for mark in marks if mark["aux"] == 1]


def same(one: Trace, other: Trace) -> bool:
    return bool(np.array_equal(one.records, other.records)) and one.groups == other.groups


def in_file(path: Path) -> int:
    blocks = read_blocks(path, path.read_bytes()).blocks
    kept = sum(len(block.payload) for block in blocks if block.type == BlockType.RECORDS)
    return kept // RECORD_DTYPE.itemsize


def salvaged(trace: Trace, ended: Ended) -> int:
    assert ended.rings() != []
    moved = salvage(trace.path)
    assert ended.rings() == []
    assert same(read_trace(trace.path), trace)
    assert salvage(trace.path) == 0
    return moved


@native_only
def test_a_killed_rank_loses_no_records(tmp_path: Path) -> None:
    survivor, victim = run_scenario("killed_by_itself", tmp_path, 2)

    assert victim.returncode == -signal.SIGKILL
    (counted,) = victim.said
    killed = trace_of(tmp_path, 1)
    assert not killed.complete
    assert killed.dropped == 0
    assert len(killed.records) == counted["records"]
    assert boundaries(killed) == list(range(counted["steps"]))
    assert len(columns.buckets(killed)) == 0
    assert len(columns.collectives(killed)) >= 5 * 2
    assert salvaged(killed, victim) > 0

    assert survivor.returncode == 1
    assert "Traceback" in survivor.stderr
    other = trace_of(tmp_path, 0)
    assert other.complete
    assert survivor.rings() == []
    assert len(boundaries(other)) >= 5
    assert [group.size for group in other.groups.values()] == [2]


@pytest.mark.slow
@native_only
def test_a_rank_killed_during_training_keeps_every_finished_step(tmp_path: Path) -> None:
    processes = start_scenario("killed_from_outside", tmp_path, 2)
    victim = processes[1]
    while victim.output().count("\n") < 30:
        assert victim.poll() is None
        time.sleep(0.01)
    victim.kill()
    survivor, killed = (finish(process) for process in processes)

    steps = [line["step"] for line in killed.said]
    trace = trace_of(tmp_path, 1)
    ended = boundaries(trace)
    # The kill may come between the end of a step and its output line.
    assert ended in (steps, [*steps, len(steps)])
    assert steps == list(range(len(steps)))
    salvaged(trace, killed)
    assert survivor.returncode == 1
    assert trace_of(tmp_path, 0).complete
    assert survivor.rings() == []


@pytest.mark.slow
@captures
@pytest.mark.parametrize(
    ("name", "returncode"),
    [("ends_with_exit", 3), ("ends_with_error", 1), ("ends_without_stop", 0)],
)
def test_a_process_that_exits_or_raises_closes_its_trace(
    tmp_path: Path, name: str, returncode: int, native: bool
) -> None:
    (ended,) = run_scenario(name, tmp_path, native=native)

    assert ended.returncode == returncode
    trace = trace_of(tmp_path)
    assert trace.complete
    assert boundaries(trace) == [0]
    assert ended.rings() == []
    assert ("LookupError: the user's own" in ended.stderr) == (name == "ends_with_error")


@pytest.mark.slow
@captures
def test_a_process_that_ends_by_os_exit_keeps_its_records(tmp_path: Path, native: bool) -> None:
    (ended,) = run_scenario("ends_at_once", tmp_path, native=native)

    assert ended.returncode == 4
    trace = trace_of(tmp_path)
    assert not trace.complete
    assert boundaries(trace) == list(range(100))
    if native:
        assert in_file(trace.path) + salvaged(trace, ended) == 101
    assert ended.rings() == []


@pytest.mark.slow
@native_only
def test_a_kill_in_the_second_profile_session_loses_no_records(tmp_path: Path) -> None:
    (ended,) = run_scenario("two_sessions", tmp_path)

    assert ended.returncode == -signal.SIGKILL
    first, second = trace_of(tmp_path / "first"), trace_of(tmp_path / "second")
    assert (first.complete, boundaries(first)) == (True, list(range(10)))
    assert (second.complete, boundaries(second)) == (False, list(range(20)))
    assert len(second.records) == ended.said[0]["records"] == 21
    assert in_file(second.path) + salvaged(second, ended) == 21


@pytest.mark.slow
@captures
def test_children_record_separately_and_leave_the_trace_of_the_parent_intact(
    tmp_path: Path, native: bool
) -> None:
    (ended,) = run_scenario("forks", tmp_path, native=native)

    assert ended.returncode == 0, ended.stderr
    (said,) = ended.said
    assert (said["seen"], said["status"]) == (12, 0)
    parent = trace_of(tmp_path / "parent")
    assert parent.complete
    # 12 samples in batches of 2 give 6 steps, and one step follows.
    assert boundaries(parent) == list(range(7))
    assert set(parent.records["thread"].tolist()) == {parent.metadata["main_thread"]}
    child = trace_of(tmp_path / "child")
    assert (child.complete, boundaries(child)) == (True, list(range(4)))
    assert child.metadata["pid"] != parent.metadata["pid"] == said["pid"]
    for method in ("fork", "spawn"):
        trace = trace_of(tmp_path / method)
        assert (trace.complete, boundaries(trace)) == (True, [0])
        assert rings_of(trace.metadata["pid"]) == []
    assert ended.rings() == rings_of(child.metadata["pid"]) == []


@pytest.mark.slow
@captures
def test_a_full_disk_does_not_disturb_training(tmp_path: Path, native: bool) -> None:
    ended = run_scenario_cold("disk_fills_up", tmp_path, native=native)

    assert ended.returncode == 0
    assert ended.said == [{"total": [10.0] * 4, "written": 11, "errno": 27}]
    trace = trace_of(tmp_path)
    assert boundaries(trace) == list(range(10))
    about = [line for line in ended.stderr.splitlines() if "cannot write" in line]
    assert len(about) == 1
    assert f"cannot write {trace.path}: File too large. Training goes on;" in about[0]
    # The closing block fits into the 100 bytes that are left.
    assert (trace.complete, trace.dropped) == (True, 10)
    assert ended.rings() == []


@pytest.mark.slow
@captures
def test_profile_refuses_unusable_directories_metadata_and_ranks_at_the_start(
    tmp_path: Path, native: bool
) -> None:
    ended = run_scenario_cold("refusals", tmp_path, native=native)

    assert ended.returncode == 0, ended.stderr
    messages = {line["name"]: line["message"] for line in ended.said}
    expected = {
        "taken": f"{tmp_path}/taken/rank_0.trace exists already; give this run a directory",
        "file": f"cannot make the directory {tmp_path}/file: File exists",
        "unknown": "profile(metadata=...) cannot be converted to JSON: Object of type object",
        "own key": "profile(metadata=...) cannot set rank: commprof writes that itself",
        "full": f"cannot record to {tmp_path}/full/rank_0.trace: ",
        "rank": "RANK=5 and WORLD_SIZE=1 in the environment are not a rank and a world size",
        "second": "capture already runs in this process",
        "read only": f"cannot write {tempfile.gettempdir()}/commprof-read-only-",
    }
    assert messages.keys() == expected.keys()
    for name, beginning in expected.items():
        assert messages[name].startswith(beginning), name
    assert "File too large" in messages["full"]
    assert messages["read only"].endswith("/rank_0.trace: Permission denied")
    assert (tmp_path / "taken/rank_0.trace").read_text() == "keep me"
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "second").exists()
    accepted = trace_of(tmp_path / "full")
    assert (accepted.complete, accepted.metadata["mine"]) == (True, 2)
    assert ended.rings() == []
