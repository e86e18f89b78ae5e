#!/bin/bash
# Guess: a DataLoader that Accelerator.prepare() returns reads each rank's share of the data on that
# rank, and iterating over it exchanges nothing.
# Truth: of a map-style dataset that is shuffled, each epoch begins with a broadcast of the random
# generator's state. Of an iterable dataset rank 0 alone reads, and broadcasts every batch with its
# description: five broadcasts per batch, in the training thread, before the step can begin. A slow
# reader on rank 0 is then a wait of all others in a broadcast that the script never wrote.
# Seen with torch 2.13.0, accelerate 1.15.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 accelerate==1.15.0
fi
cat > "$work/job.py" <<'EOF'
import collections

import accelerate
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"accelerate {accelerate.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def operators(loader):
    """Returns the batches of an epoch, and how often each operator of c10d ran meanwhile."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        batches = sum(1 for _ in loader)
    names = [event.name for event in recorded.events() if event.name.startswith("c10d::")]
    return batches, dict(collections.Counter(names))


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(16.0))


accelerator = Accelerator(cpu=True)
data = TensorDataset(torch.arange(16.0))
plain = accelerator.prepare(DataLoader(data, batch_size=4))
expect("batches and operators, in order", operators(plain), (2, {}))
shuffled = accelerator.prepare(DataLoader(data, batch_size=4, shuffle=True))
for epoch in (1, 2):
    expect(f"the same, shuffled, epoch {epoch}", operators(shuffled), (2, {"c10d::broadcast_": 1}))
iterable = accelerator.prepare(DataLoader(Numbers(), batch_size=4))
expect("the same, of an iterable dataset", operators(iterable), (2, {"c10d::broadcast_": 10}))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
