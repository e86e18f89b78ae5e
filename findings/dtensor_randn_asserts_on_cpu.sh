#!/bin/bash
# Guess: torch.distributed.tensor.randn makes a sharded tensor on a mesh of CPUs, as zeros, ones
# and full do.
# Truth: it ends in a bare AssertionError: there is no tracker of random numbers for CPUs, and the
# place that checks for one does not expect that. randn of a local tensor and DTensor.from_local
# works.
# Seen with torch 2.13.0 and 2.15.0, gloo, 2 ranks.
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
import torch.distributed.tensor as tensors
from torch.distributed.device_mesh import init_device_mesh


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
for make in (tensors.zeros, tensors.ones, tensors.rand, tensors.randn):
    try:
        told = tuple(make(8, 8, device_mesh=mesh, placements=[tensors.Shard(0)]).to_local().shape)
    except AssertionError as error:
        told = f"AssertionError {error}".strip()
    expect(make.__name__, told, "AssertionError" if "rand" in make.__name__ else (4, 8))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
