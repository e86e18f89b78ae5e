#!/bin/bash
# Guess: Flight Recorder shows every call over gloo: sends and receives as messages,
# monitored_barrier as a barrier, a reduce-scatter under its name.
# Truth: sends, receives and monitored_barrier leave no entry, so a pipeline that hangs in one has
# a clean dump; a list reduce-scatter over 2 ranks is two entries of gloo:all_reduce, and
# reduce_scatter_tensor is one.
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
import pickle
from datetime import timedelta

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
def entries(call):
    """Names of the entries that a call adds to the recorder."""
    before = len(pickle.loads(torch._C._distributed_c10d._dump_fr_trace())["entries"])
    call()
    after = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())["entries"]
    return [entry["profiling_name"] for entry in after[before:]]


tensor = torch.ones(2)
message = entries(lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0))
expect("a message", message, [])
expect("monitored_barrier", entries(lambda: dist.monitored_barrier(timeout=timedelta(seconds=60))), [])
whole = entries(lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.ones(4)))
expect("reduce_scatter_tensor", whole, ["gloo:all_reduce"])
parts = entries(lambda: dist.reduce_scatter(torch.empty(2), [torch.ones(2), torch.ones(2)]))
expect("reduce_scatter of a list", parts, ["gloo:all_reduce"] * 2)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
