#!/bin/bash
# Guess: torch.distributed.checkpoint.load into a sharded DTensor reads the rank's own part of the
# file: four ranks read a quarter each.
# Truth: the file system's reader loads each saved piece whole and then takes what the rank needs. A
# tensor that one process saved is read whole by each of four ranks, four times its size in all;
# saved by the same four ranks, each reads its quarter.
# Seen with torch 2.13.0, gloo, 4 ranks, 16 MB: 17.2 MB and 4.3 MB per rank.
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
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, zeros


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


ELEMENTS = 1 << 22


def read_bytes():
    """Bytes that this process has read so far, from files and pipes."""
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])


def share_read(path):
    """Returns how many quarters of the tensor a rank's load reads, to the nearest whole one."""
    quarter = {"weight": zeros(ELEMENTS, device_mesh=mesh, placements=[Shard(0)])}
    before = read_bytes()
    checkpoint.load(quarter, checkpoint_id=path)
    found = round((read_bytes() - before) / ELEMENTS)
    assert quarter["weight"].to_local()[0] == dist.get_rank() * ELEMENTS // 4
    return found


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (4,))
weight = torch.arange(float(ELEMENTS))
if dist.get_rank() == 0:
    checkpoint.save({"weight": weight}, checkpoint_id="one", no_dist=True)
dist.barrier()
parts = {"weight": distribute_tensor(weight, mesh, [Shard(0)])}
checkpoint.save(parts, checkpoint_id="four")
share_read("four")  # the first load reads modules of Python too
expect("quarters that a rank reads of a tensor that one process saved", share_read("one"), 4)
expect("quarters that a rank reads of a tensor that four ranks saved", share_read("four"), 1)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 4 job.py
