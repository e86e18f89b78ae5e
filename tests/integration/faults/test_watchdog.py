from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commprof import _native
from commprof.launch.elastic import stop_fork_server
from commprof.monitor.watchdog.py_spy import find_py_spy
from tests.support.machines.commands import call
from tests.support.machines.faults.hangs import (
    STEPS,
    THRESHOLD_S,
    outcome,
    stop_a_rank,
    undisturbed,
)

pytestmark = [
    pytest.mark.skipif(_native.native is None, reason="needs the C++ module"),
]

#: Rank 1 is late in step 20, and after training the ranks issue different all-reduces. A hang lasts
#: until the watchdog has reported it, for a minute at most.
SCRIPT = """
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def said(pattern):
    return [path.read_text() for path in Path(__file__).parent.rglob(pattern)]


def guilty_nap():
    for seconds in range(1, 60):
        time.sleep(1)
        if seconds >= 4 and any(len(json.loads(t)["stacks"]) > 1 for t in said("hang_1.json")):
            return


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        loss = model(torch.full((8, 64), 1.0 + rank)).square().mean()
        optimizer.zero_grad()
        if step == 20 and rank == 1:
            guilty_nap()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
    # One write: print() without it writes the end of the line apart, where it is unbuffered.
    print(f"rank {rank} loss {loss.item().hex()}\\n", end="", flush=True)
    work = dist.all_reduce(torch.zeros(2 + rank), async_op=True)
    for _ in range(60):
        time.sleep(1)
        if any("mismatch" in text for text in said("watchdog_*.jsonl")):
            return


main()
import os
os._exit(7)
"""


SLEEPS_AT = 1 + SCRIPT.splitlines().index("        time.sleep(1)")


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    yield
    stop_fork_server()


@pytest.mark.parametrize(
    ("seed", "mode"),
    [
        (1, "full"),
        *(pytest.param(seed, "full", marks=pytest.mark.slow) for seed in (2, 4)),
        *(pytest.param(seed, "always-on", marks=pytest.mark.slow) for seed in (3, 6)),
    ],
)
def test_the_watchdog_names_a_rank_stopped_by_sigstop(tmp_path: Path, seed: int, mode: str) -> None:
    tried = stop_a_rank(tmp_path, seed, most_ranks=4, mode=mode)
    assert tried.hang is not None
    assert tried.named_after_s is not None
    assert tried.named_after_s < THRESHOLD_S + 15
    assert [one["rank"] for one in tried.hang["accused"]] == [tried.rank]
    assert (tried.hang["kind"], tried.hang["threshold"]) == ("held up", "2 s, as asked for")
    assert "is stopped (SIGSTOP" in tried.hang["sentence"]
    others = [rank for rank in range(tried.ranks) if rank != tried.rank]
    assert set(tried.hang["waiting"]) <= set(others)
    stopped = next(one for one in tried.hang["ranks"] if one["rank"] == tried.rank)
    assert stopped["process"] == "stopped"
    if find_py_spy():
        assert "MainThread" in tried.stacks
        assert "loop.py" in tried.stacks
    assert outcome(tmp_path, tried.ranks) == undisturbed(tried.ranks)
    assert {steps for steps, _, _ in outcome(tmp_path, tried.ranks)} == {STEPS}
    over = json.loads((tmp_path / f"hang_{tried.hang['number']}.json").read_text())
    assert over["ended_after_s"] is not None


@dataclass
class Finished:
    directory: Path
    process: subprocess.CompletedProcess[str]

    def hang(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.directory / "hang_1.json").read_text())
        return value


@pytest.fixture(
    scope="module",
    params=[pytest.param(it, marks=pytest.mark.slow) for it in ("commprof run", "torchrun")],
)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    place = tmp_path_factory.mktemp("job")
    script = place / "script.py"
    script.write_text(SCRIPT)
    if request.param == "commprof run":
        options = ["--nproc", "2", "--watchdog", "1.5", "--output", str(place / "run")]
        done = call("-m", "commprof.run", *options, str(script), timeout_s=90)
        return Finished(place / "run/world_2", done)
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0")
    command = (*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    env = {"COMMPROF_OUT": str(place / "out"), "COMMPROF_WATCHDOG": "1.5"}
    done = call(*command, "-m", "commprof.wrap", str(script), timeout_s=90, **env)
    return Finished(place / "out", done)


def test_the_watchdog_names_the_late_rank_and_its_line(finished: Finished) -> None:
    hang = finished.hang()
    assert (hang["kind"], [one["rank"] for one in hang["accused"]]) == ("absent", [1])
    assert hang["waiting"] == [0]
    assert (hang["step"], hang["operation"]["op"]) == (20, "all_reduce")
    assert (hang["operation"]["bucket"], hang["phase"]) == (0, "after forward")
    assert 0 < hang["ended_after_s"] < 70
    if find_py_spy():
        stacks = (finished.directory / "hang_1_rank_1.stack.txt").read_text()
        assert f"guilty_nap (script.py:{SLEEPS_AT})" in stacks
        assert (finished.directory / "hang_1_rank_0.stack.txt").exists()
    else:
        assert all("pip install" in one["problem"] for one in hang["stacks"])


def test_mismatched_collectives_are_reported_during_the_run(finished: Finished) -> None:
    (path,) = finished.directory.glob("watchdog_*.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    (event,) = [one for one in events if one["kind"] == "mismatch"]
    differs = "rank 1 issued an all_reduce(sum) of 12 bytes as Float (script.py:"
    assert differs in event["sentence"]
    assert "where rank 0 issued an all_reduce(sum) of 8 bytes as Float" in event["sentence"]


def test_the_watched_script_finishes_with_its_usual_exit_code(finished: Finished) -> None:
    losses = {
        line.split()[-1]
        for line in finished.process.stdout.splitlines()
        if line.startswith("rank ") and " loss " in line
    }
    assert len(losses) == 2
    # The script exits with 7; torchrun returns 1 for every failure.
    assert finished.process.returncode == (7 if "run" in finished.directory.parts else 1)


def test_the_report_shows_the_hang_and_the_mismatch(finished: Finished) -> None:
    words = ("-m", "commprof", "report", str(finished.directory))
    text = call(*words, "--all", COLUMNS="200").stdout
    assert "rank 1 did not arrive at all_reduce number" in text
    assert "is not the same on all ranks: rank 1 issued an all_reduce(sum) of 12 bytes" in text
    done = call("-m", "commprof", "report", str(finished.directory), "--format", "json")
    (found,) = json.loads(done.stdout)["incidents"]
    assert found["hangs"][0]["accused"] == [1]
    assert found["mismatches"][0]["odd_ranks"] == [0, 1]
    page = call("-m", "commprof", "report", str(finished.directory), "--format", "html")
    assert page.returncode == 0
    assert 'id="incidents"' in (finished.directory / "report.html").read_text()


def test_no_watchdog_process_is_left_after_the_run(finished: Finished) -> None:
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if (
                b"commprof.monitor.watchdog" in command
                and os.fsencode(finished.directory) in command
            ):
                left.append(command)
    assert left == []


def test_an_invalid_watchdog_threshold_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "commprof.run", "--watchdog", "soon"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--watchdog 'soon' is not a threshold (allowed: auto, or a number of" in done.stderr
