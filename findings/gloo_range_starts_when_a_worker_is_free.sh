#!/bin/bash
# Guess: four asynchronous all-reduces that wait for a late rank are four ranges in torch.profiler
# that all show the waiting.
# Truth: a range starts when one of the group's two worker threads takes the collective, not when
# it is issued: two ranges show the waiting, and the two behind them start after the late rank has
# come and take well below a millisecond. The time from issue to start is in no range.
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
from torch.profiler import ProfilerActivity, profile


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
dist.barrier()
with profile(activities=[ProfilerActivity.CPU]) as recorded:
    if dist.get_rank() == 1:
        time.sleep(2)
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(4)]
    for work in works:
        work.wait()
events = sorted(recorded.events(), key=lambda event: event.time_range.start)
issued = [event.time_range.start for event in events if event.name == "c10d::allreduce_"]
ranges = [event.time_range for event in events if event.name == "gloo:all_reduce"]
if dist.get_rank() == 0:
    print("ms:", [round(range.elapsed_us() / 1e3, 1) for range in ranges])
waiting = [range.elapsed_us() > 1e6 for range in ranges]
expect("ranges above one second", waiting, [True, True, False, False])
behind = [range.start - issue > 1e6 for issue, range in zip(issued, ranges)]
expect("ranges that start over a second after issue", behind, [False, False, True, True])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
