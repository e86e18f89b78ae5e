#!/bin/bash
# Guess: a layer that was frozen when DDP was made, and is unfrozen later as in gradual fine-tuning, has
# averaged gradients like all others, or DDP refuses the change.
# Truth: DDP never averages them, and says nothing: each rank updates the layer with its own gradients,
# so that the ranks' models drift apart. Freezing a layer later does end in an error, at the next forward.
# Made anew after unfreezing, DDP averages all, but also sends rank 0's weights.
# Seen with torch 2.13.0, gloo, 2 ranks; with find_unused_parameters=True as well.
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


def one_step(model):
    """Gradients of both layers on each rank, and weights of the first after an update."""
    model.zero_grad()
    model(torch.full((1, 1), float(1 + rank))).sum().backward()
    gradients = [parameter.grad.item() for parameter in model.parameters()]
    torch.optim.SGD(model.parameters(), 0.1).step()
    return of_ranks(gradients), of_ranks(round(next(model.parameters()).item(), 6))


warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()
for options in ({}, {"find_unused_parameters": True}):
    layers = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for layer in layers:
        nn.init.ones_(layer.weight)
    layers[0].requires_grad_(False)
    model = DistributedDataParallel(layers, **options)
    model(torch.ones(1, 1)).sum().backward()
    layers[0].requires_grad_(True)
    gradients, weights = one_step(model)
    # 1.5 on both ranks is the mean of the inputs 1 and 2
    expect(f"{options}: gradients of the unfrozen layer and of the other", gradients, [[1.0, 1.5], [2.0, 1.5]])
    expect(f"{options}: the unfrozen weight after a step", weights, [0.9, 0.8])
model = DistributedDataParallel(layers)
expect("made anew: the weight of each rank", of_ranks(round(layers[0].weight.item(), 6)), [0.9] * 2)
gradients, _ = one_step(model)
expect("made anew: gradients are equal", gradients[0] == gradients[1], True)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
