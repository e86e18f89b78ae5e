#!/bin/bash
# Guess: a DDP model with a parameter that the loss does not use, and without
# find_unused_parameters, raises in backward; or else the gradients of the others are averaged.
# Truth: backward ends without an error and every rank keeps its own gradients, of all parameters
# in that bucket: the bucket waits for one that never comes. Only the next forward raises. An
# update in between, or a script that ends there, trains apart.
# Seen with torch 2.13.0 and 2.15.0, gloo, 2 ranks: gradients 0 and 4 for a mean of 2.
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
class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(1, 1, bias=False)
        self.unused = torch.nn.Linear(1, 1, bias=False)

    def forward(self, tensor):
        return self.used(tensor)


model = DistributedDataParallel(Part())
model(torch.full((1, 1), 4.0 * rank)).sum().backward()
gradients = [None, None]
dist.all_gather_object(gradients, model.module.used.weight.grad.item())
expect("gradients of the ranks after backward", gradients, [0.0, 4.0])
try:
    model(torch.ones(1, 1))
    raised = "nothing"
except RuntimeError as error:
    raised = str(error)[:60]
expect("the next forward raises", raised, "Expected to have finished reduction in the prior iteration b")
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
