"""Prints how much machine code of commprof a training process maps, in kB.

The process trains a small model with DDP and recording, and then attaches a compressor to another
model. To measure another checkout, put its path first into PYTHONPATH.

    PYTHONPATH=. python benchmarks/own_cost/mapped_code.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

_MAPPING = re.compile(r"(?P<begin>[0-9a-f]+)-(?P<end>[0-9a-f]+) ..x. [^/\n]*(?P<file>/[^\n]+\.so)$")
_TRAIN = """
import sys
import torch
import torch.distributed as dist
import commprof

def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def show(title):
    print("##", title)
    print(open("/proc/self/maps").read())

print(next(iter(commprof.__path__)))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with commprof.profile(sys.argv[1]):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    commprof.attach(model)
    train(model)
    show("recorded")
    attachment = commprof.attach(
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8)),
        commprof.compressors.fp16(),
    )
    show("with a compressor")
dist.destroy_process_group()
"""


def mapped_code(maps: str, package: Path) -> dict[str, float]:
    """Returns the executable kB of each library of a package, from ``/proc/PID/maps``."""
    code: dict[str, float] = {}
    for line in maps.splitlines():
        if (mapping := _MAPPING.match(line)) and Path(mapping["file"]).is_relative_to(package):
            bytes_mapped = int(mapping["end"], 16) - int(mapping["begin"], 16)
            name = Path(mapping["file"]).name.split(".")[0]
            code[name] = code.get(name, 0.0) + bytes_mapped / 1000
    return code


def measured() -> dict[str, dict[str, float]]:
    """Trains in a new process; returns the kB of each library, without and with a compressor."""
    with tempfile.TemporaryDirectory() as directory:
        words = [sys.executable, "-c", _TRAIN, str(Path(directory) / "run")]
        output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    package, *parts = output.split("## ")
    titled = (part.split("\n", 1) for part in parts)
    return {title: mapped_code(maps, Path(package.strip())) for title, maps in titled}


def main() -> None:
    by_title = measured()
    libraries = sorted({name for code in by_title.values() for name in code})
    rows = [
        [title, *(code.get(name) for name in libraries), sum(code.values())]
        for title, code in by_title.items()
    ]
    print(tabulate(rows, ["kB of machine code", *libraries, "sum"], floatfmt=".0f", missingval="-"))


if __name__ == "__main__":
    main()
