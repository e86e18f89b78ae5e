#!/bin/bash
# Guess: compute() of a metric of torchmetrics is one all-reduce per state, and a collection of
# metrics that share their states exchanges them once.
# Truth: each state is a barrier, an all-gather of its shape unless it is a scalar, and an
# all-gather of its values, though all are to be summed: twelve calls for an accuracy with its four
# counts. A collection of accuracy, F1 and precision shares the four and exchanges them three
# times: 36 calls.
# Seen with torchmetrics 1.9.0, torch 2.13.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0
fi
cat > "$work/job.py" <<'EOF'
from collections import Counter

import torch
import torch.distributed as dist
import torchmetrics
from torch.profiler import ProfilerActivity, profile
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision


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


dist.init_process_group("gloo")
print(f"torchmetrics {torchmetrics.__version__}", flush=True)
guesses, truth = torch.tensor([0, 1]), torch.tensor([0, 2])
accuracy = MulticlassAccuracy(num_classes=3)
accuracy.update(guesses, truth)
expect("compute() of one", operators(accuracy.compute), {"barrier": 4, "allgather_": 8})
mean = torchmetrics.MeanMetric()
mean.update(1.0)
expect("compute() of a mean", operators(mean.compute), {"barrier": 2, "allgather_": 2})
kinds = (MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision)
collection = torchmetrics.MetricCollection([kind(num_classes=3) for kind in kinds])
for _ in range(2):  # the second update knows which of them share their states
    collection.update(guesses, truth)
expect("metrics that share their states", len(collection.compute_groups), 1)
expect("compute() of three", operators(collection.compute), {"barrier": 12, "allgather_": 24})
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
