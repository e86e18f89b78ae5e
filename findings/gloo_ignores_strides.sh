#!/bin/bash
# Guess: a collective on a transposed tensor either gives the right values or is refused, as
# all_to_all_single refuses it ("Tensors must be contiguous").
# Truth: over gloo it depends on the call. gather and all_gather copy first and are right;
# broadcast and scatter move the memory as it lies, so that a receiver with another layout of the
# same shape gets the elements in another order, and all_reduce adds elements of different
# positions. No error.
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
rank = dist.get_rank()
turned = torch.arange(6.0).reshape(2, 3).t()  # a valid tensor of shape 3 x 2
right = turned.contiguous().tolist()
as_in_memory = torch.arange(6.0).reshape(3, 2).tolist()
gathered = [torch.zeros(3, 2) for _ in range(2)]
dist.all_gather(gathered, turned)
expect("all_gather", gathered[1].tolist(), right)
dist.gather(turned, gathered if rank == 0 else None, 0)
expect("gather", gathered[1].tolist(), right)
received = turned.clone(memory_format=torch.preserve_format) if rank == 1 else torch.zeros(3, 2)
dist.broadcast(received, 1)
expect("broadcast", received.tolist(), as_in_memory)
received = torch.zeros(3, 2)
dist.scatter(received, [turned, turned] if rank == 1 else None, 1)
expect("scatter", received.tolist(), as_in_memory)
received = turned.clone(memory_format=torch.preserve_format) if rank == 1 else torch.zeros(3, 2)
dist.all_reduce(received)
expect("all_reduce with zeros", received.tolist(), as_in_memory)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
