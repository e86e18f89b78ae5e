#!/bin/bash
# Guess: receiving into a tensor that is larger than what was sent is an error; or, as in MPI, one can ask
# how much has come.
# Truth: over gloo the first elements are filled and the rest keeps its old values: recv returns the
# sender's rank as ever, irecv's Work is completed, and nothing tells the length. A broadcast and a scatter
# into a larger tensor do the same.
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


def on_rank_1(value):
    sent = [value]
    dist.broadcast_object_list(sent, src=1)
    return sent[0]


dist.init_process_group("gloo")
rank = dist.get_rank()
ones, larger = torch.ones(2), torch.full((4,), -1.0)
filled = [1.0, 1.0, -1.0, -1.0]

if rank == 0:
    dist.send(ones, 1)
else:
    told = dist.recv(larger, 0), larger.tolist()
expect("recv: returns, and holds", on_rank_1(rank and told), (0, filled))
larger.fill_(-1)
if rank == 0:
    dist.isend(ones, 1).wait()
else:
    work = dist.irecv(larger, 0)
    told = work.wait(), work.is_completed(), larger.tolist()
expect("irecv: wait, is_completed, and holds", on_rank_1(rank and told), (True, True, filled))
larger.fill_(-1)
dist.broadcast(ones if rank == 0 else larger, src=0)
expect("broadcast", on_rank_1(larger.tolist()), filled)
larger.fill_(-1)
dist.scatter(ones if rank == 0 else larger, [ones, ones] if rank == 0 else None, src=0)
expect("scatter", on_rank_1(larger.tolist()), filled)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
