"""FSDP2: all-gathers and reduce-scatters are recorded without attaching anything.

torchrun --nproc-per-node 2 examples/fsdp2.py
commprof report commprof-trace
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import commprof


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))
    for block in (model[0], model[2], model):
        # The model is small: its parameters can stay in memory from forward to backward.
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    torch.manual_seed(dist.get_rank())
    with commprof.profile("commprof-trace") as prof:
        for _ in range(20):
            optimizer.zero_grad()
            with prof.phase("forward"):  # for the loss; the model's call is recorded anyway
                loss = model(torch.randn(16, 32)).square().mean()
            loss.backward()
            optimizer.step()
            prof.step()  # ends a step

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
