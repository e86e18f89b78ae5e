from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.analysis.causes.rank_alone import ASYNCHRONOUS

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 64))
for step in range(2):
    scope: dict[str, Any] = {"torch": torch, "YOUR_MODEL": model, "YOUR_STEP": step}
    scope["YOUR_FOLDER"] = sys.argv[1]
    exec(compile(ASYNCHRONOUS, "fix", "exec"), scope)
    for _ in range(20):
        model(torch.ones(2, 64)).sum().backward()
    scope["saving"].result()
dist.destroy_process_group()
