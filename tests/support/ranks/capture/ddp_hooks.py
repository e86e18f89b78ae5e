import copy
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import commprof
from commprof import _native
from commprof.errors import CommprofError
from commprof.trace import columns
from commprof.trace.reader import read_trace

LAYERS, WIDTH = 3, 300
LAYER_BYTES = (WIDTH * WIDTH + WIDTH) * 4


def make() -> DistributedDataParallel:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    return DistributedDataParallel(model, bucket_cap_mb=LAYER_BYTES / 2**20)


def steps(ddp: DistributedDataParallel, profiler: commprof.Profiler, count: int) -> None:
    for _ in range(count):
        ddp(torch.ones(2, WIDTH)).sum().backward()
        ddp.zero_grad()
        profiler.step()


calls: list[tuple[object, int]] = []


def zero_hook(state, bucket):
    calls.append((state, bucket.index()))
    future = torch.futures.Future()
    future.set_result(bucket.buffer().zero_())
    return future


def raises(message: str, call, error=CommprofError) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


def buckets_are_timed(directory: Path) -> None:
    ddp = make()
    with commprof.profile(directory) as profiler:
        commprof.attach(ddp)
        steps(ddp, profiler, 4)
    trace = read_trace(directory / f"rank_{dist.get_rank()}.trace")
    table, collectives = columns.buckets(trace), columns.collectives(trace)
    last = slice(-LAYERS, None)
    # DDP has other buckets in the first pass than in later passes.
    assert len(table) == np.count_nonzero(collectives.graph_task >= 0) > 3 * LAYERS
    assert table.index[last].tolist() == list(range(LAYERS))
    assert table.bytes[last].tolist() == [LAYER_BYTES] * LAYERS
    assert len(set(table.signature[last].tolist())) == 1
    assert (table.ready_ns < table.launch_ns).all()
    assert (table.launch_ns <= np.maximum(table.end_ns, table.launch_ns)).all()
    assert (table.end_ns > table.ready_ns).all()
    phases = columns.phases(trace)
    assert {"forward", "backward"} <= {trace.metadata["phases"][key] for key in phases.key}


def observing_takes_no_hook(directory: Path) -> None:
    observed, trained, hooked = make(), make(), make()
    with commprof.profile(directory) as profiler:
        for ddp in (observed, trained):
            commprof.attach(ddp)
        attachment = commprof.attach(hooked, hook=zero_hook)
        steps(trained, profiler, 2)
        attachment.set_hook(None)
    taken = [hooked]
    for ddp in (observed, trained):
        if _native.native is None:  # Python capture needs the hook to see buckets
            taken.append(ddp)
        else:
            dist._register_comm_hook(ddp.reducer, None, zero_hook)
    for ddp in taken:
        raises(
            "can only be called once",
            lambda ddp=ddp: dist._register_comm_hook(ddp.reducer, None, zero_hook),
            RuntimeError,
        )


def models_are_told_apart(directory: Path) -> None:
    attached, other = make(), make()
    extra = torch.ones(8)
    attached.module[1].weight.register_hook(lambda grad: dist.all_reduce(extra) or grad)
    gone = make()
    commprof.attach(gone)
    del gone
    with commprof.profile(directory) as profiler:
        commprof.attach(attached)
        for _ in range(3):
            for ddp in (other, attached):
                ddp(torch.ones(2, WIDTH)).sum().backward()
            profiler.step()
    trace = read_trace(directory / f"rank_{dist.get_rank()}.trace")
    table, collectives = columns.buckets(trace), columns.collectives(trace)
    passes = collectives.graph_task[np.isin(collectives.op_id, table.op_id)]
    if _native.native is not None:  # the Python capture sees only buckets
        assert len(np.unique(passes)) == 3
        assert len(np.unique(collectives.graph_task[collectives.graph_task >= 0])) == 6
    assert table.index.tolist()[-LAYERS:] == list(range(LAYERS))
    assert set(table.bytes[-2 * LAYERS :].tolist()) == {LAYER_BYTES}


class Checkpointed(nn.Module):
    """A reentrant checkpoint runs a backward pass inside the outer backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.layers
        return third(checkpoint(second, first(x), use_reentrant=True))


def nested_passes_are_observed(directory: Path) -> None:
    ddp = DistributedDataParallel(Checkpointed(), bucket_cap_mb=LAYER_BYTES / 2**20)
    with commprof.profile(directory) as profiler:
        commprof.attach(ddp)
        steps(ddp, profiler, 4)
    trace = read_trace(directory / f"rank_{dist.get_rank()}.trace")
    table, collectives = columns.buckets(trace), columns.collectives(trace)
    assert len(np.unique(collectives.graph_task[-LAYERS:])) == 2
    assert len(table) == np.count_nonzero(collectives.graph_task >= 0)
    assert sorted(table.index[-LAYERS:].tolist()) == list(range(LAYERS))


def hooks_run_inside(directory: Path) -> None:
    given, registered, switched = make(), make(), make()
    with commprof.profile(directory) as profiler:
        commprof.attach(given, hook=zero_hook, state="given")
        commprof.attach(registered)
        registered.register_comm_hook("registered", zero_hook)
        raises(
            "only be called once",
            lambda: registered.register_comm_hook(None, zero_hook),
            RuntimeError,
        )
        attachment = commprof.attach(switched)
        for ddp, state in ((given, "given"), (registered, "registered")):
            calls.clear()
            ddp(torch.ones(2, WIDTH)).sum().backward()
            assert {seen for seen, _ in calls} == {state}
            assert all(not p.grad.any() for p in ddp.parameters())
        calls.clear()
        steps(switched, profiler, 1)
        assert not calls
        attachment.set_hook(zero_hook, "switched")
        steps(switched, profiler, 1)
        assert calls
        calls.clear()
        attachment.set_hook(None)
        attachment.remove()
        removed_ns = time.monotonic_ns()
        switched(torch.ones(2, WIDTH)).sum().backward()
        assert not calls
        assert all(p.grad.any() for p in switched.parameters())
    table = columns.buckets(read_trace(directory / f"rank_{dist.get_rank()}.trace"))
    assert len(table) > 0
    assert (table.ready_ns < removed_ns).all()


def sparse_buckets_pass(directory: Path) -> None:
    def trained(ddp: DistributedDataParallel) -> torch.Tensor:
        for step in range(3):
            ddp.zero_grad()
            ddp(torch.tensor([[step, dist.get_rank() + 1]])).square().sum().backward()
        return ddp.module.weight.grad

    torch.manual_seed(3)
    embedding = nn.EmbeddingBag(50, 8, sparse=True)
    plain, observed = (DistributedDataParallel(copy.deepcopy(embedding)) for _ in range(2))
    with commprof.profile(directory) as profiler:
        commprof.attach(observed)
        found = trained(observed)
        profiler.step()
    assert found.is_sparse
    assert torch.equal(found.to_dense(), trained(plain).to_dense())
    table = columns.buckets(read_trace(directory / f"rank_{dist.get_rank()}.trace"))
    # The gradient has two rows: two indices of 8 bytes, and two rows of 8 floats.
    assert table.bytes.tolist() == [2 * 8 + 2 * 8 * 4] * 3


def joined_ranks_are_not_counted(directory: Path) -> None:
    rank = dist.get_rank()

    def trained(attached: bool, initial: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        ddp = make()
        if attached:
            commprof.attach(ddp)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-6)
        for _ in range(2):
            with ddp.join(divide_by_initial_world_size=initial):
                for turn in range(2 + 3 * (rank == 0)):
                    ddp(torch.ones(2, WIDTH) * (turn + rank)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        ddp(torch.ones(2, WIDTH) * rank).sum().backward()
        return [tensor.clone() for p in ddp.parameters() for tensor in (p.data, p.grad)]

    for initial in (True, False):
        plain, attached = (trained(attached, initial) for attached in (False, True))
        assert all(torch.equal(a, b) for a, b in zip(plain, attached, strict=True)), initial
    hooked = make()
    commprof.attach(hooked, commprof.compressors.fp16())
    warned = pytest.warns(UserWarning, match="averaged over all ranks")
    with hooked.join(divide_by_initial_world_size=False), warned:
        hooked(torch.ones(2, WIDTH)).sum().backward()


def misuse_is_refused(directory: Path) -> None:
    hooked = make()
    hooked.register_comm_hook(None, zero_hook)
    raises("already has a communication hook", lambda: commprof.attach(hooked))
    raises("needs a DistributedDataParallel", lambda: commprof.attach(nn.Linear(2, 2)))
    attached = make()
    commprof.attach(attached)
    raises("already has a communication hook", lambda: commprof.attach(attached))
    in_use, refused = commprof.compressors.fp16(), make()
    commprof.attach(make(), in_use)
    raises("is attached to another model", lambda: commprof.attach(refused, in_use))
    commprof.attach(refused, commprof.compressors.fp16())
    raises("already has a communication hook", lambda: commprof.attach(refused))


def main() -> None:
    dist.init_process_group("gloo")
    checks = (
        *(buckets_are_timed, observing_takes_no_hook, models_are_told_apart, hooks_run_inside),
        *(nested_passes_are_observed, sparse_buckets_pass, joined_ranks_are_not_counted),
        misuse_is_refused,
    )
    for check in checks:
        check(Path(sys.argv[1]) / check.__name__)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
