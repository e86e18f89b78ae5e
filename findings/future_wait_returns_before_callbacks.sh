#!/bin/bash
# Guess: when `wait()` of a collective's future returns, the callbacks that were added before have
# run.
# Truth: waiters are woken first and callbacks run afterwards, on gloo's worker thread: code behind
# `wait()` runs beside a callback that is meant to close the books of that collective.
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
for _ in range(3):
    closed = []

    def close(future, closed=closed):
        time.sleep(0.5)
        closed.append("closed")

    dist.barrier()
    if rank == 1:
        time.sleep(0.5)  # so that rank 0 adds its callback, and waits, before the end
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    future.add_done_callback(close)
    future.wait()
    expect("callbacks that have run when wait() returns", len(closed), 0)
    time.sleep(1.5)
    expect("a second later", len(closed), 1)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
