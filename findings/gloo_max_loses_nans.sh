#!/bin/bash
# Guess: all_reduce with MAX or MIN gives NaN wherever one rank has NaN, as torch.maximum and
# torch.amax do, so that a maximum over ranks shows that one of them diverged.
# Truth: over gloo it depends on the rank and on the element. Of one element, the NaN of rank 0
# stays and that of any other rank is lost; of a long tensor each rank reduces a part, so that the
# NaN stays in half of the elements with two ranks, and in a third with three. All ranks get the
# same, there is no error, and SUM keeps each NaN.
# Seen with torch 2.13.0, gloo, 2 and 3 ranks.
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


def nans(op, elements, of_rank):
    """Returns how many elements are NaN after a reduction in which one rank has only NaN."""
    own = float("nan") if dist.get_rank() == of_rank else 1.0
    tensor = torch.full((elements,), own)
    dist.all_reduce(tensor, op)
    return int(tensor.isnan().sum())


dist.init_process_group("gloo")
ranks = dist.get_world_size()
for name in ("MAX", "MIN"):
    op = getattr(dist.ReduceOp, name)
    expect(f"{name} of one element, NaN on rank 0 of {ranks}", nans(op, 1, 0), 1)
    expect(f"{name} of one element, NaN on rank 1 of {ranks}", nans(op, 1, 1), 0)
    kept = {2: 500, 3: 334}[ranks]
    expect(f"{name} of 1000 elements, NaN on rank 0 of {ranks}", nans(op, 1000, 0), kept)
    expect(f"{name} of 1000 elements, NaN on rank 1 of {ranks}", nans(op, 1000, 1), kept)
expect(f"SUM of 1000 elements, NaN on rank 1 of {ranks}", nans(dist.ReduceOp.SUM, 1000, 1), 1000)
both = torch.maximum(torch.tensor([1.0]), torch.tensor([float("nan")]))
expect("torch.maximum of one element", int(both.isnan().sum()), 1)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
for ranks in 2 3; do
  "$python" -m torch.distributed.run --standalone --nproc-per-node $ranks job.py
done
