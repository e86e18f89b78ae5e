#!/bin/bash
# Guess: groups that a job makes after init_process_group(timeout=...) have its time-out: for
# details and the default, new_group's text refers to init_process_group, and init_device_mesh,
# from which FSDP2 and tensor parallelism get their groups, says nothing.
# Truth: they have the backend's default, over gloo 30 minutes. With ten seconds given to
# init_process_group, a rank that comes 15 s late is waited for without an error in every group but
# the default one. A mesh dimension of all ranks is the default group and has the ten seconds; each
# smaller dimension has 30 minutes.
# Seen with torch 2.13.0, gloo, 4 ranks.
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
import os
import pathlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def timeout_s(group):
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def of_late_rank(group):
    """Says how an all-reduce ends for which the last rank comes 15 s late."""
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(15)
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except RuntimeError as error:
        return "Timed out" if "Timed out" in str(error) else "an error"
    return "works"


# The time-out holds for the meeting of the ranks too, which have not all imported torch yet.
pathlib.Path(f"imported_{os.environ['RANK']}").touch()
while len(list(pathlib.Path().glob("imported_*"))) < 4:
    time.sleep(0.01)
dist.init_process_group("gloo", timeout=timedelta(seconds=10))
again = dist.new_group(range(dist.get_world_size()))
whole = init_device_mesh("cpu", (4,)).get_group()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
expect("seconds of the default group", timeout_s(dist.group.WORLD), 10.0)
expect("seconds of a mesh over all ranks", timeout_s(whole), 10.0)
expect("seconds of new_group of the same ranks", timeout_s(again), 1800.0)
expect("seconds of a mesh's rows", timeout_s(mesh["data"].get_group()), 1800.0)
expect("seconds of its columns", timeout_s(mesh["tensor"].get_group()), 1800.0)
expect("a rank 15 s late in new_group's group", of_late_rank(again), "works")
expect("a rank 15 s late in the default group", of_late_rank(dist.group.WORLD), "Timed out")
os._exit(0)  # the default group cannot be used any more, nor ended
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 4 job.py
