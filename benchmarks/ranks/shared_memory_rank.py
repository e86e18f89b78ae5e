"""Runs a part of ``shared_memory.py`` on one rank, and prints the result as JSON."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks
from torch.nn.parallel import DistributedDataParallel

import commprof.tune.backend  # noqa: F401  registers "commprof"
from commprof.workloads.models.transformer import Transformer
from commprof.workloads.spec import Shard

WARMUP = 2
#: Length of a turn of calls. A barrier is short compared with it.
TURN_S = 0.02


def groups() -> dict[str, dist.ProcessGroup]:
    """Returns the two groups that are compared."""
    return {name: dist.new_group(backend=name) for name in ("gloo", "commprof")}


def _slowest(values: list[float]) -> list[float]:
    """Returns the slowest rank's time of each turn."""
    everyone = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(everyone, op=dist.ReduceOp.MAX)
    return everyone.tolist()


def _timed(call: Callable[[], object], calls: int) -> float:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def all_reduce(sizes: list[int], rounds: int) -> dict[str, Any]:
    """Returns the milliseconds of an all-reduce, by size and group.

    "read and write" is one pass over the data, without communication.
    """
    named = groups()
    return {str(size): _one_size(size, named, rounds) for size in sizes}


def _one_size(size: int, named: dict[str, dist.ProcessGroup], rounds: int) -> dict[str, Any]:
    data = torch.ones(size // 4)
    array = data.numpy()
    calls: dict[str, Callable[[], object]] = {
        name: lambda group=group: dist.all_reduce(data, op=dist.ReduceOp.MAX, group=group)
        for name, group in named.items()
    }
    calls["read and write"] = lambda: np.negative(array, out=array)
    # All ranks must make the same number of calls, so the slowest rank's time counts.
    once = max(_slowest([max(_timed(call, 1) for call in calls.values()) for _ in range(3)]))
    count = max(1, min(200, int(TURN_S / once)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARMUP + rounds):
        for name, call in calls.items():
            took = _timed(call, count)
            if turn >= WARMUP:
                times[name].append(took * 1e3)
    return {name: _slowest(values) for name, values in times.items()}


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    workload = Transformer()
    # Few samples: in a longer step, the noise would be larger than the communication.
    trainee = workload.build(Shard(dist.get_rank(), dist.get_world_size(), 2, 1, 0))
    tokens = next(iter(trainee.batches(0))).inputs
    return trainee.model, tokens


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    """Returns a model of 25,005,000 parameters, whose step is mostly communication."""
    width = 5000
    layers = [nn.Linear(1000, width), nn.ReLU(), nn.Linear(width, 4000, bias=False)]
    return nn.Sequential(*layers), torch.randn(16, 1000)


MODELS = {"transformer": _transformer, "25M": _mlp}


def ddp(model: str, rounds: int) -> dict[str, Any]:
    """Returns milliseconds per step: without communication, over gloo, and over shared memory.

    Without communication, DDP has a hook that sends nothing. So all three cases copy gradients.
    """
    torch.manual_seed(0)
    module, inputs = MODELS[model]()
    networks = {
        name: DistributedDataParallel(copy.deepcopy(module), process_group=group)
        for name, group in groups().items()
    }
    alone = DistributedDataParallel(copy.deepcopy(module))
    alone.register_comm_hook(None, debugging_hooks.noop_hook)

    def step(network: nn.Module) -> None:
        network.zero_grad(set_to_none=False)
        network(inputs).square().mean().backward()

    candidates = {"no communication": alone, **networks}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(WARMUP + rounds):
        for name, network in candidates.items():
            took = _timed(lambda network=network: step(network), 1)
            if turn >= WARMUP:
                times[name].append(took * 1e3)
    return {name: _slowest(values) for name, values in times.items()}


def hosts(size: int, rounds: int) -> dict[str, Any]:
    """Returns the milliseconds of an all-reduce and its bytes on this rank's link, by group."""
    data = torch.ones(size // 4)
    statistics = Path("/sys/class/net/eth0/statistics")
    counters = {"sent": statistics / "tx_bytes", "received": statistics / "rx_bytes"}
    out: dict[str, Any] = {}
    for name, group in groups().items():
        out[name] = {"group": group, "ms": [], "sent": [], "received": []}
    for turn in range(WARMUP + rounds):
        for one in out.values():
            dist.barrier()
            before = {name: int(counter.read_text()) for name, counter in counters.items()}
            took = _timed(
                lambda one=one: dist.all_reduce(data, op=dist.ReduceOp.MAX, group=one["group"]), 1
            )
            dist.barrier()
            if turn >= WARMUP:
                one["ms"].append(took * 1e3)
                for name, counter in counters.items():
                    one[name].append(int(counter.read_text()) - before[name])
    for one in out.values():
        del one["group"]
        one["ms"] = _slowest(one["ms"])
    return out


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    parts = {"all_reduce": all_reduce, "ddp": ddp, "hosts": hosts}
    result = parts[arguments.pop("part")](**arguments)
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
