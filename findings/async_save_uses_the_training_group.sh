#!/bin/bash
# Guess: async_save plans and gathers over a group of its own, so that its collectives cannot meet
# those of the training loop; and it returns before they begin.
# Truth: without process_group= its nine collectives run over the default group, from another
# thread, while training goes on in the first one: nothing orders the two threads' calls, so that
# one rank may issue a checkpoint's call before a training step's and another after it. Whoever
# numbers the calls of a group (c10d does, per group) sees other numbers on each rank.
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
import tempfile
import threading

import torch
import torch.distributed as dist
from torch.distributed import checkpoint


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


calls = []


def noted(name):
    """Notes the thread and the group of each call of one of c10d's functions."""
    original = getattr(dist, name)

    def call(*arguments, **options):
        group = options.get("group") or dist.group.WORLD
        calls.append((threading.current_thread() is main, group is dist.group.WORLD))
        return original(*arguments, **options)

    setattr(dist, name, call)


dist.init_process_group("gloo")
main = threading.current_thread()
for name in ("all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list"):
    noted(name)
shared = [tempfile.mkdtemp(dir=".")]
dist.broadcast_object_list(shared, 0)
calls.clear()
before = dist.group.WORLD._get_sequence_number_for_group()
checkpoint.async_save({"weight": torch.ones(4)}, checkpoint_id=f"{shared[0]}/saved").result()
after = dist.group.WORLD._get_sequence_number_for_group()
expect("calls in the main thread", sum(is_main for is_main, _ in calls), 0)
expect("calls in another thread", len(calls), 4)
expect("of these over the default group", sum(is_default for _, is_default in calls), 4)
expect("numbers of the default group that they take", after - before, 9)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
