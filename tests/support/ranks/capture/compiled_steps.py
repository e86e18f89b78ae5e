"""One rank trains a compiled model: ``... ranks.capture.compiled_steps DIR [yes]``.

With ``yes`` it is recorded. Prints what the compiler counted: with recording on, and 2 steps later.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

import commprof


def train(backend: str, directory: Path, recorded: bool) -> list[dict[str, dict[str, int]]]:
    """Frames, graphs and breaks, after recording and after further steps without it."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(1)
    layers = torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.Adam(model.parameters())
    step = torch.compile(optimizer.step, backend=backend)

    def steps(number: int) -> None:
        for _ in range(number):
            optimizer.zero_grad()
            compiled(torch.ones(4, 8)).sum().backward()
            step()

    def counted() -> dict[str, dict[str, int]]:
        kept = ("frames", "stats", "graph_break", "unimplemented")
        return {kind: dict(counters[kind]) for kind in kept}

    with commprof.profile(directory / backend) if recorded else nullcontext():
        steps(3)
        found = [counted()]
    steps(2)
    return [*found, counted()]


def main(directory: Path, recorded: bool) -> None:
    """Trains with two compilers' back ends."""
    dist.init_process_group("gloo")
    print(json.dumps({name: train(name, directory, recorded) for name in ("eager", "aot_eager")}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["yes"])
