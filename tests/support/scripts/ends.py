import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-2)
    for _ in range(8):
        optimizer.zero_grad()
        ddp(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    way = sys.argv[1]
    if way == "exit":
        sys.exit(3)
    if way == "raise":
        raise ValueError("the script's own")
    if way == "kill" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


if __name__ == "__main__":
    main()
