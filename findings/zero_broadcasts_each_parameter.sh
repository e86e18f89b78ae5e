#!/bin/bash
# Guess: ZeroRedundancyOptimizer sends the updated shards with one broadcast per rank and step.
# Truth: it is one broadcast per parameter tensor and step; a model of 10 tensors costs 10 calls
# after each step, whatever the number of ranks. parameters_as_bucket_view=True makes it one per
# rank.
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
from torch.distributed.optim import ZeroRedundancyOptimizer
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
for as_views, wanted in ((False, 10), (True, 2)):
    layers = [torch.nn.Linear(4, 4) for _ in range(5)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, parameters_as_bucket_view=as_views, lr=0.1
    )
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        calls = [name for name, _ in ranges(optimizer.step)]
        expect(f"calls of step(), bucket views {as_views}", calls, ["gloo:broadcast"] * wanted)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
