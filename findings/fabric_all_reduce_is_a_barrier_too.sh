#!/bin/bash
# Guess: fabric.all_reduce(tensor) returns the mean and leaves the argument as it is, at the price
# of one all-reduce.
# Truth: it is a barrier and then an all-reduce, and the result is the argument, which holds the
# mean afterwards: a loss that is reduced for the log is no longer the rank's own.
# Seen with lightning-fabric 2.6.6, torch 2.13.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 lightning-fabric==2.6.6
fi
cat > "$work/job.py" <<'EOF'
from collections import Counter

import lightning_fabric
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch.profiler import ProfilerActivity, profile


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def operators(call):
    """Returns how often each operator of c10d is issued during a call."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        call()
    names = [event.name for event in recorded.events() if event.name.startswith("c10d::")]
    return {name.removeprefix("c10d::"): count for name, count in Counter(names).items()}


fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
print(f"lightning-fabric {lightning_fabric.__version__}", flush=True)
loss = torch.tensor([1.0 + fabric.global_rank])
calls = operators(lambda: fabric.all_reduce(loss.clone()))
expect("calls of one all_reduce", calls, {"barrier": 1, "allreduce_": 1})
mean = fabric.all_reduce(loss)
expect("result and argument of a mean of 1 and 2", (mean.item(), loss.item()), (1.5, 1.5))
loss = torch.tensor([1.0 + fabric.global_rank])
total = fabric.all_reduce(loss, reduce_op="sum")
expect("the sum is the argument itself", total.data_ptr() == loss.data_ptr(), True)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
