#!/bin/bash
# Guess: gradient_as_bucket_view=True saves memory and changes no bit of the gradients.
# Truth: where gradients are kept between steps (zero_grad(set_to_none=False)) they are already in
# the bucket, and DDP divides them there by the world size; elsewhere it multiplies by the
# reciprocal while it copies. With 3 ranks about two fifths of the gradients differ in the last bit
# from the second step on; the first step, and steps after zero_grad(), are equal.
# Seen with torch 2.13.0 and 2.15.0, gloo, 3 ranks.
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
def gradients(kept, **options):
    """Gradients of the first and of the second step."""
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(64, 64, bias=False), **options)
    seen = []
    for step in range(2):
        model.zero_grad(set_to_none=not kept)
        torch.manual_seed(10 * step + rank)
        model(torch.randn(8, 64)).square().sum().backward()
        seen.append(model.module.weight.grad.clone())
    return seen


def differing(kept):
    plain, views = gradients(kept), gradients(kept, gradient_as_bucket_view=True)
    return [int((one != other).sum()) > 1000 for one, other in zip(plain, views, strict=True)]


expect("steps with other bits, zero_grad()", differing(False), [False, False])
expect("steps with other bits, zero_grad(set_to_none=False)", differing(True), [False, True])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 3 job.py
