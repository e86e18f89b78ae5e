#!/bin/bash
# Guess: a pipeline's first step finds out the shapes between its stages with tensors of the device
# "meta", or reads them from the first micro batch, so that each module runs once per micro batch.
# Truth: every stage really runs once more, forward, before the first micro batch, and later stages run
# on whatever lies in fresh memory. With 4 micro batches batch norms have counted 5 after the first step,
# and 9 after the second, and their statistics hold that pass; hooks and counters see it too. Gradients
# do not change, and random numbers are given back.
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
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def of_ranks(value):
    gathered = [None, None]
    dist.all_gather_object(gathered, value)
    return gathered


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs, targets = torch.randn(8, 4), torch.randn(8, 4)
layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
alike = torch.nn.BatchNorm1d(4)  # on rank 0: sees the four micro batches and nothing else
passes = []
layer.register_forward_hook(lambda *_: passes.append(1))
stage = PipelineStage(layer, rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
for step, told in enumerate(("first", "second")):
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=targets)
    seen = len(passes), layer[1].num_batches_tracked.item()
    expect(f"after the {told} step: forward passes, batches counted", of_ranks(seen), [(5 + 4 * step,) * 2] * 2)
    if step == 0:
        for part in inputs.chunk(4):
            alike(layer[0](part))
        differs = rank == 0 and not torch.allclose(alike.running_mean, layer[1].running_mean)
        expect("rank 0's statistics differ from those of the four micro batches", differs, True)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
