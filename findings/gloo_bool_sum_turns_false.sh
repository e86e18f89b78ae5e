#!/bin/bash
# Guess: a sum of bools over ranks is their logical or, as True + True is True in torch, so that a
# flag that one rank has set stays set however often it is reduced.
# Truth: gloo adds the bytes, and the tensor keeps them: two ranks' True is the byte 2, which reads
# as True. The next all-reduce of the same tensor makes 4 of it, and the eighth 256, which is 0: the
# flag is False on all ranks, without an error. 256 ranks need one all-reduce for it. MAX stays True.
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


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
flag, largest = torch.tensor([True]), torch.tensor([True])
read, stored = [], []
for _ in range(8):
    dist.all_reduce(flag)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    read.append(flag.item())
    stored.append(flag.view(torch.uint8).item())
expect("bytes of a True after each of eight sums", stored, [2, 4, 8, 16, 32, 64, 128, 0])
expect("it reads as", read, [True] * 7 + [False])
expect("a True after eight maxima", largest.item(), True)
expect("True + True in torch", (torch.tensor(True) + torch.tensor(True)).item(), True)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
