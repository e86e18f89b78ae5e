#!/bin/bash
# Guess: gradients of two calls of a pipeline schedule's step() add up, as those of two backward() do:
# each call divides what it adds by the number of micro batches.
# Truth: each call divides all that lies in .grad once it is through, the gradients kept from before
# too. With 4 micro batches, the second of two equal steps leaves 1.25 times the first one's gradients,
# where twice is right: of the first, a quarter of its share is left. With scale_grads=False they add up.
# Seen with torch 2.13.0, gloo, 2 ranks; GPipe and 1F1B.
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
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def gradients(schedule_class, scale_grads=True):
    """A weight's gradient after the first and after the second of two equal steps, of each rank."""
    torch.manual_seed(0)
    layer = [nn.Linear(4, 4), nn.Linear(4, 4)][rank]
    stage = PipelineStage(layer, rank, 2, torch.device("cpu"))
    schedule = schedule_class(stage, 4, loss_fn=nn.functional.mse_loss, scale_grads=scale_grads)
    seen = []
    for _ in range(2):
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)
        seen.append(layer.weight.grad.clone())
    return seen


def of_ranks(value):
    gathered = [None, None]
    dist.all_gather_object(gathered, value)
    return gathered


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
inputs, targets = torch.randn(8, 4), torch.randn(8, 4)

torch.manual_seed(0)
whole = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
nn.functional.mse_loss(whole(inputs), targets).backward()
right = whole[rank].weight.grad  # of one step

for schedule_class in (ScheduleGPipe, Schedule1F1B):
    name = schedule_class.__name__
    first, second = gradients(schedule_class)
    expect(f"{name}: the first step is right", of_ranks(torch.allclose(first, right)), [True] * 2)
    told = f"{name}: after the second it is 1.25 times the first"
    expect(told, of_ranks(torch.allclose(second, 1.25 * right)), [True] * 2)
first, second = gradients(ScheduleGPipe, scale_grads=False)
expect("unscaled: twice the first", of_ranks(torch.allclose(second, 2 * first)), [True] * 2)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
