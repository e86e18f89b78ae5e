import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 32)).square().mean()
        loss.backward()
        optimizer.step()
    sys.stdout.write(f"rank {rank} {loss.item().hex()}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
