"""Trains compiled models: DIR CASE[,CASE] [yes], where ``yes`` turns recording on."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import commprof


class Block(nn.Module):
    """The compiler skips the frames of torch.nn's own classes, so this class is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(x))
        return result


class WithCollective(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + all_reduce(x, "sum", dist.group.WORLD)


def made(case: str) -> nn.Module:
    """Returns the model of a case, which is named MODEL-GRAPHS-BACKEND.

    GRAPHS is ``whole`` for a single graph, or ``parts`` for one graph per part of the model.
    """
    kind, how, backend = case.split("-")
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) if kind == "fsdp2nn" else Blocks()
    if how == "parts":
        for part in [layers] if kind == "ddp" else layers.children():
            part.compile(backend=backend, fullgraph=True)
    model: nn.Module
    if kind == "ddp":
        model = DistributedDataParallel(layers)
    elif kind.startswith("fsdp2"):
        for layer in (*layers.children(), layers):
            fully_shard(layer)
        model = layers
    else:
        model = WithCollective()
    if how != "parts":
        model.compile(backend=backend, fullgraph=how == "whole")
    return model


def train(case: str, directory: Path, recorded: bool) -> dict[str, Any]:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(1)
    model = made(case)
    optimizer = torch.optim.Adam(model.parameters())
    step = torch.compile(optimizer.step, backend=case.split("-")[2])

    def steps(number: int) -> None:
        for _ in range(number):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            step()

    def counted() -> dict[str, dict[str, int]]:
        kept = ("frames", "stats", "graph_break", "unimplemented", "recompiles")
        return {kind: dict(counters[kind]) for kind in kept}

    try:
        with commprof.profile(directory / case) if recorded else nullcontext():
            steps(3)
            during = counted()
        steps(2)
    except torch._dynamo.exc.Unsupported:
        return {"refused": True}
    parameters = [getattr(one, "_local_tensor", one).tolist() for one in model.parameters()]
    return {"during": during, "after": counted(), "parameters": parameters}


def main(directory: Path, cases: list[str], recorded: bool) -> None:
    dist.init_process_group("gloo")
    print(json.dumps({case: train(case, directory, recorded) for case in cases}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:] == ["yes"])
