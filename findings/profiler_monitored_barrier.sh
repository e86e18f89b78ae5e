#!/bin/bash
# Guess: torch.profiler shows monitored_barrier as a range of its own, or as `gloo:barrier`.
# Truth: it shows sends and receives of one element between each rank and rank 0, like a
# pipeline's; nothing on gloo's side says barrier.
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
dist.monitored_barrier()  # the first time opens connections
calls = ranges(dist.monitored_barrier)
expect("ranges on rank 0", sorted(calls), [("gloo:recv", [[1]]), ("gloo:send", [[1]])])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
