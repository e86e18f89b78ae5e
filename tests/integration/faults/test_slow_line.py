from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commprof import _native
from commprof.monitor.watchdog.py_spy import find_py_spy
from tests.support.machines.commands import call

pytestmark = [
    pytest.mark.skipif(_native.native is None, reason="stacks need the C++ module"),
    pytest.mark.measures,
    pytest.mark.slow,
]

SCRIPT = """
import time

import torch
import torch.distributed as dist

import commprof


def augment():
    time.sleep(0.02)


dist.init_process_group("gloo")
for step in range(200):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.005)
    if dist.get_rank() == 1:
        augment()
    dist.all_reduce(torch.ones(8))
    time.sleep(0.005)
    commprof.step()
dist.destroy_process_group()
"""
FIRST, SECOND, SLEEP = (
    SCRIPT.splitlines().index(text) + 1
    for text in (
        "    dist.all_reduce(torch.ones(4))",
        "    dist.all_reduce(torch.ones(8))",
        "    time.sleep(0.02)",
    )
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("job")
    script = place / "train.py"
    script.write_text(SCRIPT)
    result = place / "result.json"
    options = ["--nproc", "2", "--stacks", "--output", str(place / "run"), "--json", str(result)]
    options += ["--samples"] if find_py_spy() else []
    done = call("-m", "commprof.run", *options, str(script), timeout_s=120)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(result.read_text())["runs"]
    figures: dict[str, Any] = found["aggregated_metrics"]
    assert figures["late_rank"]["rank"] == 1
    return figures


def test_the_collective_calls_around_the_slow_code_are_named_by_line(world: dict[str, Any]) -> None:
    (found,) = world["longer_lines"]
    assert Path(found["begin"].rsplit(" ", 1)[0]).name == f"train.py:{FIRST}"
    assert Path(found["end"].rsplit(" ", 1)[0]).name == f"train.py:{SECOND}"
    assert (found["rank"], found["phase"]) == (1, "other")
    assert found["longer_ms"] == pytest.approx(20, rel=0.1)
    assert found["longer_ms"] <= found["phase_ms"]


@pytest.mark.needs("py-spy")
def test_the_slow_function_of_the_late_rank_is_named(world: dict[str, Any]) -> None:
    found = world["grown_functions"]
    assert (found["rank"], found["problem"]) == (1, "")
    first = found["functions"][0]
    assert first["function"] == f"augment (train.py:{SLEEP})"
    # The function takes 20 ms of each step, and was sampled about 500 times.
    assert first["own_ms"] == pytest.approx(20, rel=0.2)
    assert first["others_ms"] == 0
