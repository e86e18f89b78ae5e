import os
import signal
import sys
from datetime import timedelta

import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

steps, last_before_kill = (int(word) for word in sys.argv[1:])
killed = os.environ["KILLED"]
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])


def state_dict() -> dict:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load_state_dict(state: dict) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
    min_replica_size=2,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"train_{os.environ['REPLICA_GROUP_ID']}",
)
ddp = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.01))
while manager.current_step() < steps:
    optimizer.zero_grad()
    torch.manual_seed(manager.current_step())
    ddp(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()
    if manager.current_step() == last_before_kill and not os.path.exists(killed):
        open(killed, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
print("sum", sum(parameter.detach().double().sum().item() for parameter in model.parameters()))
manager.shutdown(wait=False)
