import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for word in sys.argv[1:]:
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    rank, size, steps, path = word.split(",")
    store = dist.FileStore(path, int(size))
    gloo = dist.ProcessGroupGloo(store, int(rank), int(size), timedelta(seconds=60))
    group = dist.ProcessGroup(store, int(rank), int(size))
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    for _ in range(int(steps)):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        for parameter in model.parameters():
            group.allreduce([parameter.grad], dist.AllreduceOptions()).wait()
        optimizer.step()
