#!/bin/bash
# Guess: random numbers of a sharded DTensor are those of the whole tensor, or at least not the same on
# all ranks, and dropout of a replicated one drops the same elements on all ranks, as on GPUs; or CPUs are
# refused, as by torch.distributed.tensor.randn.
# Truth: each rank draws from its own generator. With the same seed on all ranks, which fully_shard and
# DTensors ask for, every shard of a weight begins with the same values: a layer of 4 units on 2 ranks has
# 2. With other seeds, a replicated tensor differs between the ranks after dropout. A warning says that
# random operators "may not have complete support" on a mesh of CPUs.
# Seen with torch 2.13.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def halves_equal(sharded):
    upper, lower = sharded.full_tensor().chunk(2)
    return torch.equal(upper, lower)


warnings.simplefilter("ignore")
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
zeros = torch.zeros(4, 3)
with torch.device("meta"):
    layer = nn.Linear(3, 4)
fully_shard(layer, mesh=mesh)
layer.to_empty(device="cpu")
torch.manual_seed(7)
layer.reset_parameters()
expect("weights of a layer that was made on meta, units 0-1 are 2-3", halves_equal(layer.weight), True)
for name in ("normal_", "uniform_", "bernoulli_"):
    torch.manual_seed(7)
    filled = getattr(distribute_tensor(zeros, mesh, [Shard(0)]), name)()
    expect(f"{name}: shards are equal", halves_equal(filled), True)
torch.manual_seed(7)
noise = torch.rand_like(distribute_tensor(zeros, mesh, [Shard(0)]))
expect("rand_like: shards are equal", halves_equal(noise), True)
torch.manual_seed(dist.get_rank())
dropped = nn.functional.dropout(distribute_tensor(torch.ones(64), mesh, [Replicate()]))
of_ranks = [None, None]
dist.all_gather_object(of_ranks, dropped.to_local().tolist())
expect("dropout of a replicated tensor: placements", dropped.placements, (Replicate(),))
expect("equal on both ranks", of_ranks[0] == of_ranks[1], False)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
