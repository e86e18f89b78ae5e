#!/bin/bash
# Guess: fully_shard starts all ranks from rank 0's weights, as DDP does and as distribute_tensor does
# when it cuts a tensor, or it needs equal weights and says so.
# Truth: each rank keeps its own rows, and nothing is compared. Where ranks were seeded by rank, or one
# of them alone has read a checkpoint, the model is a mixture: its upper half is rank 0's, its lower half
# rank 1's. Nothing fails, and no later comparison of ranks can tell, as no two hold the same rows.
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
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def layer():
    """A layer whose weights tell the rank that made it."""
    made = nn.Linear(2, 4, bias=False)
    nn.init.constant_(made.weight, float(10 + rank))
    return made


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
with_ddp = DistributedDataParallel(layer())
of_ranks = [None, None]
dist.all_gather_object(of_ranks, with_ddp.module.weight[:, 0].tolist())
expect("DDP, first column on each rank", of_ranks, [[10.0] * 4, [10.0] * 4])
cut = distribute_tensor(layer().weight.detach(), mesh, [Shard(0)])
expect("distribute_tensor, first column", cut.full_tensor()[:, 0].tolist(), [10.0] * 4)
sharded = fully_shard(layer(), mesh=mesh)
expect("fully_shard, first column", sharded.weight.full_tensor()[:, 0].tolist(), [10.0, 10.0, 11.0, 11.0])
# a forward pass on the same input, on each rank: both use the mixture
dist.all_gather_object(of_ranks, sharded(torch.ones(1, 2)).flatten().tolist())
expect("outputs for ones", of_ranks, [[20.0, 20.0, 22.0, 22.0]] * 2)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
