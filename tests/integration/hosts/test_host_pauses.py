from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.world import WorldResult
from commprof.trace import columns
from commprof.trace.run.run_directory import WorldRun
from tests.support.analysed import analyse_run, analyse_world
from tests.support.machines.commands import call
from tests.support.machines.ranks import run_here

STEPS = 25
PAUSE_MS = 30
TIMED = "timed:layers=2,data_ms=8,forward_ms=5,backward_ms=8,optimizer_ms=6,gradient_mb=0.02"
STOPPED = f"{TIMED},late_rank=1,late_ms={PAUSE_MS},late_phase=pause"


def result_of(run: WorldRun) -> WorldResult:
    result = analyse_world(run)
    assert result is not None
    return result


def pause_lengths_ms(run: WorldRun, rank: int) -> list[float]:
    found = columns.pauses(run.traces[rank])
    return ((found.end_ns - found.begin_ns) / 1e6).tolist()


@pytest.mark.slow
@pytest.mark.measures
def test_a_rank_that_is_stopped_in_each_step_is_named_for_its_pauses(tmp_path: Path) -> None:
    run = run_here(tmp_path, STOPPED, 3, STEPS)
    late = result_of(run).lateness.late_rank
    assert late is not None
    assert (late.rank, late.phase) == (1, "host pause")
    assert late.phase_share > 0.75
    lengths = pause_lengths_ms(run, 1)
    # On a busy machine a stop may be noticed late, or not at all.
    assert 0.75 * STEPS <= len(lengths) <= STEPS + 1
    assert np.median(lengths) == pytest.approx(PAUSE_MS, abs=2)
    assert pause_lengths_ms(run, 0) == pause_lengths_ms(run, 2) == []
    pauses, phases = columns.pauses(run.traces[1]), columns.phases(run.traces[1])
    row = np.searchsorted(phases.begin_ns, pauses.begin_ns, side="right") - 1
    forward = phases.key[row] == run.traces[1].metadata["phases"].index("forward")
    assert (forward & (pauses.end_ns <= phases.end_ns[row] + 1_000_000)).all()


@pytest.mark.slow
@pytest.mark.measures
def test_always_on_mode_names_a_stopped_rank_for_its_pauses(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call(
        *("-m", "commprof.run", "--mode", "always-on", "--world-sizes", "3"),
        *("--steps", str(STEPS), "--workload", STOPPED, "--output", str(out)),
    )
    assert done.returncode == 0, done.stderr
    (found,) = analyse_run(out).summaries
    assert found.late_rank is not None
    assert (found.late_rank.rank, found.late_rank.phase) == (1, "host pause")
    assert "its process did not run (host pause)" in " ".join(done.stdout.split())


@contextlib.contextmanager
def no_free_core() -> Iterator[None]:
    burn = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(9999))"
    count = 2 * len(os.sched_getaffinity(0))
    processes = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_lack_of_cores_is_not_recorded_as_a_pause(tmp_path: Path) -> None:
    with no_free_core():
        run = run_here(tmp_path, TIMED, 3, STEPS)
    assert [pause_lengths_ms(run, rank) for rank in range(3)] == [[], [], []]
    late = result_of(run).lateness.late_rank
    assert late is None or late.phase != "host pause"
