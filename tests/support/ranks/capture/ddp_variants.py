from __future__ import annotations

import hashlib
import inspect
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof import _native

STEPS = 20
SETTINGS: dict[str, dict[str, bool]] = {
    "defaults": {},
    "bucket_view": {"gradient_as_bucket_view": True},
    "find_unused": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
    "static_graph_bucket_view": {"static_graph": True, "gradient_as_bucket_view": True},
    "no_sync": {},
    "no_sync_bucket_view": {"gradient_as_bucket_view": True},
}
if "lazy_bucket_allocation" in inspect.signature(DistributedDataParallel).parameters:
    SETTINGS["lazy_buckets"] = {"lazy_bucket_allocation": True}
VARIANTS = ("plain", "observed", "hooked")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(192, 192) for _ in range(6))
        self.norm = nn.BatchNorm1d(192)
        self.sometimes = nn.Linear(192, 192)

    def forward(self, x: torch.Tensor, use_all: bool) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        x = self.norm(x)
        return self.sometimes(x) if use_all else x


def train(setting: str, variant: str, directory: Path) -> str:
    if variant == "plain" and _native.native is not None:
        _native.native.uninstall_observer()  # an earlier variant installed the observer
    torch.manual_seed(1)
    options = SETTINGS[setting]
    ddp = DistributedDataParallel(Model(), bucket_cap_mb=0.3, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + dist.get_rank())
    capture = nullcontext() if variant == "plain" else commprof.profile(directory)
    with capture as profiler:
        if variant == "hooked":
            commprof.attach(ddp)
        for step in range(STEPS):
            use_all = setting != "find_unused" or step % 3 != 0
            accumulate = setting.startswith("no_sync") and step % 2 == 0
            with ddp.no_sync() if accumulate else nullcontext():
                ddp(torch.randn(16, 192), use_all).square().mean().backward()
            if not accumulate:
                optimizer.step()
                if step < STEPS - 1:
                    optimizer.zero_grad()
            if profiler is not None:
                profiler.step()
    return digest(ddp)


def digest(ddp: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in ddp.parameters():
        found.update(parameter.detach().numpy().tobytes())
        if parameter.grad is not None:
            found.update(parameter.grad.numpy().tobytes())
    for buffer in ddp.buffers():
        found.update(buffer.numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    root = Path(sys.argv[1])
    results = {
        setting: {
            variant: train(setting, variant, root / f"{setting}-{variant}") for variant in VARIANTS
        }
        for setting in SETTINGS
    }
    print(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
