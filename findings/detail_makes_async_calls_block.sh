#!/bin/bash
# Guess: TORCH_DISTRIBUTED_DEBUG=DETAIL checks collectives in the background, or when they are
# waited for; a call with async_op=True still returns at once.
# Truth: each call compares its fingerprint with all ranks before it returns: it blocks until the
# last rank has issued the same one. Nothing overlaps, and waiting for a late rank moves from
# `wait()` into the call.
# Seen with torch 2.13.0, gloo, 2 ranks, rank 1 late by 0.5 s: 0.5 s in the call, 0.0 s in
# `wait()`.
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
import os
import time

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
wanted = os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL"
for _ in range(2):  # the first time opens connections
    dist.barrier()
    if rank == 1:
        time.sleep(0.5)
    start = time.perf_counter()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    issued = time.perf_counter()
    work.wait()
    ended = time.perf_counter()
if rank == 0:
    print(f"in the call {issued - start:.2f} s, in wait() {ended - issued:.2f} s")
expect(f"DETAIL {wanted}: more of it in the call", issued - start > ended - issued, wanted)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
for level in OFF DETAIL; do
  export TORCH_DISTRIBUTED_DEBUG=$level
  "$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
done
