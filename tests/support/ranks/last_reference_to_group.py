"""Deletes the last reference to a process group while a call of the group is pending.

The group's destructor waits for the thread of rank 1, and this thread needs the GIL.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from commprof import _native


def _group(store: Any, rank: int) -> Any:
    group = dist.ProcessGroup(store, rank, 2)
    gloo = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(gloo)
    backend = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
    group._register_backend(torch.device("cpu"), gloo, backend)
    return group


def _issue_late(group: Any) -> None:
    time.sleep(0.3)
    group.allreduce([torch.ones(4)]).wait()


store, nothing = dist.HashStore(), torch.empty(0)
with ThreadPoolExecutor(2) as pool:
    groups = list(pool.map(lambda rank: _group(store, rank), (0, 1)))
assert _native.tune_error is None
call = _native.tune.CollectiveCall(groups[0], "barrier", nothing, nothing, "sum", 0)
groups[0].allreduce([torch.ones(4)])
other = threading.Thread(target=_issue_late, args=(groups.pop(1),))
groups.clear()
other.start()
del call
other.join()
print("ended", flush=True)
os._exit(0)  # torch 2.13's gloo threads may abort a process that ends
