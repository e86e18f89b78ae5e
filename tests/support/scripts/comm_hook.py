import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def python_hook(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer().div_(group.size()), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def register(ddp: DistributedDataParallel, name: str) -> None:
    if name == "python":
        ddp.register_comm_hook(dist.group.WORLD, python_hook)
    elif name == "fp16":
        ddp.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    elif name == "builtin":
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    else:
        state = powerSGD_hook.PowerSGDState(dist.group.WORLD, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
    register(ddp, sys.argv[1])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(8):
        optimizer.zero_grad()
        loss = ddp(torch.randn(4, 64)).square().mean()
        loss.backward()
        optimizer.step()
    sys.stdout.write(f"rank {rank} {loss.item().hex()}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
