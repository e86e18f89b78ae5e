from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commprof import _native
from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.machines.faults.faults import SCRIPT, report_on
from tests.support.machines.ranks import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the C++ module"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

STEPS = 300


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "clock_step.so"
    source = SCRIPT.parents[1] / "machines/faults/clock_step.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_step_of_the_wall_clock_affects_neither_training_nor_recorded_times(
    shim: Path, step_s: int, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        **{"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "OMP_NUM_THREADS": "1"},
        **{"MASTER_PORT": str(free_port()), "COMMPROF_OUT": str(tmp_path / "out")},
        **{"LD_PRELOAD": str(shim), "CLOCK_STEP_S": str(step_s), "CLOCK_STEP_AFTER_S": "5"},
        "PAUSE": "0.02",  # 300 steps take 6 s, so the clock is stepped before or during the steps
    }
    command = [sys.executable, "-m", "commprof.wrap", str(SCRIPT), "none", str(STEPS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    trace = read_trace(tmp_path / "out/rank_0.trace")
    assert trace.complete
    assert trace.problems == ()
    steps = columns.steps(trace)
    assert len(steps) == STEPS
    lengths_s = (steps.end_ns - steps.begin_ns) / 1e9
    assert np.all(lengths_s > 0)
    assert lengths_s.max() < 60
    assert "did not run" not in report_on(tmp_path / "out")
