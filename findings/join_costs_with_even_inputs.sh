#!/bin/bash
# Guess: inside Join, DDP pays one small all-reduce per step, and nothing more while all have
# inputs.
# Truth: it pays two one-element all-reduces before each forward, one more pair when all are
# through, and then a broadcast of the whole model from the last rank to join: also if every rank
# had exactly the same number of inputs.
# Seen with torch 2.13.0, gloo, 2 ranks, 2 steps of a model of 20 parameters.
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
from torch.distributed.algorithms.join import Join
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
for _ in range(2):  # buckets are settled
    model(torch.ones(2, 4)).sum().backward()


def train():
    with Join([model]):
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()


train()
calls = [(name.removeprefix("gloo:"), shapes[0][0]) for name, shapes in ranges(train)]
flags = [("all_reduce", 1), ("all_reduce", 1)]
step = [*flags, ("all_reduce", 20)]
expect("two steps of equal length", calls, [*step, *step, *flags, ("broadcast", 20)])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
