#!/bin/bash
# Guess: amax() and max() of a sharded DTensor have the same gradient: 1 at the largest element.
# Truth: the value of both is right and so is max's gradient. amax's is so only while rank 0 holds
# the largest element: if another rank does, it is NaN everywhere and infinite at that element,
# without a word. amin is alike. amax of each column is right.
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
whole = torch.tensor([[3.0, 1.0], [0.0, 2.0], [7.0, 4.0], [5.0, 6.0]])


def largest(reduce, rows=whole):
    """Largest element, and the gradient of each element of a reduction to it."""
    sharded = distribute_tensor(rows, mesh, [Shard(0)]).requires_grad_()
    result = reduce(sharded).full_tensor()
    result.sum().backward()
    return result.tolist(), [str(number) for number in sharded.grad.full_tensor().flatten().tolist()]


gradient = ["0.0"] * 4 + ["1.0"] + ["0.0"] * 3
expect("max()", largest(lambda tensor: tensor.max()), (7.0, gradient))
undefined = ["nan"] * 4 + ["inf"] + ["nan"] * 3
expect("amax(), the largest on rank 1", largest(lambda tensor: tensor.amax()), (7.0, undefined))
expect("-amin() of the negative", largest(lambda tensor: -(-tensor).amin()), (7.0, undefined))
on_rank_0 = largest(lambda tensor: tensor.amax(), whole.flip(0))
expect("amax(), the largest on rank 0", on_rank_0, (7.0, ["0.0"] * 2 + ["1.0"] + ["0.0"] * 5))
of_columns = ["0.0"] * 4 + ["1.0", "0.0", "0.0", "1.0"]
expect("amax(0)", largest(lambda tensor: tensor.amax(0)), ([7.0, 6.0], of_columns))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
