#!/bin/bash
# Guess: parallelize_module keeps an embedding and an output layer that share one weight tied, or refuses
# them, as fully_shard refuses weights that are shared between its groups.
# Truth: each layer gets a DTensor of its own, without a word: the model has one parameter more, both are
# trained apart from then on, and after one step they differ. fully_shard raises, or keeps them tied if
# both layers are in one group.
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
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(8, 4)
        self.output = nn.Linear(4, 8, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(self.embedding(tokens))


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def after_a_step(model):
    """Number of parameters, and whether both weights are equal after an update."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.arange(8)).square().sum().backward()
    optimizer.step()
    equal = torch.equal(whole(model.embedding.weight), whole(model.output.weight))
    return len(list(model.parameters())), equal


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
expect("one process: parameters, weights equal", after_a_step(Tied()), (1, True))
expect("fully_shard of the whole", after_a_step(fully_shard(Tied(), mesh=mesh)), (1, True))
model = Tied()
try:
    for part in (model.embedding, model.output, model):
        fully_shard(part, mesh=mesh)
    told = after_a_step(model)
except ValueError as error:
    told = "shared with a parameter already managed by another FSDP group" in str(error)
expect("fully_shard of each layer refuses", told, True)
plan = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
    "output": ColwiseParallel(output_layouts=Replicate()),
}
expect("parallelize_module", after_a_step(parallelize_module(Tied(), mesh, plan)), (2, False))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
