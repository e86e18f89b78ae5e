#!/bin/bash
# Guess: whatever reads the result of a functional collective waits for it: printing, arithmetic,
# numpy(), and saving as well.
# Truth: torch.save and pickle do not wait: they write what the memory holds at the moment, here
# the own values before the sum, without a warning. numpy(), tolist() and repr() of the same result
# wait.
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
import io
import pickle
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def late():
    """The result of a sum of ones that rank 1 joins a second later."""
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(1)
    return functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


dist.init_process_group("gloo")
for what, read, wanted in (
    ("tolist()", lambda tensor: tensor, [2.0, 2.0]),
    ("numpy()", lambda tensor: torch.from_numpy(tensor.numpy()), [2.0, 2.0]),
    ("torch.save", saved, [1.0, 1.0]),
    ("torch.save in a dict", lambda tensor: saved({"loss": tensor})["loss"], [1.0, 1.0]),
    ("pickle", lambda tensor: pickle.loads(pickle.dumps(tensor)), [1.0, 1.0]),
):
    result = late()
    values = read(result).tolist()
    expect(what, values, wanted)
    expect("the sum", (result + 0).tolist(), [2.0, 2.0])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
