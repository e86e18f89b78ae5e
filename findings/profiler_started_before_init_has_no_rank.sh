#!/bin/bash
# Guess: a trace that is exported while the process group is there says which rank it is of.
# Truth: rank, world size and process groups (distributedInfo) are taken when the profiler starts:
# a profiler that is started before init_process_group, as around a whole main(), exports a trace
# without them, with all the collectives in it. One that stops and exports after
# destroy_process_group still has them.
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
import json
import os

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def rank_and_ranges(recorded):
    """The rank that a trace tells, and the number of its collectives."""
    path = f"trace{os.environ['RANK']}.json"
    recorded.export_chrome_trace(path)
    with open(path) as file:
        trace = json.load(file)
    ranges = [event for event in trace["traceEvents"] if event["name"] == "gloo:all_reduce"]
    return trace.get("distributedInfo", {}).get("rank"), len(ranges)


recorded = profile(activities=[ProfilerActivity.CPU])
recorded.start()
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
recorded.stop()
expect("started before init", rank_and_ranges(recorded), (None, 1))
recorded = profile(activities=[ProfilerActivity.CPU])
recorded.start()
dist.all_reduce(torch.ones(2))
rank = dist.get_rank()
dist.destroy_process_group()
recorded.stop()
seen = rank_and_ranges(recorded)
if rank == 0 and seen != (0, 1):
    raise SystemExit(f"changed: stopped after destroy was (0, 1) and is {seen}")
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
