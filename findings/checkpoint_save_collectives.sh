#!/bin/bash
# Guess: saving one small tensor with torch.distributed.checkpoint takes one or two collectives.
# Truth: it takes nine (all-gather, gather, broadcast, two scatters, all-gather, gather, two
# broadcasts), all of pickled plans and sizes, and loading takes seven. The second save into the
# same folder costs as much as the first.
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
import torch.distributed.checkpoint as checkpoint
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
state = {"weight": torch.ones(4)}
save = ["all_gather", "gather", "broadcast", "scatter", "scatter"]
save += ["all_gather", "gather", "broadcast", "broadcast"]
load = ["all_gather", "gather", "broadcast", "scatter", "scatter", "all_gather", "all_gather"]
for what, call, wanted in (
    ("save", lambda: checkpoint.save(state, checkpoint_id="saved"), save),
    ("load", lambda: checkpoint.load(state, checkpoint_id="saved"), load),
    ("second save", lambda: checkpoint.save(state, checkpoint_id="saved"), save),
):
    calls = [name.removeprefix("gloo:") for name, _ in ranges(call)]
    expect(what, calls, wanted)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
