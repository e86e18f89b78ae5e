import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    generator = DistributedDataParallel(nn.Linear(8, 16))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-2)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-2)
    for _ in range(8):
        fake = generator(torch.randn(4, 8))
        loss = critic(fake.detach()).mean() - critic(torch.randn(4, 16)).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        other = -critic(fake).mean()
        other.backward()
        of_generator.step()
    sys.stdout.write(f"rank {rank} {loss.item().hex()} {other.item().hex()}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
