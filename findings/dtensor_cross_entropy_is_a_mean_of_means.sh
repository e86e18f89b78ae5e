#!/bin/bash
# Guess: cross_entropy of DTensors that are sharded over the batch is the whole batch's also where
# some targets are ignored (ignore_index, as padding of language models) or classes have weights.
# Truth: the gradients are right and the value is not: it is the mean of the ranks' means, as if each
# rank had as many targets that count. Where one rank's targets are all ignored it is NaN, and the
# gradients are right still. With reduction="sum" divided by the number of targets it is right.
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


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
outputs = torch.randn(6, 4)
weights = torch.tensor([1.0, 2.0, 3.0, 4.0])


def losses(labels, weight=None, by_hand=False):
    """Loss of the whole batch, of DTensors, the mean of the halves' losses, and right gradients?"""
    targets = torch.tensor(labels)

    def loss(rows, of_rows, weight):
        if by_hand:
            return F.cross_entropy(rows, of_rows, reduction="sum") / targets.ge(0).sum().item()
        return F.cross_entropy(rows, of_rows, weight=weight)

    whole = outputs.clone().requires_grad_()
    value = loss(whole, targets, weight)
    value.backward()
    halves = [loss(outputs[part], targets[part], weight) for part in (slice(0, 3), slice(3, 6))]
    sharded = distribute_tensor(outputs, mesh, [Shard(0)]).requires_grad_()
    if weight is not None:
        weight = distribute_tensor(weight, mesh, [Replicate()])
    of_shards = loss(sharded, distribute_tensor(targets, mesh, [Shard(0)]), weight).full_tensor()
    of_shards.backward()
    right = torch.allclose(sharded.grad.full_tensor(), whole.grad, atol=1e-6)
    numbers = (value, of_shards, sum(halves) / 2)
    return *(f"{number.item():.4f}" for number in numbers), right


columns = "whole batch, DTensors, mean of ranks' means, gradients right"
expect(f"all count: {columns}", losses([0, 1, 2, 3, 0, 1]), ("1.4165", "1.4165", "1.4165", True))
padded = [0, 1, 2, -100, -100, 1]
expect(f"two of six are ignored: {columns}", losses(padded), ("1.2418", "1.3368", "1.3368", True))
expect(f"one rank's are all ignored: {columns}", losses([0, 1, 2, -100, -100, -100]),
       ("1.1467", "nan", "nan", True))
expect(f"weights of classes: {columns}", losses([0, 1, 2, 3, 0, 1], weights),
       ("1.3546", "1.3252", "1.3252", True))
expect("sum over ranks, by hand: whole batch, DTensors", losses(padded, by_hand=True)[:2],
       ("1.2418", "1.2418"))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
