#!/bin/bash
# Guess: validation under torch.inference_mode leaves an FSDP2 model as one under no_grad does, as it
# leaves a DDP model.
# Truth: if the first forward pass of all is one in inference mode, as in a trainer's sanity check
# before the first step, every training pass after it raises: inference tensors may not be changed
# in place or saved for backward. The gathered parameters are made in the first pass and used for
# ever. After a first pass outside of it, inference mode does no harm.
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
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def trained(passes, mode=torch.inference_mode, wrap=fully_shard):
    """Whether each training pass (t) worked, of a row of them and of validation passes (v)."""
    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)))
    told = []
    for kind in passes:
        if kind == "v":
            with mode():
                model(torch.ones(2, 4))
            continue
        try:
            model(torch.ones(2, 4)).sum().backward()
            told.append("works")
        except RuntimeError as error:
            told.append("raises" if "nference tensor" in str(error) else str(error))
    return told


dist.init_process_group("gloo")
expect("validation, two training passes", trained("vtt"), ["raises", "raises"])
expect("training, validation, training", trained("tvt"), ["works", "works"])
expect("validation under no_grad, training", trained("vt", torch.no_grad), ["works"])
expect("validation of DDP, training", trained("vt", wrap=DistributedDataParallel), ["works"])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
