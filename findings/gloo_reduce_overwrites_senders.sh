#!/bin/bash
# Guess: dist.reduce changes the tensor of the destination only; senders keep theirs.
# Truth: over gloo the senders' tensors hold partial sums afterwards, other ones on each rank and
# in each part of the tensor. Here rank r sends 10**r, and every rank but one ends with mixtures.
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
import torch
import torch.distributed as dist


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.full((5,), float(10**rank))
dist.reduce(tensor, 0)
after = [torch.zeros(5) for _ in range(4)]
dist.all_gather(after, tensor)
expect("the destination's sum", after[0].tolist(), [1111.0] * 5)
changed = [r for r in (1, 2, 3) if after[r].tolist() != [float(10**r)] * 5]
expect("senders whose tensors were overwritten", changed, [1, 2, 3])
if rank == 0:
    print("tensors afterwards:", [part.tolist() for part in after])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 4 job.py
