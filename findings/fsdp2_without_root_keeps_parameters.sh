#!/bin/bash
# Guess: leaving out the outermost `fully_shard(model)` changes little; each layer is still
# gathered for forward, given back, and gathered again for backward.
# Truth: without it every layer counts as a root of its own, and a root keeps its gathered
# parameters until backward: half of the all-gathers, and the memory of the whole model. Only an
# explicit reshard_after_forward=True for each layer gives the two gathers per layer back.
# Seen with torch 2.13.0, gloo, 2 ranks, 6 layers.
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
from torch.distributed.fsdp import fully_shard
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


def gathers(outermost, **options):
    """All-gathers of the second step of six layers."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(6)])
    for layer in model:
        fully_shard(layer, **options)
    if outermost:
        fully_shard(model)
    model(torch.ones(2, 4)).sum().backward()
    calls = ranges(lambda: model(torch.ones(2, 4)).sum().backward())
    return sum(name == "gloo:all_gather" for name, _ in calls)


expect("with the outermost call", gathers(True), 12)
expect("without it", gathers(False), 6)
expect("without it, asked to reshard", gathers(False, reshard_after_forward=True), 12)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
