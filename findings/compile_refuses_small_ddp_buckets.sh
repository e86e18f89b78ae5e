#!/bin/bash
# Guess: a DDP model with bucket_cap_mb below 1 can be compiled, and one around a compiled module
# all the more, as DDP itself is then not compiled.
# Truth: both end in an AssertionError in the first forward pass: the compiler cuts the graph by
# DDP's caps, and demands that the cap is not below that of the first bucket, a constant of 1 MiB
# that bucket_cap_mb does not change. Eager passes of the same model work.
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
from torch.nn.parallel import DistributedDataParallel


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
def told(make):
    """What the first pass of a model with a cap of 0.5 MiB ends in."""
    try:
        make()(torch.ones(2, 64)).sum().backward()
    except AssertionError as error:
        return f"AssertionError: {error}"[:41]
    return "works"


def wrapped(module):
    return DistributedDataParallel(module, bucket_cap_mb=0.5)


def layer():
    return torch.nn.Linear(64, 64)


refused = "AssertionError: First bucket should be sm"
expect("eager", told(lambda: wrapped(layer())), "works")
compiled = told(lambda: torch.compile(wrapped(layer()), backend="eager"))
expect("compiled DDP", compiled, refused)
torch._dynamo.reset()
around = told(lambda: wrapped(torch.compile(layer(), backend="eager")))
expect("DDP around a compiled module", around, refused)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
