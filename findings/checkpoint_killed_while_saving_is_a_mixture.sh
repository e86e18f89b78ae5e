#!/bin/bash
# Guess: a job that is killed while torch.distributed.checkpoint.save writes over the last checkpoint
# leaves that one, as the metadata is written last; or leaves something that cannot be loaded.
# Truth: ranks write over their files at once, and the old metadata fits the new files as long as the
# shapes are the same: the folder loads without an error as a mixture, here rank 0's half of each
# tensor of step 2 and rank 1's of step 1. A save that raises, since one rank's object cannot be
# pickled, leaves a folder that cannot be loaded at all. A folder per step has neither.
# Seen with torch 2.13.0, gloo, 2 ranks; rank 1 is a rank whose disk is slow.
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
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


class SlowWriter(checkpoint.FileSystemWriter):
    """Writes as it should, but on rank 1 only after a minute."""

    def write_data(self, plan, planner):
        if dist.get_rank() == 1:
            time.sleep(60)
        written = super().write_data(plan, planner)
        Path("rank_0_wrote").touch()
        return written


class Unpicklable:
    def __reduce__(self):
        raise TypeError("cannot be pickled")


def state(step):
    weights = distribute_tensor(torch.full((8,), float(step)), mesh, [Shard(0)])
    return {"weights": weights, "moments": weights * 10, "step": torch.tensor(step)}


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def loaded():
    target = state(-1)
    try:
        checkpoint.load(target, checkpoint_id="saved")
    except BaseException as error:
        return type(error).__name__
    values = {name: target[name].full_tensor().tolist() for name in ("weights", "moments")}
    return *values.values(), target["step"].item()


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
whole = ([1.0] * 8, [10.0] * 8, 1)
if sys.argv[1] == "save":
    Path(f"pid_{dist.get_rank()}").write_text(str(os.getpid()))
    checkpoint.save(state(1), checkpoint_id="saved")
    expect("after the first save", loaded(), whole)
    checkpoint.save(state(2), storage_writer=SlowWriter("saved"))
elif sys.argv[1] == "load":
    expect("after the kill", loaded(), ([2.0] * 4 + [1.0] * 4, [20.0] * 4 + [10.0] * 4, 1))
    checkpoint.save(state(1), checkpoint_id="saved")
    expect("after another save", loaded(), whole)
    other = {"other": Unpicklable()} if dist.get_rank() == 1 else {}
    try:
        checkpoint.save({**state(2), **other}, checkpoint_id="saved")
        told = "works"
    except BaseException as error:
        told = type(error).__name__
    expect("a save that raises", told, "CheckpointException")
    expect("after it", loaded(), "CheckpointException")
dist.barrier()
dist.destroy_process_group()
EOF
cat > "$work/killed.py" <<'EOF'
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "job.py"]
with open("log", "w") as log:
    job = subprocess.Popen([*command, "save"], stderr=log)
end = time.monotonic() + 90
while not Path("rank_0_wrote").exists() and job.poll() is None and time.monotonic() < end:
    time.sleep(0.1)
time.sleep(0.5)
job.kill()  # first, as it would report ranks that die
job.wait()
for rank in Path().glob("pid_*"):
    os.kill(int(rank.read_text()), signal.SIGKILL)
if not Path("rank_0_wrote").exists():
    raise SystemExit("rank 0 did not write: " + Path("log").read_text()[-2000:])
raise SystemExit(subprocess.call([*command, "load"]))
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" killed.py
