#!/bin/bash
# Guess: a DTensor goes from Shard(0) to Shard(1) by one all-to-all, on every device, since gloo
# has all_to_all_single.
# Truth: on CPUs it is an all-gather of everything and a local cut: each rank holds the whole
# tensor for a moment and receives N times what it keeps. A warning says that the group has no
# all-to-all, although the same group runs one in this very file.
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
sharded = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0)])
moved = ranges(lambda: sharded.redistribute(mesh, [Shard(1)]))
expect("Shard(0) to Shard(1)", moved, [("gloo:all_gather", [[2, 4]])])
direct = ranges(lambda: dist.all_to_all_single(torch.zeros(4), torch.ones(4)))
expect("all_to_all_single of the same group", [name for name, _ in direct], ["gloo:all_to_all"])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
