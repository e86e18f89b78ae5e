#!/bin/bash
# Guess: a loss of two DTensors that are sharded over the batch, and its gradients, are those of the
# whole tensors: mse_loss and (a - b).square().mean() are the same.
# Truth: mse_loss, smooth_l1_loss, huber_loss, soft_margin_loss and binary_cross_entropy give
# gradients that are the number of ranks times too large, without an error. If ranks have unequal
# numbers of rows, these and binary_cross_entropy_with_logits give the mean of the ranks' means as
# well, and each row's gradient is too large by another factor. l1_loss and the same loss written by
# hand are right.
# Seen with torch 2.13.0, gloo, 2 and 3 ranks.
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
from torch.distributed.tensor import Shard, distribute_tensor


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def by_hand(a, b):
    return (a - b).square().mean()


LOSSES = (
    by_hand, F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss,
    F.binary_cross_entropy, F.binary_cross_entropy_with_logits,
)


def compared(loss, rows):
    """Value and gradients of each rank's rows, as multiples of those of the whole tensors."""
    torch.manual_seed(0)
    outputs = torch.rand(rows, 3) * 0.8 + 0.1
    targets = torch.rand(rows, 3) * 0.8 + 0.1
    whole = outputs.clone().requires_grad_()
    value = loss(whole, targets)
    value.backward()
    sharded = distribute_tensor(outputs, mesh, [Shard(0)]).requires_grad_()
    of_shards = loss(sharded, distribute_tensor(targets, mesh, [Shard(0)]))
    of_shards = of_shards.full_tensor()
    of_shards.backward()
    ratios = (sharded.grad.full_tensor() / whole.grad).mean(1).tolist()
    factors = sorted({round(ratio, 2) for ratio in ratios})
    return "right" if torch.isclose(of_shards, value) else "wrong", factors


dist.init_process_group("gloo")
world = dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
right = {"by_hand", "l1_loss"}
for loss in LOSSES:
    name = loss.__name__
    factors = [1.0] if name in right or name.endswith("logits") else [float(world)]
    expect(f"{name} of {2 * world} rows on {world} ranks", compared(loss, 2 * world), ("right", factors))
if world == 2:
    for loss in LOSSES:
        name = loss.__name__
        factors = [1.0] if name in right or name.endswith("logits") else [1.67, 2.5]
        value = "right" if name in right else "wrong"
        expect(f"{name} of 5 rows on 2 ranks", compared(loss, 5), (value, factors))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
for ranks in 2 3; do
  "$python" -m torch.distributed.run --standalone --nproc-per-node $ranks job.py
done
