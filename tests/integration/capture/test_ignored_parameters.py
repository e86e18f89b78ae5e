from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.machines.commands import RUN, call

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, torch, torch._dynamo, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()

class Net(nn.Module):
    def __init__(self, rows, value):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Module()
        self.table.shard = nn.Parameter(torch.full((rows, 4), value))
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
        self.register_buffer("seen", torch.full((rows,), value))

    def forward(self, x):
        self.seen += 1
        return self.mlp(x) + self.table.shard.sum() * 1e-4

def ignored(rows, value):
    net = Net(rows, value)
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["table.shard", "seen"])
    return DDP(net)

def frozen():
    net = Net(3 + rank, 0.5)
    net.table.shard.requires_grad_(False)
    return DDP(net, init_sync=False, broadcast_buffers=False)

def delayed():
    net = Net(3, 0.5)
    names = [("table.shard", net.table.shard)]
    return DDP(net, delay_all_reduce_named_params=names, param_to_hook_all_reduce=net.mlp[0].bias)

def python_reducer():
    torch._dynamo.config.optimize_ddp = "python_reducer"
    return DDP(Net(3, 0.5))

class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(10, 8, sparse=True)
        self.mlp = nn.Linear(8, 1)

    def forward(self, x):
        return self.mlp(self.rows(torch.tensor([1 + rank, 3])) + x[:2])

MAKERS = {
    "shapes": lambda: ignored(1000 if rank == 0 else 0, 0.5),
    "values": lambda: ignored(10, 0.5 + rank),
    "frozen": frozen,
    "delayed": delayed,
    "sparse": lambda: DDP(Sparse()),
    "python_reducer": python_reducer,
}

for name in sys.argv[2:]:
    model = MAKERS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    shared = torch.cat([p.detach().flatten() for p in model.module.mlp.parameters()])
    assert torch.isfinite(shared).all()
    both = [torch.empty_like(shared) for _ in range(2)]
    dist.all_gather(both, shared)
    sys.stdout.write(f"rank {rank} trained {name}: {torch.equal(*both)}\\n")
    sys.stdout.flush()
dist.destroy_process_group()
"""
NAMES = ("shapes", "values", "frozen", "delayed", "sparse", "python_reducer")


def run(tmp_path: Path, *options: str, steps: int, names: tuple[str, ...]) -> tuple[str, str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    output = str(tmp_path / "run")
    words = ("--nproc", "2", "--output", output, *options, str(script), str(steps), *names)
    ended = call(*RUN, *words, timeout_s=180)
    assert ended.returncode == 0, ended.stderr
    trained = re.findall(r"trained (\w+): (\w+)", ended.stdout + ended.stderr)
    assert sorted(trained) == sorted((name, "True") for name in names for _ in range(2))
    return ended.stdout, ended.stderr


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_compressor_leaves_ignored_parameters_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    monkeypatch.setenv("COMMPROF_NATIVE", native)
    _, said = run(tmp_path, "--hook", "topk:ratio=0.1", steps=4, names=NAMES)
    lines = [line for line in said.splitlines() if "trains without the compressor" in line]
    assert len(lines) == 1, said
    assert "topk:ratio=0.1: attach(): DDP's Python reducer" in lines[0]


def test_a_trial_leaves_ignored_parameters_out(tmp_path: Path) -> None:
    words = ("--trial", "int8,topk:ratio=0.1,bucket-cap=0.001,rounds=3,block=1")
    run(tmp_path, *words, steps=70, names=("shapes",))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    trial = result["trial"]
    assert (trial["rounds"], trial["left_out"]) == (3, [])
    sent = {row["label"]: row["wire_bytes"] for row in trial["candidates"]}
    # The ranks average only 161 gradients of 4 bytes each, because DDP ignores the shards.
    assert sent["none"] == 4 * 161
    assert 0 < sent["int8"] < sent["none"]


def test_a_trial_gives_up_a_compressor_on_which_the_ranks_do_not_agree(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
# Both ranks have one bucket of 12 values, of parameters with other shapes.
net = nn.Linear(3, 4, bias=False) if dist.get_rank() else nn.Linear(4, 3, bias=False)
model = DDP(net, init_sync=False)
for _ in range(40):
    model(torch.ones(2, net.in_features)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
    import commprof
    commprof.step()
print("trained", flush=True)
dist.destroy_process_group()
"""
    )
    words = ("--nproc", "2", "--output", str(tmp_path / "run"), "--trial", "fp16,rounds=3,block=1")
    ended = call(*RUN, *words, str(script), timeout_s=120)
    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout + ended.stderr).count("trained") == 2
    assert "fp16 takes no part in the trial: rank 0 has parameter 'weight [3, 4]" in ended.stderr


def test_the_sync_check_compares_what_ddp_keeps_equal(tmp_path: Path) -> None:
    _, said = run(tmp_path, "--check-sync", "2", steps=6, names=("values", "shapes"))
    assert "bit-identical" not in said
    assert "--check-sync" not in said
