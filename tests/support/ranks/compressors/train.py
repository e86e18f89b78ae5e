from __future__ import annotations

import json
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof.tune import compressors
from tests.support.ranks.capture.ddp_variants import SETTINGS, Model, digest

STEPS = 5
SCHEMES = (
    *("none", "fp16", "bf16", "int8", "int4"),
    *("topk:ratio=0.05", "powersgd:rank=2", "topk:ratio=0.05,start_step=2"),
)
#: These schemes are tried with every setting of DDP.
EVERYWHERE = ("none", "int8", "topk:ratio=0.05")


def cases() -> list[tuple[str, str]]:
    found = [("plain", setting) for setting in SETTINGS]
    found += [(scheme, setting) for scheme in EVERYWHERE for setting in SETTINGS]
    found += [(scheme, "defaults") for scheme in SCHEMES if scheme not in EVERYWHERE]
    return found


def train(scheme: str, setting: str) -> str:
    torch.manual_seed(1)
    model = Model()
    model.layers[2].requires_grad_(False)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.3, **SETTINGS[setting])
    if scheme != "plain":
        commprof.attach(ddp, hook=compressors.parse(scheme))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    for step in range(STEPS):
        use_all = setting != "find_unused" or step % 3 != 0
        accumulate = setting.startswith("no_sync") and step % 2 == 0 and step < STEPS - 1
        with ddp.no_sync() if accumulate else nullcontext():
            ddp(torch.randn(16, 192), use_all).square().mean().backward()
        if not accumulate:
            optimizer.step()
            if step < STEPS - 1:
                optimizer.zero_grad()
    found = gradients_digest(ddp)
    if scheme != "plain":
        ddp._commprof_attachment.attachment.set_hook(None)  # ends the compressor's thread
    return found


def gradients_digest(ddp: nn.Module) -> str:
    """Leaves out the running statistics of BatchNorm, which differ between ranks."""
    return digest(nn.ParameterList(ddp.parameters()))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    print(
        json.dumps({f"{scheme} {setting}": train(scheme, setting) for scheme, setting in cases()})
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
