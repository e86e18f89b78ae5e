from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commprof.trace import columns
from commprof.trace.columns import compressions
from commprof.trace.reader import read_trace
from commprof.tune.trials.candidates import parse_candidate
from commprof.tune.trials.verdict import TrialSetting, apply
from tests.support.ranks.plain_script import plain_script

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.slow
def test_the_suggested_command_sets_compressor_and_bucket_cap_under_env(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(plain_script(layers=4))
    setting = TrialSetting("train.py", is_run=False)
    command = apply(parse_candidate("int8+bucket-cap=0.1"), setting).partition("; or, ")[0]
    python = shlex.quote(sys.executable)
    started = shlex.join([sys.executable, *TORCHRUN, str(script)])
    typed = command.replace(" python ", f" {python} ").replace("DIR", shlex.quote(str(out)))
    done = subprocess.run(
        typed.replace("COMMAND", started),
        shell=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COMMPROF_TRIAL": "fp16,rounds=3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        trace = read_trace(out / f"rank_{rank}.trace")
        assert "trial" not in trace.metadata
        assert "int8" in set(compressions(trace).scheme)
        # With DDP's default cap, four layers of 0.26 MB would fill at most two buckets.
        assert len(set(columns.buckets(trace).index.tolist())) >= 4
