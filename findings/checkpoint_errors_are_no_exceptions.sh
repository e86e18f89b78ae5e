#!/bin/bash
# Guess: a checkpoint that cannot be read raises an Exception, so `except Exception` around load
# falls back to a fresh start.
# Truth: torch.distributed.checkpoint raises CheckpointException, which is a BaseException like
# KeyboardInterrupt: `except Exception` does not catch it.
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
import torch
import torch.distributed as dist
from torch.distributed import checkpoint


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
checkpoint.save({"weight": torch.ones(4)}, checkpoint_id="kept")
try:
    try:
        checkpoint.load({"other": torch.ones(4)}, checkpoint_id="kept")
        told = "nothing"
    except Exception as error:
        told = f"an Exception: {type(error).__name__}"
except BaseException as error:
    told = f"past `except Exception`: {type(error).__name__}"
expect("load of a key that is not there", told, "past `except Exception`: CheckpointException")
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
