#!/bin/bash
# Guess: forward passes under torch.no_grad() and eval() exchange nothing, and each training pass
# of a model with buffers broadcasts them.
# Truth: the first pass under no_grad still broadcasts all buffers, the following ones do not, and
# the first training pass after them does not either: the flag is set by the pass before.
# Seen with torch 2.13.0, gloo, 2 ranks, a model with BatchNorm (two broadcasts: floats, and the
# count).
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
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
batch = torch.randn(8, 4)


def train():
    """Broadcasts of one training pass."""
    calls = ranges(lambda: model(batch).sum().backward())
    return sum(name == "gloo:broadcast" for name, _ in calls)


def validate():
    """Broadcasts of one validation pass."""
    with torch.no_grad():
        calls = ranges(lambda: model(batch))
    return sum(name == "gloo:broadcast" for name, _ in calls)


for _ in range(3):
    train()  # buckets are settled
expect("broadcasts of two training passes", [train(), train()], [2, 2])
model.eval()
expect("of three validation passes after them", [validate() for _ in range(3)], [2, 0, 0])
model.train()
expect("of two training passes after those", [train(), train()], [0, 2])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
