#!/bin/bash
# Guess: DeviceMesh("cpu", [1, 0]) puts the first shard on rank 1, whichever way a DTensor comes by
# its shards, or it is refused; full_tensor() gives back what was sharded.
# Truth: new_group sorts ranks, so that the group of the mesh has another order than the mesh. What
# exchanges (distribute_tensor, full_tensor) goes by the group, what cuts locally (Replicate to
# Shard) by the mesh. full_tensor() after Replicate to Shard gives the rows in another order,
# without an error; after distribute_tensor it is right, but the shards lie on other ranks than the
# mesh says.
# Seen with torch 2.13.0, gloo, 2 and 3 ranks.
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
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
ranks = dist.get_world_size()
order = [*range(1, ranks), 0]
mesh = DeviceMesh("cpu", order)
rows = torch.arange(ranks)
scattered = distribute_tensor(rows, mesh, [Shard(0)])
cut = distribute_tensor(rows, mesh, [Replicate()]).redistribute(mesh, [Shard(0)])
expect(f"rank 0's coordinate in the mesh {order}", mesh.get_coordinate(), (order.index(0),))
expect("rank 0's row of distribute_tensor", scattered.to_local().tolist(), [0])
expect("full_tensor() of it", scattered.full_tensor().tolist(), rows.tolist())
expect("rank 0's row of Replicate to Shard", cut.to_local().tolist(), [order.index(0)])
mixed = [order.index(rank) for rank in range(ranks)]
expect("full_tensor() of it", cut.full_tensor().tolist(), mixed)
grouped = dist.get_process_group_ranks(dist.new_group(order))
expect(f"ranks of new_group({order})", grouped, sorted(order))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
for ranks in 2 3; do
  "$python" -m torch.distributed.run --standalone --nproc-per-node $ranks job.py
done
