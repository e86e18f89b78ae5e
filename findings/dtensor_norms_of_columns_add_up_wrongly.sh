#!/bin/bash
# Guess: the sum of the columns' norms of a DTensor that is sharded over rows is that of the whole
# tensor, as each of the norms and their mean are.
# Truth: the ranks add their own norms first and join the sums as if they were one norm: columns of
# (3, 0, 4, 0) and (1, 1, 1, 1) have the norms 5 and 2, and the sum is 6.99. The mean, the maximum,
# and the sum of norms that were made whole before are right; so is the sum with p = 1.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
rows = torch.tensor([[3.0, 1.0], [0.0, 1.0], [4.0, 1.0], [0.0, 1.0]])


def norms(p=2):
    return torch.linalg.vector_norm(distribute_tensor(rows, mesh, [Shard(0)]), p, dim=0)


def value(result):
    return round(result.full_tensor().item(), 4)


expect("the norms", [round(norm, 4) for norm in norms().full_tensor().tolist()], [5.0, 2.0])
expect("their sum", value(norms().sum()), 6.9856)
by_hand = (((3 + 2**0.5) ** 2 + (4 + 2**0.5) ** 2) ** 0.5)
expect("the norm of the ranks' own sums", round(by_hand, 4), 6.9856)
expect("their sum with p = 3", value(norms(3).sum()), 6.0626)
expect("and what it should be", round(torch.linalg.vector_norm(rows, 3, dim=0).sum().item(), 4), 6.0853)
expect("with p = 1", value(norms(1).sum()), 11.0)
expect("twice their mean", value(norms().mean() * 2), 7.0)
expect("their maximum", value(norms().max()), 5.0)
expect("the sum of whole norms", round(norms().full_tensor().sum().item(), 4), 7.0)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
