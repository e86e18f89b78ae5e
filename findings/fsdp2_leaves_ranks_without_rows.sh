#!/bin/bash
# Guess: FSDP2 cuts a parameter's rows as evenly as it can: 10 rows on 8 ranks are 2, 2, 1, 1, 1, 1,
# 1, 1, and their exchange moves 10 rows.
# Truth: it cuts like torch.chunk, into pieces of the same size as long as rows last: 2, 2, 2, 2, 2, 0,
# 0, 0. Three ranks hold nothing of this parameter, have no gradient of it and no optimizer state,
# while others hold two rows. The all-gather and the reduce-scatter move 16 rows, padded.
# Seen with torch 2.13.0, gloo, 8 ranks.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


ROWS, COLUMNS = 10, 4
dist.init_process_group("gloo")
ranks = dist.get_world_size()
layer = torch.nn.Linear(COLUMNS, ROWS, bias=False)
fully_shard(layer, mesh=init_device_mesh("cpu", (ranks,)))
rows = [None] * ranks
dist.all_gather_object(rows, len(layer.weight.to_local()))
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
    layer(torch.ones(1, COLUMNS)).sum().backward()
elements = {
    event.name: max(shape[0] for shape in event.input_shapes if shape)
    for event in recorded.events()
    if event.name.startswith("c10d::")
}
moved = {name: count / COLUMNS for name, count in elements.items()}
expect("rows of each of 8 ranks", rows, [2, 2, 2, 2, 2, 0, 0, 0])
padded = {"c10d::_allgather_base_": 16.0, "c10d::_reduce_scatter_base_": 16.0}
expect("rows that are exchanged", moved, padded)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 8 job.py
