from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.commands import RUN, call

SCRIPT = """
import sys, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
kind = sys.argv[1]
torch.manual_seed(dist.get_rank())
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
head = nn.Linear(64, 64)
ddp = DDP(model) if kind in ("ddp", "head", "inner") else model
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    inner = model if kind in ("inner", "loop", "none") else ddp
    hidden = inner(torch.randn(8, 64))
    (head(hidden) if kind == "head" else hidden).square().mean().backward()
    if kind == "loop":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    dist.all_reduce(torch.ones(1))
    optimizer.step()
    time.sleep(0.015)
dist.destroy_process_group()
"""


def run(tmp_path: Path, kind: str, *options: str) -> tuple[dict[str, Any], str, str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ("--nproc", "2", "--output", str(tmp_path / "run"), *options, str(script), kind)
    ended = call(*RUN, *words, timeout_s=180)
    assert ended.returncode == 0, ended.stderr
    return json.loads((tmp_path / "run" / "result.json").read_text()), ended.stdout, ended.stderr


@pytest.mark.parametrize("kind", ["none", "inner"])
def test_ranks_without_an_exchange_are_told_once_while_they_train(
    tmp_path: Path, kind: str
) -> None:
    """With "inner", the script calls the inner model instead of DDP's model."""
    result, shown, said = run(tmp_path, kind)
    lines = [line for line in said.splitlines() if "without exchanging their gradients" in line]
    assert len(lines) == 1, said
    assert "updates of its parameters (49.9 kB) without" in lines[0]
    apart = result["runs"][0]["aggregated_metrics"]["apart"]
    assert (apart["kind"], apart["together"]) == ("nothing", [[0], [1]])
    assert apart["apart_bytes"] == 3 * 4 * (64 * 64 + 64)
    assert result["verdict"]["headline"].startswith("The 2 ranks train apart: in 60 updates, no")
    assert "needs no change" not in shown


@pytest.mark.parametrize("kind", ["ddp", "loop"])
def test_ranks_that_exchange_gradients_are_told_nothing(tmp_path: Path, kind: str) -> None:
    result, _, said = run(tmp_path, kind)
    assert "without exchanging" not in said
    assert result["runs"][0]["aggregated_metrics"]["apart"] is None


@pytest.mark.slow
def test_a_head_outside_of_the_ddp_model_is_named(tmp_path: Path) -> None:
    result, _, said = run(tmp_path, "head")
    assert "without exchanging" not in said
    apart = result["runs"][0]["aggregated_metrics"]["apart"]
    assert (apart["kind"], apart["apart_bytes"]) == ("parameters", 4 * (64 * 64 + 64))


@pytest.mark.slow
def test_always_on_mode_finds_ranks_without_an_exchange(tmp_path: Path) -> None:
    result, shown, said = run(tmp_path, "none", "--mode", "always-on")
    assert said.count("without exchanging their gradients") == 1
    assert result["summaries"][0]["apart"]["kind"] == "nothing"
    assert "The 2 ranks train apart: in 59 updates" in " ".join(shown.split())
