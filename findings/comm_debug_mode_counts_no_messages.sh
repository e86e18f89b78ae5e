#!/bin/bash
# Guess: CommDebugMode counts every call of torch.distributed, or names what it leaves out.
# Truth: it counts collectives with tensors, and says nothing of barriers, send, recv and batches
# of them: a pipeline stage communicates zero times.
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
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def counts(call):
    with CommDebugMode() as mode:
        call()
    return {str(name): count for name, count in mode.get_comm_counts().items()}


def exchange():
    """One message to the other rank, and one from it, as a batch."""
    sent, received = torch.ones(2), torch.empty(2)
    batch = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()


dist.init_process_group("gloo")
rank = dist.get_rank()
other = 1 - rank
tensor = torch.ones(2)
expect("all_reduce", counts(lambda: dist.all_reduce(tensor)), {"c10d.allreduce_": 1})
expect("barrier", counts(dist.barrier), {})
message = dist.send if rank == 0 else dist.recv
expect("send", counts(lambda: message(tensor, other)), {})
expect("batch_isend_irecv", counts(exchange), {})
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
