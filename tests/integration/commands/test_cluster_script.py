from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from commprof.commands import main
from tests.support.machines.ranks import free_port

pytestmark = pytest.mark.slow

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
#: Slurm's srun starts one task per node and tells the task its node's number.
COMMANDS = {
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\n'
    'for node in 0 1; do SLURM_NODEID=$node "$@" & pids="$pids $!"; done\n'
    "for pid in $pids; do wait $pid || exit 1; done",
    "scontrol": "echo localhost",
}


def submitted(batch: Path, tools: Path) -> subprocess.CompletedProcess[str]:
    tools.mkdir()
    python = f'exec "{sys.executable}" "$@"'
    torchrun = f'exec "{sys.executable}" -m torch.distributed.run "$@"'
    for name, body in {**COMMANDS, "torchrun": torchrun, "python": python}.items():
        path = tools / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
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
    return done


def test_two_nodes_write_into_one_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, batch, shared = tmp_path / "train.py", tmp_path / "job.sbatch", tmp_path / "shared"
    script.write_text(TRAIN)
    words = ["--nodes", "2", "--nproc-per-node", "1", "--output", str(shared)]
    words += ["--port", str(free_port()), "--cpus-per-rank", "1", "-o", str(batch), str(script)]
    assert main(["launch-files", "--target", "slurm", *words]) == 0
    done = submitted(batch, tmp_path / "bin")
    assert done.stdout.splitlines()[-1] == f"Report: commprof report {shared}"
    assert sorted(path.name for path in shared.glob("*.trace")) == ["rank_0.trace", "rank_1.trace"]

    capsys.readouterr()
    assert main(["report", str(shared), "--format", "json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["num_processes"] == 2
    assert [rank["rank"] for rank in run["rank_results"]] == [0, 1]
    assert run["aggregated_metrics"]["missing_ranks"] == []
    (row,) = [row for row in run["aggregated_metrics"]["collectives"] if row["op"] == "all_reduce"]
    assert row["size_bytes"] == [4 * (64 * 64 + 64)] * 2


def test_two_nodes_train_a_workload_by_two_strategies(tmp_path: Path) -> None:
    batch, shared = tmp_path / "job.sbatch", tmp_path / "shared"
    words = ["--nodes", "2", "--nproc-per-node", "1", "--output", str(shared)]
    words += ["--port", str(free_port()), "-o", str(batch), "--", "--workload"]
    words += ["mlp:inputs=8,width=8,layers=1,samples=64", "--strategy", "ddp,zero1"]
    words += ["--steps", "6", "--overhead-steps", "0"]
    assert main(["launch-files", "--target", "slurm", *words]) == 0
    done = submitted(batch, tmp_path / "bin")

    assert "Machine 1 is done" in done.stdout
    result = json.loads((shared / "result.json").read_text())
    assert [one["context"]["strategy"] for one in result["results"]] == ["ddp", "zero1"]
    for one in result["results"]:
        assert one["context"]["nodes"] == 2
        assert [run["num_processes"] for run in one["runs"]] == [2]
