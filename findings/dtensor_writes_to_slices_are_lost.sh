#!/bin/bash
# Guess: writing into a slice of a DTensor changes the DTensor, as of any tensor, or is refused, as in-place
# calls are that would change a placement.
# Truth: a slice along the sharded dimension is a gathered copy: weight[1:3].add_(1), weight[0].fill_(1),
# weight[1, 2] = 1, and writes to parts of chunk() and split() change nothing, without a word, on a rank
# that holds the rows too. Along the other dimension, and of a replicated DTensor, they work. An embedding
# that is made on meta and sharded keeps a random padding row when reset_parameters() runs, which should
# set it to zero in this way.
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
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def element(tensor):
    tensor[1, 2] = 1


def chunk(tensor):
    tensor.chunk(4)[1].add_(1)


WRITES = {
    "[1:3].add_(1)": lambda tensor: tensor[1:3].add_(1),
    "[0].fill_(1)": lambda tensor: tensor[0].fill_(1),
    "[1, 2] = 1": element,
    "narrow(0, 1, 2).copy_": lambda tensor: tensor.narrow(0, 1, 2).copy_(torch.ones_like(tensor[1:3])),
    "chunk(4)[1].add_(1)": chunk,
    "diagonal().add_(1)": lambda tensor: tensor.diagonal().add_(1),
}


def told(write, placement):
    plain = torch.zeros(4, 4)
    sharded = distribute_tensor(plain.clone(), mesh, [placement])
    write(plain)
    write(sharded)
    whole = sharded.full_tensor()
    return "right" if torch.equal(whole, plain) else "unchanged" if not whole.any() else "other"


warnings.simplefilter("ignore")
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
for name, write in WRITES.items():
    expect(f"rows sharded, {name}", told(write, Shard(0)), "unchanged")
    expect(f"replicated, {name}", told(write, Replicate()), "right")
of_columns = [told(WRITES[name], Shard(1)) for name in ("[1:3].add_(1)", "[0].fill_(1)", "[1, 2] = 1")]
expect("columns sharded: rows, a row, an element", of_columns, ["right", "right", "unchanged"])
with torch.device("meta"):
    embedding = nn.Embedding(8, 4, padding_idx=0)
fully_shard(embedding, mesh=mesh)
embedding.to_empty(device="cpu")
embedding.reset_parameters()
row = embedding.weight.full_tensor()[0]
expect("a sharded embedding's padding row is zero", not row.any(), False)
embedding = nn.Embedding(8, 4, padding_idx=0)
embedding.reset_parameters()
expect("a plain one's is", not embedding.weight[0].any(), True)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
