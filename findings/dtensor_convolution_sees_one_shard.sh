#!/bin/bash
# Guess: a convolution of a DTensor that is sharded over height, width or length is the whole
# tensor's, or is refused.
# Truth: each rank convolves its own part alone, without a message to its neighbour. The result says
# that it is replicated and has the whole one's shape, but what a rank holds is half as long and
# differs from rank to rank. Sharded over the batch it is right; over channels it is refused.
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
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
images, kernels = torch.randn(4, 3, 8, 8), torch.randn(5, 3, 3, 3)
weights = distribute_tensor(kernels, mesh, [Replicate()])
whole = F.conv2d(images, kernels, padding=1)


def convolved(dim):
    """Placement, shape, calls and held shape of the convolution of images sharded over a dim."""
    sharded = distribute_tensor(images, mesh, [Shard(dim)])
    with CommDebugMode() as calls:
        result = F.conv2d(sharded, weights, padding=1)
    held = [torch.empty(0)] * 2
    dist.all_gather_object(held, result.to_local())
    values = result.full_tensor()
    return {
        "placements": str(result.placements),
        "shape": tuple(result.shape),
        "held": tuple(held[0].shape),
        "calls": calls.get_total_counts(),
        "right": values.shape == whole.shape and torch.allclose(values, whole, atol=1e-4),
        "ranks hold the same": torch.equal(*held),
    }


wrong = {"placements": "(Replicate(),)", "shape": (4, 5, 8, 8), "held": (4, 5, 4, 8), "calls": 0,
         "right": False, "ranks hold the same": False}
expect("over height", convolved(2), wrong)
expect("over width", convolved(3), {**wrong, "held": (4, 5, 8, 4)})
batch = {**wrong, "placements": "(Shard(dim=0),)", "held": (2, 5, 8, 8), "right": True}
expect("over the batch", convolved(0), batch)
try:
    told = str(convolved(1))
except RuntimeError as error:
    told = "to have 3 channels" in str(error)
expect("over channels it is refused", told, True)
line = F.conv1d(distribute_tensor(torch.ones(2, 3, 8), mesh, [Shard(2)]),
                distribute_tensor(torch.ones(5, 3, 3), mesh, [Replicate()]))
expect("conv1d: shape, and that of full_tensor()", (line.shape[2], line.full_tensor().shape[2]), (6, 2))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
