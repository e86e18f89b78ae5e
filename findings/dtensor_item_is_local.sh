#!/bin/bash
# Guess: `sharded.sum().item()` of a DTensor is the sum of the whole tensor; what is still partial
# is reduced first.
# Truth: no collective is issued and each rank gets the sum of its own shard, without a warning.
# Only `.full_tensor().item()` exchanges. A metric that is read like this is silently one rank's.
# Seen with torch 2.13.0, gloo, 2 ranks: 8.0 of 16.0.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
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
mesh = init_device_mesh("cpu", (2,))
sharded = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
seen = []
calls = ranges(lambda: seen.append(sharded.sum().item()))
expect("sum().item() of sixteen ones", seen[0], 8.0)
expect("collectives of sum().item()", calls, [])
expect("sum().full_tensor().item()", sharded.sum().full_tensor().item(), 16.0)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
