#!/bin/bash
# Guess: two forward passes of a DDP model and then a backward pass of each loss exchange the
# gradients of both.
# Truth: the first backward pass exchanges its gradients and disarms the reducer; the second one's
# stay on their rank and are added to the mean of the first, without an error. The sum of both
# losses in one backward is exchanged whole. With retain_graph=True a second backward of one loss
# is local too.
# Seen with torch 2.13.0 and 2.15.0, gloo, 2 ranks: 3 and 5 for a mean of 4.
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


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
for _ in range(3):
    model(torch.ones(1, 1)).sum().backward()  # buckets are settled


def gradients(train):
    """Gradients of both ranks; each loss has gradient 1 on rank 0 and 3 on rank 1."""
    model.zero_grad()
    losses = [model(torch.full((1, 1), 1.0 + 2 * rank)).sum() for _ in range(2)]
    train(losses)
    told = [None, None]
    dist.all_gather_object(told, model.module.weight.grad.item())
    return told


def one_by_one(losses):
    for loss in losses:
        loss.backward()


expect("one backward of the sum", gradients(lambda losses: sum(losses).backward()), [4.0, 4.0])
expect("a backward of each", gradients(one_by_one), [3.0, 5.0])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
