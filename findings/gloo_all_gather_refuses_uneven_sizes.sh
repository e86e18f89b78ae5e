#!/bin/bash
# Guess: all_gather takes tensors of different sizes from the ranks. Its documentation says so twice:
# "Complex and uneven sized tensors are supported."
# Truth: gloo refuses them on every rank, with "invalid tensor size at index 1", before anything is
# exchanged. The group works on. all_gather_object takes them, in two exchanges, as it pads.
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


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
documented = dist.all_gather.__doc__.count("neven sized tensors are supported")
uneven = [torch.zeros(1), torch.zeros(2)]
try:
    dist.all_gather(uneven, torch.ones(rank + 1))
    seen = "works"
except RuntimeError as error:
    seen = str(error)
even = [torch.zeros(1), torch.zeros(1)]
dist.all_gather(even, torch.ones(1))
objects = [None, None]
dist.all_gather_object(objects, torch.ones(rank + 1))
refusal = "ProcessGroupGloo::allgather: invalid tensor size at index 1 (expected (1), got (2))"
expect("times that the documentation allows uneven sizes", documented, 2)
expect("all_gather of one and two elements", seen, refusal)
expect("the next all_gather", [int(tensor) for tensor in even], [1, 1])
expect("elements by all_gather_object", [tensor.numel() for tensor in objects], [1, 2])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
