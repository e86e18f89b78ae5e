#!/bin/bash
# Guess: a recv or all-reduce over gloo that ran out of the group's time raises on the rank that
# waited, and can be tried again; the late rank is not harmed. An asynchronous one that ran out of
# time is not complete.
# Truth: the first time-out closes the connections of the group for good. The late rank's call, and
# every later one of both ranks, fails at once ("Application timeout caused pair closure",
# "Connection closed by peer"). The Work that ran out of time says is_completed(), and the tensor
# holds what it held; only is_success() is False. wait(timeout) that runs out of time closes nothing:
# the same collective ends well afterwards. Other groups work on.
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
from datetime import timedelta

import torch
import torch.distributed as dist


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def tried(call):
    """What a call did, and whether it took longer than a moment."""
    begin = time.monotonic()
    try:
        call()
        told = "works"
    except RuntimeError as error:
        known = ("Timed out", "timed out", "pair closure", "closed by peer")
        told = next((text for text in known if text in str(error)), str(error))
    return told, "at once" if time.monotonic() - begin < 0.5 else "later"


def of_ranks(value):
    gathered = [None, None]
    dist.all_gather_object(gathered, value)
    return gathered


dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
for name, call in (
    ("recv", lambda group: dist.recv(torch.ones(1), group_src=1, group=group)),
    ("all_reduce", lambda group: dist.all_reduce(torch.ones(1), group=group)),
):
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    if rank == 1:
        time.sleep(4)
        steps = [tried(lambda: dist.all_reduce(torch.ones(1), group=group)) for _ in range(2)]
    else:
        steps = [tried(lambda: call(group))]
        steps.append(tried(lambda: dist.all_reduce(torch.ones(1), group=group)))
    waited = [("Timed out", "later"), ("pair closure", "at once")]
    late = [("closed by peer", "at once")] * 2
    expect(f"{name}, then all_reduce", of_ranks(steps), [waited, late])
group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
values = torch.ones(1)
if rank == 0:
    work = dist.all_reduce(values, group=group, async_op=True)
time.sleep(4)
told = (work.is_completed(), work.is_success(), values.item()) if rank == 0 else None
expect("the Work: completed, success, value", of_ranks(told)[0], (True, False, 1.0))
group = dist.new_group([0, 1], timeout=timedelta(seconds=30))
if rank == 0:
    work = dist.all_reduce(values, group=group, async_op=True)
    told = tried(lambda: work.wait(timedelta(seconds=1)))
    work.wait()
else:
    time.sleep(3)
    dist.all_reduce(values, group=group)
expect("wait(timeout), and the value in the end", (told, values.item()), (("timed out", "later"), 2.0))
expect("the default group", of_ranks(tried(lambda: dist.all_reduce(values))), [("works", "at once")] * 2)
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
