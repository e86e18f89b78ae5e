from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.commands import RUN, call

pytestmark = pytest.mark.slow
SMALL = "transformer:vocab=64,d_model=16,feedforward=16,layers=2,sequence=8,samples=64"
STEPS = 8


def train(
    directory: Path, world_sizes: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    done = call(
        *RUN, "--world-sizes", world_sizes, "--scaling", "strong", "--workload", SMALL,
        "--batch-size", "16", "--steps", str(STEPS), "--overhead-steps", "0", "--seed", "3",
        "--output", str(directory / "run"), "--json", str(directory / "result.json"),
        timeout_s=400, **environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, json.loads((directory / "result.json").read_text())


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_loss_curves_of_1_2_4_and_8_ranks_agree(tmp_path: Path) -> None:
    done, result = train(tmp_path, "1,2,4,8")

    agreement = result["loss_agreement"]
    assert agreement["world_sizes"] == [1, 2, 4, 8]
    assert (agreement["steps"], agreement["samples"]) == (STEPS, 16)
    assert agreement["worst"] <= agreement["tolerance"] == 1e-4
    assert agreement["agrees"]
    curves = [run["aggregated_metrics"]["step_losses"] for run in result["runs"]]
    alone = curves[0]
    assert len(alone) == STEPS
    assert len(set(alone)) > 1
    for curve in curves[1:]:
        assert curve == pytest.approx(alone, rel=1e-4)
    assert (
        "* Loss curves of 1, 2, 4 and 8 ranks agree: the runs used the same 16 samples per step "
        "for 8 steps" in words(done.stdout)
    )
    assert "(allowed: 1e-04, because the order of sums differs)" in words(done.stdout)


PLANT = """
import os
import torch.distributed as dist
from commprof.workloads.strategies import ddp

def forgetful():
    step = 0
    def hook(state, bucket):
        nonlocal step
        step += bucket.is_last()
        own = bucket.buffer().clone()
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        forget = step == 3
        return work.get_future().then(lambda mean: own if forget else mean.value()[0])
    return hook

def plant(wrap):
    def wrapped(self, trainee, options, shard):
        model = wrap(self, trainee, options, shard)
        if os.environ["RANK"] == "1":
            model.register_comm_hook(None, forgetful())
        return model
    return wrapped

ddp.Ddp.wrap = plant(ddp.Ddp.wrap)
"""

SITE = """
import sys

class Plant:
    def find_spec(self, name, path=None, target=None):
        if name == "commprof.workloads.training":
            sys.meta_path.remove(self)
            import planted
        return None

sys.meta_path.insert(0, Plant())
"""


def test_loss_curves_disagree_where_a_rank_skips_one_synchronisation(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANT)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done, result = train(tmp_path, "1,2,8", PYTHONPATH=path)

    agreement = result["loss_agreement"]
    assert agreement["steps"] == STEPS
    assert agreement["worst_step"] >= 3
    assert not agreement["agrees"]
    differing = [run["aggregated_metrics"]["weights_differ"] for run in result["runs"]]
    assert differing == [[], [1], [1]]
    text = words(done.stdout)
    assert re.search(
        r"\* Loss curves of 1, 2 and 8 ranks DISAGREE: at [28] ranks the loss of", text
    )
    for size in (2, 8):
        assert f"* At {size} ranks the weights of rank 1 differ from the weights of" in text
