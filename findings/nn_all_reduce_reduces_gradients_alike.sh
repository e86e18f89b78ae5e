#!/bin/bash
# Guess: torch.distributed.nn's all_reduce with MAX gives the gradient to the rank that holds the
# maximum, with PRODUCT the product of the other ranks' values, and reduce_scatter with AVG divides
# gradients as its values; or they are refused, as the functional all_reduce refuses all but sums.
# Truth: gradients are reduced with the operator of the values. With MAX every rank gets the largest
# of the ranks' gradients, the loser too; with PRODUCT their product, whatever the values were.
# reduce and reduce_scatter hand out the gradients as they are with any operator: with AVG they are
# the number of ranks times too large. all_reduce with SUM and AVG is right.
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
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch.distributed import ReduceOp


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def gradients(call):
    """Gradients of each rank's two values, where rank r's loss is (10 + r) times its result."""
    values = torch.tensor([2.0, 5.0] if rank == 0 else [3.0, 4.0], requires_grad=True)
    (call(values * 1) * (10 + rank)).sum().backward()
    of_ranks = [None, None]
    dist.all_gather_object(of_ranks, values.grad.tolist())
    return of_ranks


def reduced(op):
    return gradients(lambda values: differentiable.all_reduce(values, op))


def scattered(op):
    return gradients(
        lambda values: differentiable.reduce_scatter(torch.zeros(1), list(values.chunk(2)), op)
    )


warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()
both = [10 + 11.0] * 2
expect("all_reduce, SUM", reduced(ReduceOp.SUM), [both, both])
expect("all_reduce, AVG", reduced(ReduceOp.AVG), [[10.5, 10.5]] * 2)
# rank 1 holds the first maximum and rank 0 the second: [[0, 21], [21, 0]] would be right
expect("all_reduce, MAX", reduced(ReduceOp.MAX), [[11.0, 11.0]] * 2)
expect("all_reduce, MIN", reduced(ReduceOp.MIN), [[10.0, 10.0]] * 2)
# [[3 * 21, 4 * 21], [2 * 21, 5 * 21]] would be right
expect("all_reduce, PRODUCT", reduced(ReduceOp.PRODUCT), [[110.0, 110.0]] * 2)
expect("reduce_scatter, SUM", scattered(ReduceOp.SUM), [[10.0, 11.0]] * 2)
expect("reduce_scatter, AVG, [5, 5.5] would be right", scattered(ReduceOp.AVG), [[10.0, 11.0]] * 2)
expect("reduce_scatter, MAX", scattered(ReduceOp.MAX), [[10.0, 11.0]] * 2)
try:
    told = gradients(lambda values: functional.all_reduce(values, "max", dist.group.WORLD))
except RuntimeError as error:
    told = "only supports 'sum'" in str(error)
expect("the functional all_reduce refuses MAX", told, True)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
