from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest

from commprof import _native
from commprof.trace.reader import read_trace
from tests.support.machines.commands import call

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the C++ module"),
]

EXAMPLE = Path(__file__).parents[3] / "examples/checkpoint_resume.py"


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def last_loss(output: str) -> str:
    (loss,) = re.findall(r"^last loss (\S+)$", output, re.MULTILINE)
    return str(loss)


def loss_without_a_fault(tmp_path: Path) -> str:
    unbroken = subprocess.run(
        [*TORCHRUN, str(EXAMPLE), "--checkpoint", str(tmp_path / "unbroken.pt")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return last_loss(unbroken.stdout)


def test_the_checkpoint_example_resumes_after_a_killed_rank_under_commprof_run(
    tmp_path: Path,
) -> None:
    run, undisturbed = tmp_path / "run", loss_without_a_fault(tmp_path)
    # A new run must not continue from the checkpoint of an earlier run that has ended.
    shutil.copy(tmp_path / "unbroken.pt", tmp_path / "killed.pt")
    done = call(
        *(
            "-m",
            "commprof.run",
            "--all",
            "--nproc",
            "2",
            "--max-restarts",
            "2",
            "--output",
            str(run),
        ),
        *(str(EXAMPLE), "--kill-at", "25", "--checkpoint", str(tmp_path / "killed.pt")),
        timeout_s=120,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 failed: its process was ended by SIGKILL" in done.stderr
    assert "restart 1 of 2" in done.stderr
    assert "attempt 1 trained steps 20 to 39" in done.stdout

    assert last_loss(done.stdout) == undisturbed

    first, second = json.loads((run / "result.json").read_text())["attempts"]
    assert (first["number"], first["ranks"], first["steps"]) == (0, 2, 25)
    assert first["ending"] == "rank 1: its process was ended by SIGKILL"
    assert 0 < first["lost_s"] < 60
    assert (second["number"], second["steps"], second["ending"]) == (1, 20, "")
    assert second["lost_s"] is None
    world = run / "world_2"
    assert sorted(path.name for path in world.glob("*.trace")) == [
        *("rank_0.attempt_1.trace", "rank_0.trace", "rank_1.attempt_1.trace", "rank_1.trace"),
    ]
    shown = " ".join(done.stdout.split())
    assert "At 2 ranks the job was restarted once: for" in shown
    assert "rank 1: its process was ended by SIGKILL" in shown
    rings = read_trace(world / "rank_1.trace").metadata["ring_prefix"]
    assert not glob(f"{rings}*")


def test_restarts_by_torchrun_are_reported_as_attempts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    wrapped = ("--max-restarts=1", "-m", "commprof.wrap", str(EXAMPLE), "--kill-at", "25")
    done = subprocess.run(
        [*TORCHRUN, *wrapped, "--checkpoint", str(tmp_path / "killed.pt")],
        # TORCH_DISABLE_SHARE_RDZV_TCP_STORE keeps ranks from reading keys of the earlier attempt.
        env={
            **os.environ,
            "COMMPROF_OUT": str(out),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert last_loss(done.stdout) == loss_without_a_fault(tmp_path)
    report = call("-m", "commprof", "report", str(out), "--format", "json")
    first, second = json.loads(report.stdout)["attempts"]
    assert (first["number"], first["ranks"], first["steps"]) == (0, 2, 25)
    assert re.search(r"rank 1 .*its process \d+ is gone", first["ending"])
    assert 0 < first["lost_s"] < 60
    assert (second["number"], second["steps"], second["ending"]) == (1, 20, "")
