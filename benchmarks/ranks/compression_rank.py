"""Runs a part of ``compression.py`` on one rank, and prints the result as JSON."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof.trace.columns import compressions
from commprof.trace.reader import read_trace
from commprof.tune import compressors
from commprof.tune.compressors import kernels
from commprof.workloads.models.transformer import Transformer, TransformerOptions
from commprof.workloads.options import TrainingOptions
from commprof.workloads.spec import Shard
from commprof.workloads.strategies.ddp import Ddp
from commprof.workloads.training import Training

WARMUP = 3


class _GivenGradient(torch.autograd.Function):
    """Returns a zero whose backward gives the weight this gradient, at almost no cost."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gradient)
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None


class OneBucket(nn.Module):
    """A model of one matrix, which is one gradient bucket."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        columns = 1024
        self.weight = nn.Parameter(torch.zeros(numel // columns, columns))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        """Returns a zero whose backward gives the weight this gradient."""
        return _GivenGradient.apply(self.weight, gradient)


def gradients(numel: int, seed: int, count: int) -> list[torch.Tensor]:
    """Returns normally distributed gradients of 12 scales, from 1e-5 to 1e-2."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-5, -2, 12).repeat_interleave(-(-numel // 12))[:numel]
    return [(torch.randn(numel, generator=generator) * scales).view(-1, 1024) for _ in range(count)]


def _model(name: str, numel: int) -> DistributedDataParallel:
    model = DistributedDataParallel(OneBucket(numel), gradient_as_bucket_view=True)
    _put_hook(model, name)
    return model


def _put_hook(model: DistributedDataParallel, name: str) -> None:
    """Sets a hook by name: "plain" sets no hook, and "nothing" a hook that sends nothing."""
    if name == "torch fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "nothing":
        model.register_comm_hook(None, debugging_hooks.noop_hook)
    elif name != "plain":
        commprof.attach(model, hook=compressors.parse(name))


def _sent_bytes(interface: str) -> int:
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def exchange(names: list[str], size_mb: float, rounds: int, interface: str) -> dict[str, Any]:
    """Returns the ms per bucket, the bytes sent, and the bytes in the trace, by hook."""
    numel = int(size_mb * 1e6 / 4) // 1024 * 1024
    batch = gradients(numel, 100 + dist.get_rank(), 3)
    models = {name: _model(name, numel) for name in names}
    order = random.Random(0)  # gives all ranks the same order
    out: dict[str, Any] = {name: {"ms": [], "bytes": []} for name in names}
    for turn in range(WARMUP + rounds):
        for name in order.sample(names, len(names)):
            dist.barrier()
            sent = _sent_bytes(interface)
            elapsed = _step(models[name], batch[turn % len(batch)])
            # the barrier ends only after all earlier bytes are sent
            dist.barrier()
            sent = _sent_bytes(interface) - sent
            if turn >= WARMUP:
                out[name]["ms"].append(_slowest(elapsed) * 1e3)
                out[name]["bytes"].append(sent)
    for name in names:
        out[name]["wire_bytes"] = _reported_bytes(models[name], batch[0])
    return out


def sum_of_halves(size_mb: float, rounds: int, interface: str) -> dict[str, Any]:
    """Times all-reduces of fp16 and of uint8, and commprof's sum of two fp16 arrays.

    The two all-reduces have the same number of bytes.
    """
    numel = int(size_mb * 1e6 / 2)
    halves, small = torch.ones(numel, dtype=torch.float16), torch.ones(2 * numel, dtype=torch.uint8)
    pair = [halves.clone(), halves.clone()]
    out: dict[str, Any] = {"fp16_ms": [], "uint8_ms": [], "ours_ms": []}
    for turn in range(WARMUP + rounds):
        calls: list[tuple[str, Callable[[], object]]] = [
            ("fp16_ms", lambda: dist.all_reduce(halves.fill_(1))),
            ("uint8_ms", lambda: dist.all_reduce(small.fill_(1))),
            ("ours_ms", lambda: kernels.reduce_fp16(pair, [0.5, 0.5], out=pair[0])),
        ]
        for name, call in calls:
            dist.barrier()
            begin = time.perf_counter()
            call()
            elapsed = time.perf_counter() - begin
            if turn >= WARMUP:
                out[name].append(_slowest(elapsed) * 1e3)
    # In a ring of two ranks, each rank sums one half.
    return {**out, "elements_summed": numel / 2, "ours_elements": numel}


def power_sgd(size_mb: float, rank: int, rounds: int) -> dict[str, Any]:
    """Returns the milliseconds that torch's PowerSGD hook and ours add to a step of one rank."""
    numel = int(size_mb * 1e6 / 4) // 1024 * 1024
    models = {
        name: DistributedDataParallel(OneBucket(numel)) for name in ("plain", "torch", "ours")
    }
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    models["torch"].register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    commprof.attach(models["ours"], hook=compressors.powersgd(rank))
    batch = gradients(numel, 0, 3)
    out: dict[str, list[float]] = {"torch": [], "ours": []}
    for turn in range(WARMUP + rounds):
        taken = {
            name: _step(models[name], batch[turn % 3]) * 1e3
            for name in random.sample(sorted(models), 3)
        }
        if turn >= WARMUP:
            for name in out:
                out[name].append(taken[name] - taken["plain"])
    return out


def accuracy(rounds: int) -> dict[str, Any]:
    """Returns the relative error of each hook's mean, for gradients of a trained model."""
    gradient = _real_gradient(rounds)
    exact = gradient.double()
    dist.all_reduce(exact)
    exact /= dist.get_world_size()
    errors, identical = {}, True
    for name in ["plain", "torch fp16", "fp16", "bf16", "int8", "int4"]:
        model = _model(name, gradient.numel())
        _step(model, gradient.view(-1, 1024))
        mean = model.module.weight.grad.flatten()
        errors[name] = float((mean - exact).norm() / exact.norm())
        same = [torch.empty_like(mean) for _ in range(dist.get_world_size())]
        dist.all_gather(same, mean)
        identical = identical and all(torch.equal(other, mean) for other in same)
    return {"errors": errors, "identical": identical}


def _real_gradient(rounds: int) -> torch.Tensor:
    """Returns this rank's gradient of the transformer after 20 steps, padded to rows of 1024."""
    world, rank = dist.get_world_size(), dist.get_rank()
    workload = Transformer(TransformerOptions(vocab=512, d_model=128, sequence=64))
    shard = Shard(rank, world, per_rank_batch=8, steps=40, seed=rounds)
    trainee = workload.build(shard)
    training = Training(trainee, Ddp(), TrainingOptions(), shard)
    model = training.model
    batches = [batch for epoch in range(5) for batch in trainee.batches(epoch)][:21]
    for batch in batches[:20]:
        training.backward(training.forward(batch), 1.0)
        training.update()
    with training.synchronised(last=False):
        training.backward(training.forward(batches[-1]), 1.0)
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return nn.functional.pad(flat, (0, -flat.numel() % 1024))


def training(names: list[str], seeds: int, steps: int) -> dict[str, list[list[float]]]:
    """Trains the transformer; returns the ranks' mean loss in each step, by hook and seed."""
    options = TransformerOptions(
        vocab=256, d_model=64, feedforward=128, sequence=32, samples=128, learning_rate=2e-3
    )
    return {name: [_losses(options, name, seed, steps) for seed in range(seeds)] for name in names}


def _losses(options: TransformerOptions, name: str, seed: int, steps: int) -> list[float]:
    world, rank = dist.get_world_size(), dist.get_rank()
    shard = Shard(rank, world, per_rank_batch=16, steps=steps, seed=seed)
    trainee = Transformer(options).build(shard)
    training = Training(trainee, Ddp(), TrainingOptions(), shard)
    _put_hook(training.model, name)
    losses: list[float] = []
    for epoch in range(steps):
        for batch in trainee.batches(epoch):
            loss = training.forward(batch)
            training.backward(loss, 1.0)
            training.update()
            mean = loss.detach()
            dist.all_reduce(mean)
            losses.append(float(mean) / world)
            if len(losses) == steps:
                return losses
    raise AssertionError("an epoch has at least one step")


def _step(model: nn.Module, gradient: torch.Tensor) -> float:
    """Returns the seconds of a forward and a backward pass."""
    model.zero_grad(set_to_none=False)  # keeps the gradients' memory
    begin = time.perf_counter()
    model(gradient).backward()
    return time.perf_counter() - begin


def _slowest(elapsed: float) -> float:
    seconds = torch.tensor([elapsed])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def _reported_bytes(model: nn.Module, gradient: torch.Tensor) -> int:
    """Returns the bytes per bucket in the trace; 0 if the hook is not commprof's."""
    with tempfile.TemporaryDirectory() as directory:
        with commprof.profile(directory) as profiler:
            _step(model, gradient)
            profiler.step()
        (path,) = Path(directory).rglob(f"rank_{dist.get_rank()}*.trace")
        return int(compressions(read_trace(path)).wire_bytes.sum())


PARTS: dict[str, Callable[..., Any]] = {
    "exchange": exchange,
    "sum": sum_of_halves,
    "powersgd": power_sgd,
    "accuracy": accuracy,
    "training": training,
}


def main() -> None:
    """Runs ``compression_rank.py JSON``; "part" names the part, and other keys are arguments."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    arguments = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    result = PARTS[arguments.pop("part")](**arguments)
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends immediately


if __name__ == "__main__":
    main()
