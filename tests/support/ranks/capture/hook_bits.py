from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof

CASES = {
    "copied": (False, False),
    "copied, kept": (False, True),
    "views": (True, False),
    "views, kept": (True, True),
}


def second_gradients(views: bool, kept: bool, hooked: bool) -> torch.Tensor:
    torch.manual_seed(1)
    layer = nn.Linear(64, 64, bias=False)
    ddp = DistributedDataParallel(layer, gradient_as_bucket_view=views)
    if hooked:
        assert commprof.attach(ddp).bucket_hook is not None  # this property registers the hook
    for step in range(2):
        ddp.zero_grad(set_to_none=not kept)
        torch.manual_seed(10 * step + dist.get_rank())
        ddp(torch.randn(8, 64)).square().sum().backward()
    assert layer.weight.grad is not None
    return layer.weight.grad.clone()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    differing = {
        case: int((second_gradients(*how, False) != second_gradients(*how, True)).sum())
        for case, how in CASES.items()
    }
    print(json.dumps(differing))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
