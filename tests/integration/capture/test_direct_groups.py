from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commprof import _native
from commprof.capture import boot
from commprof.commands.showing.opened_run import OpenedRun
from commprof.trace import columns
from commprof.trace.reader import read_trace
from commprof.trace.run.endings import NOT_RECORDED_FILE
from commprof.trace.run.run_directory import other_jobs, read_context, read_world
from tests.support.analysed import analyse_run
from tests.support.machines.commands import call

SCRIPT = Path(__file__).parents[2] / "support/scripts/direct_group.py"
pytestmark = pytest.mark.skipif(_native.native is None, reason="Python capture sees no groups")
WEIGHT_BYTES, BIAS_BYTES = 64 * 64 * 4, 64 * 4


def start(out: Path, *groups: str, **variables: str) -> subprocess.Popen[str]:
    launched = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "REPLICA_GROUP_ID")
    inherited = {key: value for key, value in os.environ.items() if key not in launched}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *groups],
        env={**inherited, "OMP_NUM_THREADS": "1", **boot.environment(out), **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


def end(*processes: subprocess.Popen[str]) -> list[str]:
    return [process.communicate(timeout=120)[1] for process in processes]


def test_ranks_that_make_their_group_themselves_are_recorded(tmp_path: Path) -> None:
    out, store = tmp_path / "out", tmp_path / "store"
    for job in (out, out / "job_2"):
        ranks = [
            start(out, f"{rank},2,6,{store}_{job.name}", RANK=str(rank), WORLD_SIZE="2")
            for rank in range(2)
        ]
        said = end(*ranks)
        assert [rank.returncode for rank in ranks] == [0, 0], said
        traces = [read_trace(job / f"rank_{rank}.trace") for rank in range(2)]
        for rank, trace in enumerate(traces):
            assert (trace.rank, trace.world_size) == (rank, 2)
            (group,) = trace.groups.values()
            assert (group.rank, group.size, group.backend) == (rank, 2, "gloo")
            table = columns.collectives(trace)
            assert table.bytes_in.tolist() == [WEIGHT_BYTES, BIAS_BYTES] * 6
            assert columns.steps(trace).index.tolist() == list(range(6))
        assert traces[0].groups[1].token == traces[1].groups[1].token != ""
        (world,) = analyse_run(job).worlds
        assert (world.world_size, world.timing.steps) == (2, 6)
        assert {row.calls for row in world.communication.collectives} == {
            2 * world.timing.measured_steps
        }
    assert other_jobs(out) == [out / "job_2"]


@pytest.mark.parametrize("names", [pytest.param(True, marks=pytest.mark.slow), False])
def test_replicas_are_one_world_and_each_life_is_told(tmp_path: Path, names: bool) -> None:
    out, first, second = tmp_path / "out", tmp_path / "first", tmp_path / "second"

    def replica(number: int, *groups: str) -> subprocess.Popen[str]:
        name = {"REPLICA_GROUP_ID": f"r{number}"} if names else {}
        return start(out, *groups, RANK="0", WORLD_SIZE="1", **name)

    stay = [replica(number, f"{number},3,5,{first}", f"{number},3,6,{second}") for number in (0, 2)]
    killed = replica(1, f"1,3,5,{first}", "die")
    end(killed)
    assert killed.returncode == -signal.SIGKILL
    again = replica(1, f"1,3,6,{second}")
    said = end(again, *stay)
    assert [each.returncode for each in (again, *stay)] == [0, 0, 0], said

    assert len(list(out.rglob("*.trace"))) == 4
    assert other_jobs(out) == []
    context = read_context(out)
    assert (context["world_sizes"], context["backend"]) == ([3], "")
    lives = context["replicas"]
    assert [(life["replica"], life["ranks"], life["steps"]) for life in lives] == [
        (0, [0], 11),
        (1, [], 5),
        (1, [1], 6),
        (2, [2], 11),
    ]
    assert [life["label"] for life in lives] == (["r0", "r1", "r1", "r2"] if names else [""] * 4)
    assert "never closed its trace" in lives[1]["ending"]
    assert lives[1]["end_s"] <= lives[2]["begin_s"]
    run = read_world(out, 3)
    assert [columns.steps(run.traces[rank]).index.tolist() for rank in range(3)] == [
        list(range(11)),
        list(range(5, 11)),
        list(range(11)),
    ]
    result = analyse_run(out)
    (world,) = result.worlds
    assert (world.world_size, world.timing.steps, world.recording.missing_ranks) == (3, 6, ())
    assert result.context["backend"] == "gloo"
    report = call("-m", "commprof", "report", str(out), "--all", COLUMNS="400").stdout
    name = "r1" if names else "1"
    assert f"3 replicas trained together: rank 0 is replica {'r0' if names else '0'}" in report
    card = OpenedRun(out).card
    assert card is not None
    assert any(text.startswith(f"Started again: replica {name} (2 ") for text in card.caveats)
    assert f"Replica {name} was started 2 times: from " in report


@pytest.mark.slow
def test_a_profile_of_a_replica_takes_a_directory_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = tmp_path / "profiled.py"
    script.write_text(
        "import runpy, sys, commprof\n"
        f"with commprof.profile({str(out)!r}, find_steps=True):\n"
        f"    runpy.run_path({str(SCRIPT)!r})\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1"}
    replicas = [
        subprocess.Popen(
            [sys.executable, str(script), f"{number},2,6,{tmp_path / 'store'}"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = end(*replicas)
    assert [each.returncode for each in replicas] == [0, 0], said
    assert sum("another replica or job already records to" in each for each in said) == 1
    (world,) = analyse_run(out).worlds
    assert (world.world_size, world.timing.steps) == (2, 6)
    alone = subprocess.run(
        [sys.executable, str(script), f"0,1,1,{tmp_path / 'alone'}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 1
    assert "exists already; give this run a directory of its own" in alone.stderr


ALONE = """\
import torch
from torch import nn
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 4)).sum().backward()
optimizer.step()
"""
BECAUSE = "because this process never completed init_process_group and made no other process group"


@pytest.mark.parametrize(
    ("words", "variables", "speaks"),
    [
        ((), {}, True),
        pytest.param((), {"RANK": "0", "WORLD_SIZE": "2"}, True, marks=pytest.mark.slow),
        pytest.param((), {"RANK": "1", "WORLD_SIZE": "2"}, False, marks=pytest.mark.slow),
        (("-m", "commprof.wrap"), {"RANK": "0", "WORLD_SIZE": "1"}, True),
    ],
)
def test_a_script_that_records_nothing_says_why(
    words: tuple[str, ...], variables: dict[str, str], speaks: bool, tmp_path: Path
) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    out = tmp_path / "out"
    armed = boot.environment(out) if not words else {boot.OUT_VARIABLE: str(out)}
    done = subprocess.run(
        [sys.executable, *words, "alone.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", **armed, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = f"commprof: nothing is recorded, {BECAUSE}"
    assert [line.startswith(expected) for line in done.stderr.splitlines()] == [True] * speaks
    assert (out / NOT_RECORDED_FILE).exists() == speaks
    if speaks:
        refused = call("-m", "commprof", "report", str(out))
        assert f"{out} holds no trace: nothing is recorded, {BECAUSE}" in refused.stderr


def test_a_profile_without_a_process_group_says_so(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(
        f"import commprof\nwith commprof.profile('out'):\n    exec({ALONE!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "alone.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == f"commprof: no collective is recorded, {BECAUSE}\n"


@pytest.mark.slow
def test_attach_without_a_capture_says_so(tmp_path: Path) -> None:
    (tmp_path / "attached.py").write_text(
        "import commprof, torch.distributed as dist\n"
        "from torch import nn\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/store', rank=0, "
        "world_size=1)\n"
        "commprof.attach(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)))\n"
        "dist.destroy_process_group()\n"
    )
    done = subprocess.run(
        [sys.executable, "attached.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "commprof: nothing is recorded: attach() alone starts no capture" in done.stderr


def test_a_run_that_records_nothing_says_why_and_not_that_it_failed(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    run = tmp_path / "run"
    done = call(
        "-m", "commprof.run", "--nproc", "2", "--output", str(run), str(tmp_path / "alone.py")
    )
    assert done.returncode == 0, done.stderr
    ((size, why),) = analyse_run(run).failures
    assert size == 2
    assert why.startswith(f"nothing is recorded, {BECAUSE}")
    (run / "world_2" / NOT_RECORDED_FILE).unlink()
    assert analyse_run(run).failures == ((2, "ran to its end, but no rank left a trace"),)


def test_the_name_of_the_reason_s_file_is_the_same_at_the_start_of_a_process() -> None:
    assert boot.NOT_RECORDED_FILE == NOT_RECORDED_FILE
