#!/bin/bash
# Guess: with tensor parallelism over two ranks, FlopCounterMode counts on each rank the half that
# the rank computes.
# Truth: each rank counts the whole product, as without tensor parallelism, so that the sum over
# ranks is twice the work, and a utilisation of the device made from it twice the real one.
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
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.flop_counter import FlopCounterMode


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def counted(model):
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(16, 32))
    return counter.get_total_flops()


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
first, second = torch.nn.Linear(32, 64, bias=False), torch.nn.Linear(64, 32, bias=False)
model = torch.nn.Sequential(first, second)
whole = 2 * 2 * 16 * 32 * 64
expect("one rank's model", counted(model), whole)
parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
expect("rows of a rank's first weight", first.weight.to_local().shape[0], 32)
expect("each rank of two", counted(model), whole)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
