#!/bin/bash
# Guess: FSDP2 overlaps its all-gathers and reduce-scatters with computation over gloo as over
# NCCL; with forward prefetching all the more.
# Truth: it issues them as blocking calls and leaves the overlap to streams, which CPUs do not
# have: the training thread waits inside each one. Prefetching only moves the waiting forward, to
# where the module before has not yet computed.
# Seen with torch 2.13.0, gloo, 2 ranks, rank 1 late by 0.4 s for the first module.
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
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")

calls = []


def noted(name):
    """Notes of each call whether it was asynchronous and how long it kept the thread."""
    original = getattr(dist, name)

    def call(*arguments, **options):
        begin = time.perf_counter()
        result = original(*arguments, **options)
        calls.append((name, options.get("async_op", False), time.perf_counter() - begin))
        return result

    setattr(dist, name, call)


class Layer(nn.Module):
    """Multiplies, and notes when it begins to compute."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, tensor):
        calls.append(("computes", None, 0.0))
        return self.linear(tensor)


def passed(prefetched):
    """Calls of one training pass, to which rank 1 comes late."""
    model = nn.Sequential(Layer(), Layer())
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if prefetched:
        model[0].set_modules_to_forward_prefetch([model[1]])
    model(ones).sum().backward()
    dist.barrier()
    calls.clear()
    if dist.get_rank() == 1:
        time.sleep(0.4)
    model(ones).sum().backward()
    return list(calls)


dist.init_process_group("gloo")
for name in ("all_gather_single", "reduce_scatter_single"):
    noted(name)
mesh = init_device_mesh("cpu", (2,))
ones = torch.ones(2, 64)
seen = passed(prefetched=False)
exchanges = [call for call in seen if call[0] != "computes"]
expect("asynchronous calls of a pass", sum(call[1] for call in exchanges), 0)
expect("calls of a pass", len(exchanges), 6)
expect("first gather waits for rank 1", seen[0][2] > 0.3, True)
seen = [call[0] for call in passed(prefetched=True)][:4]
gather = "all_gather_single"
expect("with prefetching", seen, [gather, gather, "computes", "computes"])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
