from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commprof import _native
from tests.support.machines.commands import RUN, call

pytestmark = [
    pytest.mark.skipif(_native.native is None, reason="needs the C++ module"),
    pytest.mark.slow,
    pytest.mark.measures,
]

CHANGED, SLOWER, MORE_MS = 20, 80, 30
SCRIPT = f"""
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.pause_s = 0.02

    def forward(self, inputs):
        time.sleep(self.pause_s)
        return self.layer(inputs)


model = Model()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
for step in range(200):
    if rank == 1 and step == {SLOWER}:
        model.pause_s += {MORE_MS} / 1e3
    loss = ddp(torch.full((8, 64), 1.0 + rank)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 1 and step == {CHANGED}:
        with torch.no_grad():
            weight = model.layer.weight
            weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
dist.destroy_process_group()
"""


@dataclass
class Finished:
    directory: Path
    process: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs() -> dict[int, Finished]:
    """Returns the runs by number of the attempt, because a repeated test needs a new run."""
    return {}


@pytest.fixture
def finished(
    request: pytest.FixtureRequest,
    runs: dict[int, Finished],
    tmp_path_factory: pytest.TempPathFactory,
) -> Finished:
    attempt = getattr(request.node, "execution_count", 1)
    if attempt not in runs:
        runs[attempt] = watched(tmp_path_factory.mktemp("watched"))
    return runs[attempt]


def watched(place: Path) -> Finished:
    script = place / "script.py"
    script.write_text(SCRIPT)
    options = ["--nproc", "2", "--check-sync", "5", "--watchdog", "60"]
    done = call(*RUN, *options, "--output", str(place / "run"), str(script), timeout_s=120)
    return Finished(place / "run/world_2", done)


def test_the_watched_job_exits_with_0(finished: Finished) -> None:
    assert finished.process.returncode == 0, finished.process.stderr


def test_a_model_that_differs_by_one_bit_is_reported(finished: Finished) -> None:
    # The models are compared after every fifth step, so the first report is after step 24.
    said = "commprof: after step 24 the model of rank 1 is not bit-identical to "
    assert said in finished.process.stderr
    shown = " ".join(finished.process.stdout.split())
    found = (
        "the model of rank 1 differed from the models of most other ranks; the first difference "
        "was found after step 24"
    )
    assert found in shown


def anomalies(directory: Path) -> list[dict[str, Any]]:
    (path,) = directory.glob("watchdog_*.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in events if event["kind"] == "anomaly"]


def test_a_rank_that_became_slower_is_reported_during_the_run(finished: Finished) -> None:
    (own,) = [one for one in anomalies(finished.directory) if one["what"] == "own work"]
    assert (own["rank"], own["phase"]) == (1, "forward")
    # Noise of a busy machine can shift the step in which the change seems to begin.
    assert SLOWER - 30 <= own["step"] <= SLOWER + 1
    assert SLOWER < own["found_step"] < SLOWER + 40
    assert own["after"] - own["before"] == pytest.approx(MORE_MS, rel=0.3)
    steps = [one for one in anomalies(finished.directory) if one["what"] == "step time"]
    assert any(SLOWER < one["found_step"] < SLOWER + 40 and one["rank"] == -1 for one in steps)


def test_the_report_names_the_rank_that_became_slower(finished: Finished) -> None:
    shown = " ".join(finished.process.stdout.split())
    assert "Rank 1's own work rose from" in shown
    assert "most of it in forward" in shown
