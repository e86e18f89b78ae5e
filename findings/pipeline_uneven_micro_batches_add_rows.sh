#!/bin/bash
# Guess: a batch of 10 rows in 4 micro batches gives 10 rows, as with one process, or is refused; and a
# tensor that has no batch dimension is handed to the model as it is.
# Truth: every stage but the first receives into memory of the first micro batch's size, 3 rows, so that
# micro batches of 2 end in a row of whatever lay in memory: without a loss, 12 rows come out, two of them
# made up, and later rows are shifted. Nothing is said. Every tensor among the arguments is cut along
# its first dimension: of 4 factors for 4 features, each micro batch gets one, for all its features.
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


class Copy(nn.Module):
    """Hands its input on, times factors for the features."""

    def forward(self, values, factors=None):
        return values * 1 if factors is None else values * factors


def through_pipeline(values, **more):
    """The first column of the last stage's output, on both ranks."""
    stage = PipelineStage(Copy(), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4)  # without a loss: forward only
    output = schedule.step(values, **more) if rank == 0 else schedule.step()
    sent = [None if output is None else output.tolist()]
    dist.broadcast_object_list(sent, src=1)
    return sent[0]


dist.init_process_group("gloo")
rank = dist.get_rank()
rows = torch.arange(10.0)[:, None]
even = through_pipeline(rows[:8])
expect("8 rows", even, rows[:8].tolist())
uneven = through_pipeline(rows)
# micro batches are 0 1 2, 3 4 5, 6 7 and 8 9
expect("10 rows: rows that come out", len(uneven), 12)
expect("10 rows: the first six", uneven[:6], rows[:6].tolist())
shifted = [uneven[6:8], uneven[9:11]]
expect("10 rows: rows 6 to 7 and 9 to 10", shifted, [rows[6:8].tolist(), rows[8:10].tolist()])
ones, factors = torch.ones(8, 4), torch.tensor([1.0, 2.0, 3.0, 4.0])
expect("right", Copy()(ones, factors)[::2].tolist(), [[1.0, 2.0, 3.0, 4.0]] * 4)
expect("factors cut", through_pipeline(ones, factors=factors)[::2], [[n] * 4 for n in (1.0, 2.0, 3.0, 4.0)])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
