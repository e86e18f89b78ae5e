#!/bin/bash
# Guess: Flight Recorder marks an entry of gloo as completed, with times, once the collective is
# over.
# Truth: it records gloo's collectives by default, but each stays `scheduled` for ever, without a
# time of start or end. Only `retired` turns true, and `last_completed_collective` counts. A dump
# of a healthy job looks like one in which nothing was ever started.
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
import pickle
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
    dist.all_reduce(torch.ones(4))
dist.barrier()
time.sleep(0.5)
entries = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())["entries"]
fields = ("state", "retired", "time_discovered_started_ns", "time_discovered_completed_ns")
rows = [tuple(entry[field] for field in fields) for entry in entries[:3]]
expect("finished collectives in Flight Recorder", rows, [("scheduled", True, None, None)] * 3)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
