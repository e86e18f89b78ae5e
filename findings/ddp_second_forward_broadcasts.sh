#!/bin/bash
# Guess: the forward pass of a DDP model without buffers exchanges nothing.
# Truth: the second forward pass issues two small blocking broadcasts, of the new assignment of
# parameters to buckets and of the buckets' sizes, and no other pass does: also where all fits into
# one bucket and nothing changes. A late rank is waited for there, in *forward*. With
# static_graph=True it is the third pass.
# Seen with torch 2.13.0, gloo, 2 ranks, 2 parameters.
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
for options, wanted in (({}, [0, 2, 0, 0]), ({"static_graph": True}, [0, 0, 2, 0])):
    model = DistributedDataParallel(torch.nn.Linear(4, 4), **options)
    counts = []
    for _ in range(4):
        outputs = []
        calls = ranges(lambda: outputs.append(model(torch.ones(2, 4))))
        counts.append(sum(name == "gloo:broadcast" for name, _ in calls))
        outputs[0].sum().backward()
    expect(f"broadcasts of four forward passes {options}", counts, wanted)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
