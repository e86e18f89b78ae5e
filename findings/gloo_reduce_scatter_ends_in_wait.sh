#!/bin/bash
# Guess: a reduce-scatter with async_op=True over gloo is worked off by gloo's threads;
# is_completed() turns true, and its future can have callbacks.
# Truth: only wait() completes it: is_completed() stays false for ever, the output is written
# inside wait(), and get_future() raises. Nothing that polls or uses callbacks can tell when such a
# call has ended.
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
output = torch.zeros(2)
work = dist.reduce_scatter_tensor(output, torch.ones(4), async_op=True)
plain = dist.all_reduce(torch.ones(4), async_op=True)
time.sleep(2)
expect("all-reduce is_completed() after 2 s", plain.is_completed(), True)
expect("reduce-scatter is_completed() after 2 s", work.is_completed(), False)
expect("its output after 2 s", output.tolist(), [0.0, 0.0])
try:
    work.get_future()
    future = "there"
except RuntimeError as error:
    future = str(error)[-35:]
expect("its future", future, "Work::getFuture not implemented."[-35:])
work.wait()
expect("its output after wait()", output.tolist(), [2.0, 2.0])
plain.wait()
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
