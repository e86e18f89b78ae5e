from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.machines.commands import finish, fork

STEPS = 6

TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    ddp = DistributedDataParallel(torch.nn.Linear(64, 64))
    HOOK
    optimizer = torch.optim.Adam(ddp.parameters())
    for _ in range(6):
        loss = ddp(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # one write, so that two ranks' lines do not mix
    sys.stdout.write(f"{dist.get_rank()} {loss.item().hex()} {__name__} {sys.argv[1:]}\\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.exit(int(sys.argv[1]))
"""

HOOKED = """
    def hook(state, bucket):
        return dist.all_reduce(bucket.buffer().mul_(0.25), async_op=True).get_future().then(
            lambda done: done.value()[0]
        )
    ddp.register_comm_hook(None, hook)
"""

SPAWN = """
import os
import sys
import torch.multiprocessing as mp
import train

def rank(index):
    os.environ.update(RANK=str(index), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="FREEPORT")
    sys.argv = ["spawn.py", "0"]
    train.main()

if __name__ == "__main__":
    mp.spawn(rank, nprocs=2)
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("HOOK", ""))
    return script


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return finish(fork(*command, directory=cwd, OMP_NUM_THREADS="1", **env), 120)


def plain(*script: str, cwd: Path) -> list[str]:
    done = run("-m", "torch.distributed.run", "--nproc-per-node=2", *script, cwd=cwd)
    return ranks_lines(done.stdout)


def ranks_lines(output: str) -> list[str]:
    # torch 2.10 also prints lines of gloo that begin with a rank.
    return sorted(line for line in output.splitlines() if line[:4] in ("0 0x", "1 0x"))


def recorded(directory: Path) -> None:
    for rank in (0, 1):
        trace = read_trace(directory / f"rank_{rank}.trace")
        assert trace.complete
        assert columns.steps(trace).index.tolist() == list(range(STEPS))
        assert len(columns.finalizations(trace).blocked_ns) == STEPS


def test_a_script_keeps_its_output_and_its_exit_code(train: Path) -> None:
    out = train.parent / "run"
    done = run(
        *("-m", "commprof.run", "--nproc", "2", "--output", str(out), "train.py", "0"),
        cwd=train.parent,
    )
    assert done.returncode == 0, done.stderr
    assert ranks_lines(done.stdout) == plain("train.py", "0", cwd=train.parent)
    assert "python train.py 0" in done.stdout
    recorded(out / "world_2")

    failed = run(
        *("-m", "commprof.run", "--nproc", "2", "--output", "failed", "train.py", "7"),
        cwd=train.parent,
    )
    assert failed.returncode == 7
    assert "exit code 7" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_a_sweep_runs_the_script_at_every_world_size(train: Path) -> None:
    done = run(
        *("-m", "commprof.run", "--world-sizes", "1,2", "--output", "run", "train.py", "0"),
        cwd=train.parent,
    )
    assert done.returncode == 0, done.stderr
    assert len(ranks_lines(done.stdout)) == 1 + 2
    result = json.loads((train.parent / "run/result.json").read_text())
    assert result["failures"] == []
    assert [one["num_processes"] for one in result["runs"]] == [1, 2]
    for one in result["runs"]:
        figures = one["aggregated_metrics"]
        assert figures["measured_steps"] + figures["warmup_steps"] == STEPS
        assert figures["step_median_ms"] > 0
        for rank in range(one["num_processes"]):
            trace = read_trace(train.parent / f"run/world_{one['num_processes']}/rank_{rank}.trace")
            assert columns.steps(trace).index.tolist() == list(range(STEPS))


@pytest.mark.slow
def test_a_module_of_a_package_is_launched_as_a_module(train: Path) -> None:
    package = train.parent / "package"
    package.mkdir()
    train.rename(package / "train.py")
    done = run(
        *("-m", "commprof.run", "--nproc", "2", "--output", "run", "-m", "package.train", "0"),
        cwd=train.parent,
    )
    assert done.returncode == 0, done.stderr
    assert ranks_lines(done.stdout) == plain("-m", "package.train", "0", cwd=train.parent)
    recorded(train.parent / "run/world_2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        ("sys.exit(int(sys.argv[1]))", 7, ""),
        ('raise RuntimeError("out of cheese")', 1, "RuntimeError: out of cheese"),
    ],
)
def test_wrap_keeps_the_exit_code_and_error_of_a_script(
    train: Path, ending: str, code: int, last: str
) -> None:
    train.write_text(train.read_text().replace("sys.exit(int(sys.argv[1]))", ending))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = run(
        *("-m", "commprof.wrap", "train.py", "7"), cwd=train.parent, **alone, COMMPROF_OUT="out"
    )
    assert done.returncode == code
    *said, recorded_to = done.stderr.strip().splitlines()
    # torch puts the rank in front of a traceback's lines.
    assert (said or [""])[-1].removeprefix("[rank0]: ") == last
    assert recorded_to.startswith("commprof: recorded to ")
    trace = read_trace(train.parent / "out/rank_0.trace")
    assert trace.complete
    assert columns.steps(trace).index.tolist() == list(range(STEPS))


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["", HOOKED])
def test_a_wrapped_script_trains_bit_identically(tmp_path: Path, hook: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "train.py").write_text(TRAIN.replace("    HOOK", hook))
    expected = plain("-m", "package.train", "0", cwd=tmp_path)
    wrapped = run(
        *("-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "commprof.wrap"),
        *("-m", "package.train", "0"),
        cwd=tmp_path,
        COMMPROF_OUT=str(tmp_path / "out"),
    )
    assert wrapped.returncode == 0, wrapped.stderr
    assert len(expected) == 2
    assert ranks_lines(wrapped.stdout) == expected
    recorded(tmp_path / "out")


@pytest.mark.slow
def test_processes_that_the_script_spawns_are_recorded(train: Path) -> None:
    from tests.support.machines.ranks import free_port

    script = train.parent / "spawn.py"
    script.write_text(SPAWN.replace("FREEPORT", str(free_port())))
    done = run(
        *("-m", "commprof.wrap", "spawn.py"), cwd=train.parent, COMMPROF_OUT=str(train.parent / "o")
    )
    assert done.returncode == 0, done.stderr
    recorded(train.parent / "o")


def test_options_of_workloads_are_refused_and_nothing_starts(train: Path) -> None:
    done = run("-m", "commprof.run", "--steps", "3", "train.py", cwd=train.parent)
    assert done.returncode == 2
    assert "--steps: for built-in workloads only" in done.stderr
    missing = run("-m", "commprof.run", "nope.py", cwd=train.parent)
    assert missing.returncode == 2
    assert "no script 'nope.py'" in missing.stderr
    assert not (train.parent / "commprof-runs").exists()


@pytest.mark.slow
def test_wrap_records_the_exit_code_and_prints_the_report_command_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "gives_up.py").write_text(
        "import sys, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.destroy_process_group()\n"
        "sys.exit(5)\n"
    )
    done = run(
        # With this long interval, the launcher sees both ranks end at once and kills no rank.
        *("-m", "torch.distributed.run", "--nproc-per-node=2", "--monitor-interval=3"),
        *("-m", "commprof.wrap", "gives_up.py"),
        cwd=tmp_path,
        COMMPROF_OUT=str(tmp_path / "run"),
    )
    assert done.returncode == 1
    assert done.stderr.count(f"commprof report {tmp_path / 'run'}") == 1
    for rank in (0, 1):
        trace = read_trace(tmp_path / f"run/rank_{rank}.trace")
        assert trace.metadata["ending"]["error"] == "SystemExit: 5"
