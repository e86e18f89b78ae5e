#!/bin/bash
# Guess: fabric.all_reduce and all_gather of a Python number keep it: an int becomes int64, as
# torch.tensor makes of it, and a float is rounded by nobody, as there is a dtype of 64 bits.
# Truth: an int becomes int32 and a float float32. Three billion tokens, 1.5 billion on each of two
# ranks, are -1,294,967,296; a number of 2**31 or more is refused; a wall clock of now is up to 64 s
# off. The mean of 1 and 2 as tensors of integers is 1. Tensors of float64 and int64 are right, and
# so is ignite's all-reduce of numbers, but ignite's broadcast makes float32 of ints and floats.
# Seen with torch 2.13.0, lightning-fabric 2.6.6, pytorch-ignite 0.5.5, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 lightning-fabric==2.6.6 pytorch-ignite==0.5.5
fi
cat > "$work/job.py" <<'EOF'
import warnings

import ignite.distributed as idist
import torch
import torch.distributed as dist
from lightning_fabric import Fabric


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


warnings.simplefilter("ignore")
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
rank = dist.get_rank()
NOW = 1_764_460_810.0  # seconds since 1970


def told(result):
    return str(result.dtype), result.tolist()


tokens = fabric.all_reduce(1_500_000_000, reduce_op="sum")
expect("sum of two times 1.5e9 tokens", told(tokens), ("torch.int32", 3_000_000_000 - 2**32))
try:
    refused = told(fabric.all_reduce(2**31, reduce_op="sum"))
except RuntimeError as error:
    refused = "int32 without overflow" in str(error)
expect("2**31 is refused", refused, True)
latest = fabric.all_reduce(NOW, reduce_op="max")
expect("wall clock, max", told(latest), ("torch.float32", 1_764_460_800.0))
expect("wall clock, all_gather", told(fabric.all_gather(NOW)), ("torch.float32", [1_764_460_800.0] * 2))
integers = fabric.all_reduce(torch.tensor([1 + rank]), reduce_op="mean")
expect("mean of integers 1 and 2", told(integers), ("torch.int64", [1]))
wide = fabric.all_reduce(torch.tensor(1_500_000_000), reduce_op="sum")
expect("the tokens as a tensor", told(wide), ("torch.int64", 3_000_000_000))
exact = fabric.all_reduce(torch.tensor(NOW, dtype=torch.float64), reduce_op="max")
expect("the wall clock as a tensor", told(exact), ("torch.float64", NOW))
expect("fabric.broadcast", fabric.broadcast(NOW), NOW)
expect("ignite, sum of tokens", idist.all_reduce(1_500_000_000), 3_000_000_000)
expect("ignite, all_gather of the wall clock", idist.all_gather(NOW), [NOW, NOW])
expect("ignite, broadcast of the wall clock", idist.broadcast(NOW, src=0), 1_764_460_800.0)
expect("ignite, broadcast of 2**40 + 1", idist.broadcast(2**40 + 1, src=0), float(2**40))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
