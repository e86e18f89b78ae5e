#!/bin/bash
# Guess: a backward pass inside model.no_sync() exchanges nothing.
# Truth: it exchanges everything if the forward pass before, outside of no_sync, was not followed
# by its backward, such as a forward for a metric without no_grad: that forward has armed the
# reducer, and no_sync only skips the arming.
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
from torch.nn.parallel import DistributedDataParallel
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
model = DistributedDataParallel(torch.nn.Linear(4, 4))


def accumulate():
    """All-reduces of one forward and backward pass inside no_sync."""
    with model.no_sync():
        calls = ranges(lambda: model(torch.ones(2, 4)).sum().backward())
    return sum(name == "gloo:all_reduce" for name, _ in calls)


for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()  # buckets are settled
expect("all-reduces inside no_sync", accumulate(), 0)
model(torch.ones(2, 4)).sum().backward()
model(torch.ones(2, 4))  # its output is looked at, not differentiated
expect("all-reduces inside no_sync after a forward without backward", accumulate(), 1)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
