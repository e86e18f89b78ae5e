import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, LAYERS, BATCH = 256, 3, 4


def main() -> None:
    steps = int(sys.argv[1])
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    # Accelerate uses its FSDP plugin on accelerators only; on CPUs it would use DDP.
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="size_based_wrap",
        min_num_params=WIDTH,
        cpu_ram_efficient_loading=False,
    )
    data = TensorDataset(torch.randn(2 * BATCH * steps, WIDTH))
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, BATCH))
    for (inputs,) in loader:
        loss = model(inputs).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    sys.stdout.write(f"rank {dist.get_rank()} {loss.item().hex()}\n")
    accelerator.end_training()


if __name__ == "__main__":
    main()
