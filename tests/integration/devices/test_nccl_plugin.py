from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from commprof.launched import launched_as
from commprof.trace import columns
from commprof.trace.ring import owner_path, remove_orphans
from tests.support.machines.core_tests import build
from tests.support.nccl_ring import analysed, largest_error, simulate
from tests.support.nccl_runs import (
    Times,
    differences,
    launched,
    of_unknown_size,
    play,
    played,
    recorded,
)

pytestmark = pytest.mark.timeout(1800)  # the first test builds the programs


@pytest.fixture(scope="module")
def player() -> Path:
    return build("", "test_nccl_plugin") / "test_nccl_plugin"


def run(
    player: Path, version: int, mode: str = "play", **environment: str
) -> subprocess.CompletedProcess[str]:
    return play(player, mode, version, **environment)


@pytest.mark.parametrize("version", [3, 4, 5, 6, 7])
def test_every_operation_with_its_times(player: Path, version: int, tmp_path: Path) -> None:
    place = {"RANK": "1", "WORLD_SIZE": "2"}
    done = run(player, version, COMMPROF_OUT=str(tmp_path / "run"), **place)
    trace, found = recorded(tmp_path / "run" / "rank_1.trace")
    expected = played(done.stdout)
    if version == 3:  # version 3 does not tell the size of a communicator
        expected = {of_unknown_size(operation): times for operation, times in expected.items()}
    assert differences(expected, found, on_gpu=version >= 4) == []
    assert (trace.complete, trace.dropped, trace.problems) == (True, 0, ())
    assert (trace.rank, trace.metadata["world_size"]) == (1, 2)
    names = {group.name: (group.description, group.rank) for group in trace.groups.values()}
    assert names["0000000000000abc"] == ("dp0", 1)
    replayed = Counter(o.op for o in found if o.group == "0000000000000abc replays")
    ten_of_each = {"all_reduce": 20, "reduce_scatter_tensor": 10}
    assert replayed == (ten_of_each if version >= 5 else {})


@pytest.mark.parametrize("version", [4, 6, 7])
def test_inside_capture_they_belong_to_its_operations(
    player: Path, version: int, tmp_path: Path
) -> None:
    done = run(player, version, "joined", COMMPROF_OUT=str(tmp_path), RANK="0", WORLD_SIZE="2")
    trace, found = launched(tmp_path / "rank_0.trace")
    expected = played(done.stdout)
    assert len(found) == len(expected) == 44
    issued = set(columns.collectives(trace).op_id.tolist())
    assert len(issued) == len({each.op_id for each in expected.values()} - {0}) + (
        0 if version > 4 else 8
    )
    for operation, truth in expected.items():
        row = found[operation.group, operation.op, operation.peer, operation.seq]
        if truth.op_id:
            assert row.op_id == truth.op_id, operation
        else:
            assert row.op_id not in issued, operation
        assert (row.replay, row.channels) == (truth.replay, truth.channels), operation
        size = min(operation.bytes_in, operation.bytes_out) or operation.bytes_in
        assert row.size_bytes == (size or operation.bytes_out)
        message = operation.op in ("send", "recv")
        assert row.tuning == (("", "") if message else ("RING", "SIMPLE"))
        if truth.ran.end_ns == 0:
            assert row.times.begin_ns == row.times.end_ns
            continue
        assert row.on_gpu
        assert truth.ran.begin_ns <= row.times.begin_ns <= truth.told.begin_ns
        assert truth.ran.end_ns <= row.times.end_ns <= truth.told.end_ns
        assert 0 <= row.spread_ns <= row.times.end_ns - row.times.begin_ns
        assert (row.spread_ns > 0) == (truth.channels > 1) or message
    assert {c.label for c in trace.communicators.values()} == {"dp0"}
    assert not trace.groups


def report(run_directory: Path, *options: str) -> str:
    command = [sys.executable, "-m", "commprof", "report", str(run_directory), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_report_reads_the_run(player: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for rank in ("0", "1"):
        run(player, 6, COMMPROF_OUT=str(out), RANK=rank, WORLD_SIZE="2")
    shown = report(out)
    rows = {tuple(line.split()[:6]) for line in shown.splitlines()}
    assert ("all_reduce", "dp0", "replays", "(2)", "Float", "26.2") in rows
    assert ("reduce", "dp0", "(2)", "Double", "0.0008", "1") in rows
    assert "backend nccl, recorded by commprof's plugin of NCCL, " in shown
    assert "Collectives of 2 ranks in a job without steps, sorted by time in flight:" in shown
    (without,) = json.loads(report(out, "--format", "json"))["stepless"]
    assert {row["exposed_ms"] for row in without["collectives"]} == {None}
    assert all(row["duration"]["median_ms"] > 0 for row in without["collectives"])
    assert "Inside NCCL, 2 ranks:" in shown
    (inside,) = json.loads(report(out, "--format", "json"))["nccl"]
    (reduced,) = [row for row in inside["rows"] if row["op"] == "all_reduce"]
    # Each of two ranks made 6 calls and 20 replays; one replay has no recorded end.
    assert (reduced["operations"], reduced["replayed"], inside["replays"]) == (52, 40, 10)
    assert (reduced["algorithm"], reduced["protocol"]) == ("RING", "SIMPLE")
    assert (reduced["channels"], reduced["size_bytes"]) == ([4, 4], [26_214_400] * 2)
    assert reduced["phases"] == []
    assert reduced["transfer_ms"] > 0 <= reduced["wait_by_kernels_ms"]
    assert inside["waits"]["collectives"] == 38
    assert inside["links"] == []


def test_a_slow_link_is_named_by_its_ends_and_each_part_of_a_transfer_is_known(
    tmp_path: Path,
) -> None:
    ring = build("", "test_nccl_network") / "test_nccl_network"
    truth = simulate(ring, tmp_path, ranks=6, seed=1, slow=4)
    found = analysed(tmp_path)
    assert largest_error(truth, found) < 0.01
    slow = [(link.from_rank, link.to_rank) for link in found.links if link.slow]
    assert slow == [("4", "5")]
    shown = " ".join(report(tmp_path).split())
    assert "The link from rank 4 to rank 5 is slow: a byte takes 4" in shown
    assert "name the same last rank in 12 of 12 collectives" in shown


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "COMMPROF_OUT is not set; set it to a directory for the traces"),
        (
            {"COMMPROF_OUT": "{run}", "RANK": "0", "WORLD_SIZE": "2"},
            "{run}/rank_0.trace exists already, from an earlier run or from commprof's own "
            "capture; give the plugin an empty directory as COMMPROF_OUT",
        ),
    ],
)
def test_what_it_cannot_do_switches_it_off_with_one_line(
    player: Path, tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    (tmp_path / "rank_0.trace").write_text("of another run")
    given = {name: value.format(run=tmp_path) for name, value in environment.items()}
    done = run(player, 6, **given)
    said = f"commprof: NCCL is not recorded: {reason.format(run=tmp_path)}\n"
    assert done.stderr == said
    assert [path.name for path in tmp_path.iterdir()] == ["rank_0.trace"]
    assert (tmp_path / "rank_0.trace").read_text() == "of another run"


@pytest.mark.parametrize(
    "launcher",
    [
        {},  # without a launcher, the first communicator gives the rank
        {"RANK": "1", "WORLD_SIZE": "4", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
        {"RANK": "4", "WORLD_SIZE": "4", "PMI_RANK": "3", "PMI_SIZE": "8"},
        {
            **{"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        },
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
        {"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
        {
            **{"SLURM_STEP_ID": "7", "SLURM_PROCID": "5", "SLURM_NTASKS": "2"},
            "SLURM_STEP_NUM_TASKS": "6",
        },
    ],
)
def test_the_rank_is_that_of_all_commands(
    player: Path, tmp_path: Path, launcher: dict[str, str]
) -> None:
    run(player, 6, COMMPROF_OUT=str(tmp_path), **launcher)
    (path,) = tmp_path.iterdir()
    trace, _ = recorded(path)
    place = launched_as(launcher)
    expected = (0, 2) if place is None else (place.rank, place.world_size)
    assert (trace.rank, trace.metadata["world_size"]) == expected
    assert path.name == f"rank_{expected[0]}.trace"


def test_a_plugin_that_nccl_has_closed_still_writes_its_trace(player: Path, tmp_path: Path) -> None:
    build("", "nccl-profiler-commprof")
    plugin = player.parent / "libnccl-profiler-commprof.so"
    place = {"RANK": "0", "WORLD_SIZE": "2"}
    done = play(player, "loaded", plugin, 6, COMMPROF_OUT=str(tmp_path), **place)
    trace, found = recorded(tmp_path / "rank_0.trace")
    assert differences(played(done.stdout), found, on_gpu=True) == []
    assert (trace.complete, trace.problems) == (True, ())


def test_a_killed_process_leaves_all_its_calls(player: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    place = {"RANK": "0", "WORLD_SIZE": "2"}
    killed = play(player, "play", 6, "kill", check=False, COMMPROF_OUT=str(out), **place)
    assert killed.returncode == -signal.SIGKILL
    trace, found = recorded(out / "rank_0.trace")
    expected = played(killed.stdout)
    # The times of one message were not known yet when the process was killed.
    unsettled = {operation for operation in expected if operation.bytes_in == 12288}
    assert (found.keys(), len(unsettled)) == (expected.keys(), 1)
    settled = {o: times for o, times in expected.items() if o not in unsettled}
    assert differences(settled, {o: found[o] for o in settled}, on_gpu=True) == []
    assert all(found[operation] == Times(0, 0) for operation in unsettled)

    prefix = trace.metadata["ring_prefix"]
    assert owner_path(prefix).exists()
    (out / "rank_0.trace").unlink()
    remove_orphans()
    assert list(Path("/dev/shm").glob(f"{Path(prefix).name}*")) == []


def test_a_process_that_ends_leaves_no_rings(player: Path, tmp_path: Path) -> None:
    run(player, 6, COMMPROF_OUT=str(tmp_path))
    trace, _ = recorded(tmp_path / "rank_0.trace")
    assert list(Path("/dev/shm").glob(f"{Path(trace.metadata['ring_prefix']).name}*")) == []


def test_version_3_needs_the_number_of_ranks(player: Path, tmp_path: Path) -> None:
    done = run(player, 3, COMMPROF_OUT=str(tmp_path))
    assert "set RANK and WORLD_SIZE" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_newest_interface_warns_and_records_no_kernels(player: Path, tmp_path: Path) -> None:
    done = run(player, 7, COMMPROF_OUT=str(tmp_path), COMMPROF_NCCL="auto")
    assert "NCCL 2.31" in done.stderr
    assert "COMMPROF_NCCL=kernels" in done.stderr
    _, found = launched(tmp_path / "rank_0.trace")
    assert len(found) == len(played(done.stdout))
    assert all(each.times.begin_ns == each.times.end_ns for each in found.values())
