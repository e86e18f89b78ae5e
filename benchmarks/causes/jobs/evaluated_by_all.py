"""After each epoch every rank evaluates all samples; the fixed job divides them over the ranks."""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

rank = common.begin()
torch.manual_seed(1)
held_out = TensorDataset(torch.randn(160, 64))
part = DistributedSampler(held_out, shuffle=False) if common.FIXED else None
loader = DataLoader(held_out, 16, sampler=part)
ddp = DistributedDataParallel(common.sleeping(2, 64, 4))
optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
torch.manual_seed(rank)


def evaluate() -> float:
    """Returns the mean square of all outputs."""
    totals = torch.zeros(2)
    with torch.no_grad():
        for (x,) in loader:
            totals += torch.tensor([ddp(x).pow(2).sum(), x.numel()])
    if common.FIXED:
        dist.all_reduce(totals)
    return float(totals[0] / totals[1])


for step in common.steps():
    ddp(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 4:
        evaluate()
common.end()
