#!/bin/bash
# Guess: after optimizer.step() the next forward pass of an FSDP2 model uses the new weights,
# whatever forward passes came before.
# Truth: a forward pass without a backward pass leaves the outermost module's parameters gathered.
# Where it stands between backward and step, as for a metric, the next forward pass does not gather
# again and computes with the weights before the step, without a word; reshard() ends it. Where
# validation follows the step, the values are right, and the next training pass has one gather
# less.
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
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def operators(call):
    """Returns how often each operator of c10d is issued during a call."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        call()
    names = [event.name for event in recorded.events() if event.name.startswith("c10d::")]
    return {name.removeprefix("c10d::"): count for name, count in Counter(names).items()}


def training(between):
    """Trains one step from weights of 1 to weights of 0; returns the next forward's output."""
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(ones).sum().backward()
    between(model)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        output = model(ones)[0, 0].item()
    return model, output


def forward(model):
    with torch.no_grad():
        model(ones)


def forward_and_reshard(model):
    forward(model)
    model.reshard()


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
ones = torch.ones(1, 4)
model, output = training(lambda model: None)
expect("output after the step", output, 0.0)
after = operators(lambda: model(ones).sum().backward())
expect("training pass after validation", after, {"_reduce_scatter_base_": 1})
again = operators(lambda: model(ones).sum().backward())
expect("training pass after training", again, {"_allgather_base_": 1, "_reduce_scatter_base_": 1})
expect("output after forward, step", training(forward)[1], 4.0)
expect("output after forward, reshard(), step", training(forward_and_reshard)[1], 0.0)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
