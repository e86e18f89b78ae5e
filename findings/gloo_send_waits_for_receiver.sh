#!/bin/bash
# Guess: a send of 16 bytes, and the root of a small broadcast or scatter, return at once; the data
# waits in a buffer of the receiver (as small messages of MPI do).
# Truth: gloo's sender waits until the receiver has posted its side, whatever the size. The root of
# a broadcast waits for its late receiver; the receiver that is not late gets its data and does
# not.
# Seen with torch 2.13.0, gloo, 3 ranks, rank 2 late by 0.5 s.
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


def waiting_ranks(call):
    """Ranks that spend more than 0.3 s inside a call to which rank 2 comes 0.5 s late."""
    dist.barrier()
    if rank == 2:
        time.sleep(0.5)
    start = time.perf_counter()
    call()
    seconds = [None] * 3
    elapsed = time.perf_counter() - start
    dist.all_gather_object(seconds, elapsed)
    return [number for number, value in enumerate(seconds) if value > 0.3]


def send():
    if rank == 0:
        dist.send(torch.ones(4), 2)
    elif rank == 2:
        dist.recv(torch.ones(4), 0)


def scatter():
    parts = [torch.ones(4)] * 3 if rank == 0 else None
    dist.scatter(torch.ones(4), parts, 0)


for _ in range(2):  # the first time opens connections
    broadcast_waiters = waiting_ranks(lambda: dist.broadcast(torch.ones(4), 0))
    send_waiters, scatter_waiters = waiting_ranks(send), waiting_ranks(scatter)
expect("waiting in a send from 0 to 2", send_waiters, [0])
expect("waiting in a broadcast from 0", broadcast_waiters, [0])
expect("waiting in a scatter from 0", scatter_waiters, [0])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 3 job.py
