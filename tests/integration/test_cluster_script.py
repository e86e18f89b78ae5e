"""The batch script as Slurm would run it: two nodes write into one directory."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from commprof.commands import main
from tests.support.ranks import free_port

pytestmark = pytest.mark.once_per_change(
    *("commprof/launch/cluster_files.py", "commprof/boot", "commprof/wrap.py"),
    *("commprof/capture/job_directory.py", "commprof/trace/run_directory.py"),
)

TRAIN = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
#: One task per node, each with its number and a host name of its own, as srun gives them.
COMMANDS = {
    "srun": 'shift; for node in 0 1; do SLURM_NODEID=$node "$@" & pids="$pids $!"; done\n'
    "for pid in $pids; do wait $pid || exit 1; done",
    "scontrol": "echo localhost",
}


def test_two_nodes_write_into_one_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    torchrun = f'exec "{sys.executable}" -m torch.distributed.run "$@"'
    for name, body in {**COMMANDS, "torchrun": torchrun}.items():
        path = tools / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    script, batch, shared = tmp_path / "train.py", tmp_path / "job.sbatch", tmp_path / "shared"
    script.write_text(TRAIN)
    words = ["--nodes", "2", "--nproc-per-node", "1", "--output", str(shared)]
    words += ["--port", str(free_port()), "--cpus-per-rank", "1", "-o", str(batch), str(script)]
    assert main(["launch-files", "--target", "slurm", *words]) == 0
    done = subprocess.run(
        ["bash", str(batch)],
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SLURM_JOB_NODELIST": "node-[a-b]",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"Report: python -m commprof report {shared}"
    assert sorted(path.name for path in shared.glob("*.trace")) == ["rank_0.trace", "rank_1.trace"]

    capsys.readouterr()
    assert main(["report", str(shared), "--format", "json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["num_processes"] == 2
    assert [rank["rank"] for rank in run["rank_results"]] == [0, 1]
    assert run["aggregated_metrics"]["missing_ranks"] == []
    (row,) = [row for row in run["aggregated_metrics"]["collectives"] if row["op"] == "all_reduce"]
    assert row["size_bytes"] == [4 * (64 * 64 + 64)] * 2
