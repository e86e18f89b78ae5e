#!/bin/bash
# Guess: `avg_backward_comm_time` of DDP's logging data is the time of the collectives, so about
# nothing for one rank.
# Truth: it runs from the first bucket that is ready to the end of the backward pass, computation
# between buckets included. One rank whose backward computes for 0.2 s between two buckets has 0.2
# s of "communication", nearly all of it "overlapped".
# Seen with torch 2.13.0, gloo, 1 rank: backward_comm_time 201 ms, overlap 201 ms.
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
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()


class Slow(torch.autograd.Function):
    """The identity; its backward takes 0.2 s."""

    @staticmethod
    def forward(context, tensor):
        return tensor.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(0.2)
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, tensor):
        return self.last(Slow.apply(self.first(tensor)))


model = DistributedDataParallel(Model(), bucket_cap_mb=1e-5)
for _ in range(5):
    model(torch.ones(2, 4)).sum().backward()
logged = model._get_ddp_logging_data()
expect("one rank, more than 150 ms of communication", logged["backward_comm_time"] > 150e6, True)
hidden = logged["backward_compute_comm_overlap_time"]
expect("more than 150 ms of it hidden", hidden > 150e6, True)
print(f"communication {logged['backward_comm_time'] / 1e6:.0f} ms, hidden {hidden / 1e6:.0f} ms")
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 1 job.py
