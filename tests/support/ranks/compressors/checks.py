from __future__ import annotations

import copy
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commprof
from commprof import _native, compressors
from commprof.errors import CommprofError
from commprof.trace import columns
from commprof.trace.columns import compressions
from commprof.trace.reader import read_trace
from tests.support.ranks.compressors.train import gradients_digest

WIDTH = 128
TIMEOUT_S = 8


def make(
    layers: int = 4, dtype: torch.dtype = torch.float32, **options: bool
) -> DistributedDataParallel:
    """Each layer has 66 KB, and a bucket of its own."""
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(layers)))
    return DistributedDataParallel(model, bucket_cap_mb=0.07, **options)


def batch(step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(8, WIDTH, generator=generator).to(dtype)


def train(ddp: nn.Module, steps: range, dtype: torch.dtype = torch.float32) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in steps:
        optimizer.zero_grad()
        ddp(batch(step, dtype)).square().mean().backward()
        optimizer.step()


def same_on_all_ranks(ddp: nn.Module) -> None:
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, gradients_digest(ddp))
    assert len(set(found)) == 1, found


@contextmanager
def attached(ddp: DistributedDataParallel, compressor: compressors.Compressor) -> Iterator[None]:
    attachment = commprof.attach(ddp, hook=compressor)
    try:
        yield
    finally:
        attachment.set_hook(None)


def raises(message: str, call: Callable[[], object], error: type = CommprofError) -> str:
    with pytest.raises(error, match=re.escape(message)) as caught:
        call()
    return str(caught.value)


def many_buckets(directory: Path) -> None:
    """More buckets are in flight than gloo has threads."""
    ddp = make(layers=48)
    with attached(ddp, compressors.topk(0.05)):
        train(ddp, range(4))
        same_on_all_ranks(ddp)


def not_finite(directory: Path) -> None:
    ddp = make()
    compressor = compressors.topk(0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    with attached(ddp, compressor):
        compressor.follow_scaler(scaler)
        for step in range(6):
            optimizer.zero_grad()
            x = batch(step)
            if step == 2 and dist.get_rank() == 1:
                x[0, 0] = torch.inf
            before = [p.detach().clone() for p in ddp.parameters()]
            scaler.scale(ddp(x).square().mean()).backward()
            if step == 2:
                assert all(p.grad is not None and p.grad.isnan().all() for p in ddp.parameters())
            scaler.step(optimizer)
            scaler.update()
            moved = any((p != q).any() for p, q in zip(ddp.parameters(), before, strict=True))
            assert moved == (step != 2)
        assert scaler.get_scale() == 512.0
        assert all(p.isfinite().all() for p in ddp.parameters())
        for kinds in compressor.state_dict()["parameters"].values():
            assert kinds["residual"].isfinite().all()
        same_on_all_ranks(ddp)


def other_types_pass(directory: Path) -> None:
    plain, ddp = make(dtype=torch.float64), make(dtype=torch.float64)
    with attached(ddp, compressors.int8()), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(plain, range(3), torch.float64)
        train(ddp, range(3), torch.float64)
    told = [str(w.message) for w in caught if "commprof" in str(w.message)]
    assert len(told) == 1, told
    assert "exchanged uncompressed" in told[0]
    assert "double" in told[0].lower()
    assert gradients_digest(plain) == gradients_digest(ddp)


def disagreement_is_told(directory: Path) -> None:
    rank = dist.get_rank()
    mine, theirs = ("topk:ratio=0.1", "int8") if rank == 0 else ("int8", "topk:ratio=0.1")
    text = raises(
        f"rank {rank} has compressor {mine!r}",
        lambda: commprof.attach(make(), hook=compressors.parse(mine)),
    )
    assert repr(theirs) in text


def headers_disagree(directory: Path) -> None:
    ddp, compressor = make(), compressors.int8()
    attachment = commprof.attach(ddp, hook=compressor)
    train(ddp, range(2))
    if dist.get_rank() == 0:
        compressor.load_state_dict({**compressor.state_dict(), "step": 40})
    text = raises(
        f"failed on rank {dist.get_rank()} in bucket 0 of step",
        lambda: ddp(batch(2)).square().mean().backward(),
        RuntimeError,
    )
    assert re.search(r"\bstep\b.*\b(2|40)\b.*\b(2|40)\b", text.partition(": ")[2]), text
    attachment.set_hook(None)


def state_continues(directory: Path) -> None:
    # With ``find_unused_parameters``, DDP does not regroup the buckets after the first pass.
    fixed = {"find_unused_parameters": True}
    for text in ("topk:ratio=0.05", "powersgd:rank=2", "int4"):
        whole = make(**fixed)
        with attached(whole, compressors.parse(text)):
            train(whole, range(6))
        half, first = make(**fixed), compressors.parse(text)
        with attached(half, first):
            train(half, range(3))
            path = directory / f"{text.partition(':')[0]}-{dist.get_rank()}.pt"
            torch.save({"model": half.state_dict(), "compressor": first.state_dict()}, path)
        saved = torch.load(path)
        rest, second = make(**fixed), compressors.parse(text)
        rest.load_state_dict(saved["model"])
        second.load_state_dict(saved["compressor"])
        with attached(rest, second):
            warm = copy.deepcopy(second.state_dict())
            assert warm["step"] == 3
            train(rest, range(3, 6))
            assert second.state_dict()["step"] == 6
        assert gradients_digest(rest) == gradients_digest(whole), text


def states_merge(directory: Path) -> None:
    compressor = compressors.powersgd(2)
    with attached(ddp := make(), compressor):
        train(ddp, range(3))
        mine = compressor.state_dict()
    states: list[dict[str, Any]] = [{}] * dist.get_world_size()
    dist.all_gather_object(states, mine)
    merged = compressors.merge_states(states)
    other = compressors.powersgd(2)
    with attached(make(), other):
        raises("has world_size", lambda: other.load_state_dict({**mine, "world_size": 7}))
        raises("has rank", lambda: other.load_state_dict({**mine, "rank": mine["rank"] + 1}))
        other.load_state_dict(merged)
        loaded = other.state_dict()["parameters"]
        for name, kinds in loaded.items():
            mean = sum(s["parameters"][name]["residual"] for s in states) / len(states)
            assert torch.equal(kinds["residual"], mean.flatten())
        assert loaded["0.weight"]["residual"].any()  # biases are sent uncompressed


def traced(directory: Path) -> None:
    ddp = make()
    with commprof.profile(directory) as profiler:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with attached(ddp, compressors.int8(measure_every=2)):
            for step in range(6):
                optimizer.zero_grad()
                ddp(batch(step)).square().mean().backward()
                optimizer.step()
                profiler.step()
    trace = read_trace(directory / f"rank_{dist.get_rank()}.trace")
    done, buckets = compressions(trace), columns.buckets(trace)
    assert set(done.scheme) == {"int8"}
    assert sorted(done.op_id.tolist()) == sorted(buckets.op_id.tolist())
    assert (done.stage_ns[0] > 0).all()
    assert (done.stage_ns[1] > 0).all()
    measured = ~np.isnan(done.relative_error)
    assert 0.4 < measured.mean() < 0.6
    assert (done.relative_error[measured] < 0.02).all()
    assert (done.cosine[measured] > 0.999).all()


def restarts(directory: Path) -> None:
    ddp = make()
    attachment = commprof.attach(ddp, hook=compressors.fp16())
    train(ddp, range(2))
    first = attachment.compressor
    assert first is not None
    first_state = first.state_dict()
    attachment.set_hook(compressors.topk(0.1))
    train(ddp, range(2, 4))
    raises("is not attached to a model", first.state_dict)
    unfit = compressors.fp16()
    unfit.load_state_dict({**first_state, "world_size": 7})
    raises("has world_size", lambda: attachment.set_hook(unfit))
    train(ddp, range(4, 5))
    attachment.set_hook(None)
    train(ddp, range(5, 6))
    attachment.set_hook(first)
    train(ddp, range(6, 8))
    attachment._shared.way, way = _no_way, attachment._shared.way  # type: ignore[method-assign]
    raises("no way today", lambda: attachment.set_hook(compressors.int8()))
    assert attachment.compressor is None
    raises("is not attached to a model", first.state_dict)
    attachment._shared.way = way  # type: ignore[method-assign]
    train(ddp, range(8, 9))
    attachment.set_hook(first)
    raises("is attached to another model", lambda: commprof.attach(make(), hook=first))
    attachment.remove()
    same_on_all_ranks(ddp)


def _no_way(compressor: compressors.Compressor) -> Any:
    raise CommprofError("no way today")


def torch_operations(directory: Path) -> None:
    from commprof.tune.compressors.torch_ops import TorchOps

    for text in ("fp16", "bf16", "int8", "topk:ratio=0.05", "int8:feedback=1"):
        ddp, compressor = make(), compressors.parse(text)
        engine = TorchOps(ddp.process_group, list(ddp.parameters()), compressor)
        commprof.attach(ddp, hook=engine)
        train(ddp, range(4))
        same_on_all_ranks(ddp)
        assert engine.step == 4
        x = batch(9)
        if dist.get_rank() == 0:
            x[:] = torch.nan
        before = [values.clone() for _, _, values in engine.state()]
        ddp(x).square().mean().backward()
        assert all(p.grad is not None and not p.grad.isfinite().any() for p in ddp.parameters())
        after = [values for _, _, values in engine.state()]
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def without_the_module(directory: Path) -> None:
    assert _native.native is None
    ddp, compressor = make(), compressors.topk(0.05)
    with attached(ddp, compressor):
        train(ddp, range(3))
        same_on_all_ranks(ddp)
        state = compressor.state_dict()
        assert state["step"] == 3
        assert state["parameters"]["0.weight"]["residual"].any()
        compressor.load_state_dict(state)
    text = raises("needs the native module", lambda: commprof.attach(make(), compressors.int4()))
    assert "COMMPROF_NATIVE=0 is set" in text
    assert "none, fp16, bf16, int8, topk" in text


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    for name in sys.argv[2:]:
        directory = Path(sys.argv[1]) / name
        directory.mkdir(exist_ok=True)
        globals()[name](directory)
    dist.barrier()
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends at once
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
