#!/bin/bash
# Guess: numbers and small tensors that differ by rank (a position in the data, a seed) and have
# equal names in a checkpoint are each rank's own after loading, or rank 0's, or refused.
# Truth: all ranks write under the names of all, and the pieces are shared out by size: after
# loading, some values are rank 0's and some rank 1's, on both ranks, within one dictionary too.
# Here the position is rank 0's and the seed that belongs to it rank 1's. With the rank in the name
# each rank has its own.
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
import torch.distributed.checkpoint as checkpoint


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def loader(rank):
    """The state of a rank's data loader; each value is the rank."""
    numbers = {"position": rank, "seed": rank}
    return {"loader": numbers, "shuffled": torch.tensor([rank]), "worker": torch.tensor([rank])}


dist.init_process_group("gloo")
rank = dist.get_rank()
checkpoint.save(loader(rank), checkpoint_id="saved")
state = loader(-1)
checkpoint.load(state, checkpoint_id="saved")
values = {**state["loader"], **{name: state[name].item() for name in ("shuffled", "worker")}}
of_ranks = [None, None]
dist.all_gather_object(of_ranks, values)
expect("both ranks load the same", of_ranks[0] == of_ranks[1], True)
expect("whose values they are", sorted(values.values()), [0, 0, 1, 1])
expect("and which", values, {'position': 0, 'seed': 1, 'shuffled': 0, 'worker': 1})
own = {f"rank_{rank}": loader(rank)}
checkpoint.save(own, checkpoint_id="saved_by_rank")
own = {f"rank_{rank}": loader(-1)}
checkpoint.load(own, checkpoint_id="saved_by_rank")
dist.all_gather_object(of_ranks, own[f"rank_{rank}"]["loader"])
expect("with the rank in the name", of_ranks, [loader(0)["loader"], loader(1)["loader"]])
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
