#!/bin/bash
# Guess: the backward pass of torch.distributed.nn.functional.all_gather is one reduce-scatter.
# Truth: over gloo it is one scatter per rank of the group, one after the other, and the sum is
# taken locally: N calls, none of them a reduction. (all_to_all is the same: N scatters in each
# direction.)
# Seen with torch 2.13.0, gloo, 3 ranks.
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
import torch.distributed.nn.functional as functional
from torch.profiler import ProfilerActivity, profile


def ranges(call):
    """Name and input shapes of each gloo range that torch.profiler records of one call."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        call()
    events = sorted(recorded.events(), key=lambda event: event.time_range.start)
    return [(event.name, event.input_shapes) for event in events if event.name.startswith("gloo:")]


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
leaf = torch.ones(4, requires_grad=True)
gathered = []
forward = ranges(lambda: gathered.extend(functional.all_gather(leaf)))
expect("forward", [name for name, _ in forward], ["gloo:all_gather"])
loss = sum((part * (rank + 1.0)).sum() for part in gathered)
backward = ranges(loss.backward)
expect("backward", [name for name, _ in backward], ["gloo:scatter"] * 3)
expect("gradient, 1 + 2 + 3", leaf.grad.tolist(), [6.0] * 4)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 3 job.py
