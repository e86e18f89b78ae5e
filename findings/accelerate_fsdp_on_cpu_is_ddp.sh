#!/bin/bash
# Guess: Accelerator(cpu=True, fsdp_plugin=...) shards the model with FSDP2 over gloo, or refuses
# to.
# Truth: the plugin is dropped without error or warning and the model is replicated by
# DistributedDataParallel: it trains, the exchange is DDP's, and the memory that sharding should
# save is not saved.
# Seen with accelerate 1.15.0, torch 2.13.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 accelerate==1.15.0
fi
cat > "$work/job.py" <<'EOF'
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
expect("type of the prepared model", type(model).__name__, "DistributedDataParallel")
expect("type of its parameters", {type(p).__name__ for p in model.parameters()}, {"Parameter"})
expect("accelerate's name of it", str(accelerator.distributed_type), "DistributedType.MULTI_CPU")
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
