#!/bin/bash
# Guess: a hook of Tensor.register_post_accumulate_grad_hook, which is where an optimizer that runs within
# backward steps, sees averaged gradients under DDP, as it does under FSDP2; or DDP refuses it.
# Truth: it runs before DDP has exchanged anything, and sees the rank's own gradient, whether it was
# registered before or after DDP was made. An optimizer in it updates each rank's copy with its own
# gradients: the models drift apart, and nothing is said. Under FSDP2 the hook sees the mean.
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
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def of_ranks(value):
    gathered = [None, None]
    dist.all_gather_object(gathered, value)
    return gathered


def layer():
    made = nn.Linear(2, 1, bias=False)
    nn.init.ones_(made.weight)
    return made


def stepping(model):
    """Adds an optimizer that steps within backward; returns the gradients that it will see."""
    (weight,) = model.parameters()
    optimizer = torch.optim.SGD([weight], 0.1)
    seen = []

    def hook(parameter):
        whole = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        seen.append(whole.flatten().tolist())
        optimizer.step()
        parameter.grad = None

    weight.register_post_accumulate_grad_hook(hook)
    return seen


def weight_after_backward(model):
    model(torch.full((1, 2), float(1 + rank))).sum().backward()
    (weight,) = model.parameters()
    whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
    return of_ranks([round(value, 6) for value in whole.flatten().tolist()])


dist.init_process_group("gloo")
rank = dist.get_rank()
sharded = fully_shard(layer())
seen = stepping(sharded)
weights = weight_after_backward(sharded)
expect("FSDP2: gradients that the hook sees", of_ranks(seen), [[[1.5, 1.5]]] * 2)
expect("FSDP2: weights", weights, [[0.85, 0.85]] * 2)
after = DistributedDataParallel(layer())
seen = stepping(after)
weights = weight_after_backward(after)
expect("DDP: gradients that the hook sees", of_ranks(seen), [[[1.0, 1.0]], [[2.0, 2.0]]])
expect("DDP: weights", weights, [[0.9, 0.9], [0.8, 0.8]])
before = layer()
seen = stepping(before)
weights = weight_after_backward(DistributedDataParallel(before))
expect("registered before DDP: weights", weights, [[0.9, 0.9], [0.8, 0.8]])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
