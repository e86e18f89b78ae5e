#!/bin/bash
# Guess: ignite.distributed's get_rank() reads a number that torch.distributed knows, on this rank
# alone.
# Truth: the first call of any such function in a process, where the script made the group itself,
# is an all-reduce of all ranks: it finds out how many ranks a node has. A rank that asks first
# waits until all others ask too; later calls exchange nothing. And broadcasting or gathering a
# string costs an all-reduce of its length each time.
# Seen with torch 2.13.0, pytorch-ignite 0.5.5, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 pytorch-ignite==0.5.5
fi
cat > "$work/job.py" <<'EOF'
import collections
import time

import ignite
import ignite.distributed as idist
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

LATE_S = 2.0


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"ignite {ignite.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def operators(call):
    """Returns how often each operator of c10d runs during a call."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        call()
    names = [event.name for event in recorded.events() if event.name.startswith("c10d::")]
    return dict(collections.Counter(names))


def asked_late():
    """Asks for the rank, on rank 1 two seconds later than on rank 0."""
    time.sleep(LATE_S * dist.get_rank())
    begin = time.monotonic()
    idist.get_rank()
    times.append(time.monotonic() - begin)


dist.init_process_group("gloo")
operators(dist.get_rank)  # the profiler's own start takes time
dist.barrier()
times = []
expect("the first get_rank()", operators(asked_late), {"c10d::allreduce_": 1})
expect("rank 0 waits in it for rank 1", times[0] > LATE_S / 2, True)
expect("the second get_rank()", operators(idist.get_rank), {})
told = operators(lambda: idist.broadcast("abc", src=0))
expect("broadcast of a string", told, {"c10d::allreduce_": 1, "c10d::broadcast_": 1})
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
