#!/bin/bash
# Guess: collectives of one process group complete in the order in which they were issued, as
# NCCL's do on their stream.
# Truth: a group of gloo has two worker threads, so that a small all-reduce that was issued behind
# a large one is complete while the large one still runs. A barrier is another matter: it first
# waits for everything that was issued before it.
# Seen with torch 2.13.0, gloo, 2 ranks: 5 of 5 times.
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
overtaken = {"all_reduce": 0, "barrier": 0}
for _ in range(5):
    for second in overtaken:
        large, small = torch.ones(1 << 23), torch.ones(1)
        dist.barrier()
        first_work = dist.all_reduce(large, async_op=True)
        if second == "barrier":
            dist.barrier(async_op=True).wait()
        else:
            dist.all_reduce(small, async_op=True).wait()
        overtaken[second] += not first_work.is_completed()
        first_work.wait()
expect("a small all-reduce overtakes one of 32 MiB", overtaken["all_reduce"] > 0, True)
expect("barriers that overtake it", overtaken["barrier"], 0)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
