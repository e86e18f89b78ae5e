from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commprof.commands import main
from commprof.trace.reader import read_trace
from tests.support.machines.commands import RUN, call, finish, fork
from tests.support.machines.ranks import free_port

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SMALL = ("--workload", "timed:layers=2", "--steps", "4", "--overhead-steps", "0")


def check_run(directory: Path, out: str, launcher: str) -> dict[str, Any]:
    result = json.loads((directory / "result.json").read_text())
    (run,) = result["runs"]
    assert run["num_processes"] == 2
    assert {one["rank"] for one in run["rank_results"]} == {0, 1}
    assert run["aggregated_metrics"]["missing_ranks"] == []
    assert out.count("Run directory: ") == 1
    assert f"See everything: commprof report {directory} --all" in out
    assert f"Run it again: commprof run --config {directory}/config.yaml" in out
    names = {path.name for path in (directory / "world_2").iterdir()}
    assert {"rank_0.trace", "rank_1.trace", "rank_0.json", "rank_1.json", "job.json"} <= names
    assert "progress" not in names
    context: dict[str, Any] = json.loads((directory / "run.json").read_text())
    assert (context["launcher"], context["nodes"], context["errors"]) == (launcher, 1, {})
    return context


@pytest.mark.slow
def test_ranks_of_torchrun_are_reported_as_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    done = call(*TORCHRUN, *RUN, *SMALL, "--output", str(out), "--json", f"{out}.json")
    assert done.returncode == 0, done.stderr
    assert f"commprof: 2 ranks of torchrun record into {out}" in done.stderr
    context = check_run(out, done.stdout, "torchrun")
    assert context["world_sizes"] == [2]
    assert (tmp_path / "run.json").read_text() == (out / "result.json").read_text()
    again = ["run", "--config", str(out / "config.yaml"), "--dry-run", "--output", f"{out}2"]
    assert main(again) == 0
    assert "World size 2, strategy ddp: ranks 0 to 1 on this machine" in capsys.readouterr().out


def test_an_option_that_rank_0_refuses_ends_all_ranks_with_one_error_line(tmp_path: Path) -> None:
    done = call(*TORCHRUN, *RUN, *SMALL, "--world-sizes", "2", "--output", str(tmp_path / "run"))
    assert done.returncode != 0
    assert (
        done.stderr.count("commprof run: --world-sizes 2 cannot be used: torchrun has started") == 1
    )
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_tasks_of_srun_are_reported_as_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}
    step |= {"SLURM_NODEID": "0", "MASTER_PORT": str(free_port())}
    tasks = [
        fork(*RUN, *SMALL, "--output", str(out), **step, SLURM_PROCID=number, SLURM_LOCALID=number)
        for number in ("1", "0")
    ]
    second, first = [finish(task) for task in tasks]
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    check_run(out, first.stdout, "srun")


MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable)


def mpirun(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*MPIRUN, *words], capture_output=True, text=True, timeout=300, env=environment
    )


@pytest.mark.slow
@pytest.mark.needs("mpirun")
def test_ranks_of_mpirun_are_reported_as_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = mpirun(*RUN, *SMALL, "--output", str(out))
    assert done.returncode == 0, done.stderr
    check_run(out, done.stdout, "mpirun")


@pytest.mark.slow
@pytest.mark.needs("mpirun")
def test_ranks_of_mpirun_check_and_measure_each_other(tmp_path: Path) -> None:
    done = mpirun("-m", "commprof", "check")
    assert len(re.findall(r"^2 ranks: \d+ pass", done.stdout, re.MULTILINE)) == 1, done.stdout
    assert re.search(r"^pass +ring +\d+ rounds", done.stdout, re.MULTILINE)
    sizes = ("-b", "1K", "-e", "1K", "--iters", "2", "--json", str(tmp_path / "sweep.json"))
    done = mpirun("-m", "commprof.microbench", "all_reduce", *sizes)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^# .*\b2 ranks", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
@pytest.mark.needs("mpirun")
def test_traces_of_mpirun_s_ranks_do_not_meet_before_the_process_group(tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    script.write_text(f"import commprof\nwith commprof.profile({str(tmp_path / 't')!r}): pass\n")
    done = mpirun(str(script))
    assert done.returncode == 0, done.stderr
    traces = [read_trace(tmp_path / f"t/rank_{rank}.trace") for rank in (0, 1)]
    assert [(each.rank, each.world_size, each.metadata["local_rank"]) for each in traces] == [
        *((0, 2, 0), (1, 2, 1)),
    ]
