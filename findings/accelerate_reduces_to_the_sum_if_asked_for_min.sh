#!/bin/bash
# Guess: accelerator.reduce(tensor, reduction="min") is a minimum, as "max" is a maximum, or it is
# refused; "none" leaves the tensor as it is.
# Truth: of reductions that it does not know it makes the sum, without a word: "min", "avg",
# "product", a word misspelt, and "none", which its documentation names. The mean of integers raises
# on the ranks after the exchange.
# Seen with accelerate 1.15.0, torch 2.13.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 accelerate==1.15.0
fi
cat > "$work/job.py" <<'EOF'
import warnings

import torch
import torch.distributed as dist
from accelerate import Accelerator


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


warnings.simplefilter("ignore")
accelerator = Accelerator(cpu=True)
rank = dist.get_rank()


def reduced(reduction):
    return accelerator.reduce(torch.tensor([3.0, 10.0][rank]), reduction=reduction).item()


for reduction, wanted in (
    ("sum", 13.0), ("mean", 6.5), ("max", 10.0),
    ("min", 13.0), ("avg", 13.0), ("product", 13.0), ("maen", 13.0), ("none", 13.0),
):
    expect(f"of 3 and 10, {reduction}", reduced(reduction), wanted)
try:
    told = accelerator.reduce(torch.tensor([3, 10][rank]), "mean")
except RuntimeError as error:
    told = "can't be cast to the desired output type Long" in str(error)
expect("the mean of integers raises", told, True)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
