#!/bin/bash
# Guess: a communication hook that is annotated as the documentation shows is accepted wherever it
# is written.
# Truth: in a module with `from __future__ import annotations` the same hook is refused: DDP
# compares the annotation itself with the class, and there it is text.
# Seen with torch 2.13.0 and 2.15.0, gloo, 2 ranks.
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
from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 4))


def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


try:
    model.register_comm_hook(None, hook)
    told = "accepted"
except ValueError as error:
    told = str(error)
expect("the hook", told, "Communication hook: bucket annotation should be dist.GradBucket.")
hook.__annotations__ = {
    "bucket": dist.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}
model.register_comm_hook(None, hook)
expect("the hook with classes for annotations", "accepted", "accepted")
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
