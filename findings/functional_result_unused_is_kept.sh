#!/bin/bash
# Guess: the result of a functional collective that nobody uses is freed with its Work when the
# last reference to it goes.
# Truth: the Work stays in a registry of torch, with the tensors that it holds, until somebody
# waits for that very result: a call whose result is dropped leaks one entry each time.
# Seen with torch 2.13.0 and 2.15.0, gloo, 2 ranks: 100 entries after 100 calls.
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
import gc

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
def left(use):
    """Entries that 100 all-reduces of 1,024 elements leave in the registry."""
    before = torch._C._distributed_c10d._get_work_registry_size()
    for _ in range(100):
        use(functional.all_reduce(torch.ones(1024), "sum", dist.group.WORLD))
    gc.collect()
    return torch._C._distributed_c10d._get_work_registry_size() - before


expect("entries after results were used", left(lambda result: result.sum().item()), 0)
expect("entries after results were dropped", left(lambda result: None), 100)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
