#!/bin/bash
# Guess: the first backward pass of DDP uses a bucket of 1 MB and then buckets of bucket_cap_mb.
# Truth: the first pass has one bucket for the whole model, whatever bucket_cap_mb says, exchanged
# when backward is over; the buckets of bucket_cap_mb begin with the second pass. With
# static_graph=True they begin with the third, and the first pass exchanges a map of used
# parameters as well. Only find_unused_parameters=True has the buckets of bucket_cap_mb from the
# start (and a map in every pass).
# Seen with torch 2.13.0, gloo, 2 ranks, 4 layers of 262,656 parameters, bucket_cap_mb=1.
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


def sizes_of_passes(**options):
    """Elements of each all-reduce of three backward passes of a new model."""
    layers = [torch.nn.Linear(512, 512) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1, **options)
    passes = []
    for _ in range(3):
        loss = model(torch.ones(2, 512)).sum()
        passes.append([shapes[0][0] for _, shapes in ranges(loss.backward)])
    return passes


whole, layer = 4 * 262_656, 262_656
expect("default", sizes_of_passes(), [[whole], [layer] * 4, [layer] * 4])
static = sizes_of_passes(static_graph=True)
expect("static_graph", static, [[8, whole], [whole], [layer] * 4])
unused = sizes_of_passes(find_unused_parameters=True)
expect("all-reduces with find_unused_parameters", [len(sizes) for sizes in unused], [6, 6, 6])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
