#!/bin/bash
# Guess: torch.profiler records the collectives of a process, whichever of its threads issues them.
# Truth: over gloo it records those of the thread that started it. Of another Python thread it
# records neither c10d's operators nor gloo's ranges, although gloo's own threads, which it does
# record, run both. With profile_all_threads all are there.
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
import threading

import torch
import torch.distributed as dist
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def gathers(group):
    whole = [torch.ones(1000) for _ in range(2)]
    for _ in range(5):
        dist.all_gather(whole, torch.ones(1000), group=group)


def recorded(all_threads):
    """Numbers of events of 5 all-reduces here and 5 all-gathers in another thread."""
    group = dist.new_group()
    thread = threading.Thread(target=gathers, args=(group,))
    config = _ExperimentalConfig(profile_all_threads=all_threads)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as found:
        thread.start()
        for _ in range(5):
            dist.all_reduce(torch.ones(100))
        thread.join()
    names = [event.name for event in found.events()]
    kinds = ("c10d::allreduce_", "gloo:all_reduce", "c10d::allgather_", "gloo:all_gather")
    return [names.count(kind) for kind in kinds]


dist.init_process_group("gloo")
expect("operators and ranges, here and in the other thread", recorded(False), [5, 5, 0, 0])
expect("the same with profile_all_threads", recorded(True), [5, 5, 5, 5])
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
