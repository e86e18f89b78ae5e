"""The launcher is killed, interrupted, or shares its directory: ranks end, records stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from commprof import _native
from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.commands import RUN, call, finish, start
from tests.support.faults import report_on

pytestmark = [
    pytest.mark.once_per_change(
        *("csrc/core", "commprof/boot", "commprof/capture", "commprof/launch", "commprof/trace"),
        *("commprof/commands", "tests/support/scripts/faulty.py"),
    ),
    pytest.mark.skipif(_native.native is None, reason="needs the C++ module"),
]

SCRIPT = str(Path(__file__).parents[1] / "support/scripts/faulty.py")
ENDLESS = ("none", "1000000")


def await_steps(world: Path, process: subprocess.Popen[str]) -> None:
    """Returns once both ranks record steps."""
    limit = time.monotonic() + 150  # two cold starts of torch, on whatever machine
    while time.monotonic() < limit:
        assert process.poll() is None, (world.parents[1] / "err").read_text()
        paths = [world / f"rank_{rank}.trace" for rank in (0, 1)]
        if all(path.exists() and path.stat().st_size > 8_000 for path in paths):
            return
        time.sleep(0.05)
    raise AssertionError("no steps")


def pids(world: Path) -> list[int]:
    return [int(read_trace(world / f"rank_{r}.trace").metadata["pid"]) for r in (0, 1)]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def await_end(ranks: list[int]) -> None:
    limit = time.monotonic() + 20
    while not all(gone(pid) for pid in ranks):
        assert time.monotonic() < limit, ranks
        time.sleep(0.05)


def await_growth(world: Path) -> None:
    """Returns once both ranks have recorded more steps; they have 5 s."""
    paths = [world / f"rank_{rank}.trace" for rank in (0, 1)]
    before = [len(columns.steps(read_trace(path))) for path in paths]
    limit = time.monotonic() + 5
    while not all(
        len(columns.steps(read_trace(path))) > n for path, n in zip(paths, before, strict=True)
    ):
        assert time.monotonic() < limit, f"no step more than {before}"
        time.sleep(0.1)


def rings(ranks: list[int]) -> list[str]:
    return [path.name for pid in ranks for path in Path("/dev/shm").glob(f"commprof-*-{pid}-*")]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run of an endless script that records steps."""
    run = tmp_path / "run"
    command = [sys.executable, *RUN, "--nproc", "2", "--output", str(run), SCRIPT, *ENDLESS]
    # Into files: nobody reads what the ranks say, and they would wait for room in a pipe.
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
    await_steps(run / "world_2", process)
    ranks = pids(run / "world_2")
    yield process, run
    process.kill()
    process.wait()
    for pid in ranks:
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_launcher_that_is_killed(running: tuple[subprocess.Popen[str], Path]) -> None:
    process, run = running
    ranks = pids(run / "world_2")
    process.kill()
    process.wait()
    # As under torchrun, the ranks of a script outlive a launcher that is killed.
    await_growth(run / "world_2")
    assert not any(gone(pid) for pid in ranks)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    await_end(ranks)
    assert rings(ranks) != []
    report = " ".join(report_on(run).split())
    assert f"the launcher (process {process.pid}) was killed before its ranks had ended" in report
    assert "rank 0 never closed its trace: its process" in report
    assert rings(ranks) == []
    assert len(columns.steps(read_trace(run / "world_2/rank_0.trace"))) > 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_that_is_told_to_end(
    running: tuple[subprocess.Popen[str], Path], number: signal.Signals
) -> None:
    process, run = running
    ranks = pids(run / "world_2")
    process.send_signal(number)
    assert process.wait(60) == (130 if number is signal.SIGINT else -signal.SIGTERM)
    expected = "2 ranks: interrupted" if number is signal.SIGINT else ""
    assert expected in (run.parent / "err").read_text()
    await_end(ranks)
    assert rings(ranks) == []
    errors = json.loads((run / "run.json").read_text())["errors"]
    assert errors == {
        "2": "interrupted" if number is signal.SIGINT else "the launcher was ended by SIGTERM"
    }


@pytest.mark.parametrize("after_s", [0.5, 3.0])
def test_an_interrupt_at_any_moment_of_the_start(tmp_path: Path, after_s: float) -> None:
    run = tmp_path / "run"
    process = start(*RUN, "--nproc", "2", "--output", str(run), SCRIPT, *ENDLESS)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.returncode in (130, -signal.SIGINT), done.stderr


def test_two_jobs_in_one_directory(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"),
        *("-m", "commprof.wrap", SCRIPT, "none", "30"),
    ]
    environment = {**os.environ, "COMMPROF_OUT": str(out), "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for job in jobs:
        said, complaints = job.communicate(timeout=90)
        assert job.returncode == 0, complaints
        assert said.count("done ") == 2
    for place in (out, out / "job_2"):
        for rank in (0, 1):
            trace = read_trace(place / f"rank_{rank}.trace")
            assert trace.complete
            assert len(columns.steps(trace)) == 30
    refused = call(*RUN, "--nproc", "1", "--output", str(out), SCRIPT, "none", "3")
    assert refused.returncode == 2
    assert "is not empty" in refused.stderr
