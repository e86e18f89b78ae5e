"""Makes functions that run one collective, through methods of c10d's ProcessGroup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from commprof.forecast.microbench.buffers import Buffers, Pattern
from commprof.forecast.microbench.plan import BenchPlan

Call = Callable[[], None]
ROOT = 0

_REDOPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}


@dataclass(frozen=True)
class Side:
    """The process group to measure, as seen by one rank."""

    group: Any
    rank: int
    """Rank of this process in the group."""
    world_size: int
    device: str
    """Device of the tensors."""


def no_meeting() -> None:
    """Does nothing; replaces the barrier before each sample if ``sync`` is "none"."""


def make_call(op: str, side: Side, buffers: Buffers, redop: str) -> Call:
    """Returns a function that issues the operation and waits for its end.

    If the tensors are on a GPU, the function also waits until the GPU is idle.
    """
    start = make_start(op, side, buffers, redop)
    if side.device != "cpu":

        def on_device() -> None:
            finish(start())
            torch.cuda.synchronize()

        return on_device

    def on_cpu() -> None:
        finish(start())

    return on_cpu


def make_start(op: str, side: Side, buffers: Buffers, redop: str, is_async: bool = False) -> Any:
    """Returns a function that issues the operation; its result is an argument for `finish`."""
    return _STARTS[op](side, buffers, _REDOPS[redop], is_async)


def finish(works: Any) -> None:
    """Waits for one Work or several; None means that the backend has waited already."""
    if works is None:
        return
    if isinstance(works, list):
        for work in works:
            work.wait()
    else:
        works.wait()


def _options(kind: Any, is_async: bool, **values: Any) -> Any:
    options = kind()
    options.asyncOp = is_async
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _with_copy(buffers: Buffers, copies: bool, start: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that copies the input to the output, then calls `start`.

    Returns `start` itself if `copies` is False or the buffers are in place.
    """
    source, target = buffers.source, buffers.target
    if source is target or not copies:
        return start

    def copy_and_start() -> Any:
        target.copy_(source)
        return start()

    return copy_and_start


def _all_reduce(side: Side, buffers: Buffers, redop: Any, is_async: bool) -> Any:
    run, tensors = side.group.allreduce, [buffers.target]
    options = _options(c10d.AllreduceOptions, is_async, reduceOp=redop)
    return _with_copy(buffers, True, lambda: run(tensors, options))


def _reduce(side: Side, buffers: Buffers, redop: Any, is_async: bool) -> Any:
    run, tensors = side.group.reduce, [buffers.target]
    options = _options(c10d.ReduceOptions, is_async, reduceOp=redop, rootRank=ROOT, rootTensor=0)
    return _with_copy(buffers, True, lambda: run(tensors, options))


def _broadcast(side: Side, buffers: Buffers, _: Any, is_async: bool) -> Any:
    run, tensors = side.group.broadcast, [buffers.target]
    options = _options(c10d.BroadcastOptions, is_async, rootRank=ROOT, rootTensor=0)
    return _with_copy(buffers, side.rank == ROOT, lambda: run(tensors, options))


def _all_gather(side: Side, buffers: Buffers, _: Any, is_async: bool) -> Any:
    run, source, target = side.group._allgather_base, buffers.source, buffers.target
    options = _options(c10d.AllgatherOptions, is_async)
    return lambda: run(target, source, options)


def _reduce_scatter(side: Side, buffers: Buffers, redop: Any, is_async: bool) -> Any:
    run, source, target = side.group._reduce_scatter_base, buffers.source, buffers.target
    options = _options(c10d.ReduceScatterOptions, is_async, reduceOp=redop)
    return lambda: run(target, source, options)


def _all_to_all(side: Side, buffers: Buffers, _: Any, is_async: bool) -> Any:
    run, source, target = side.group.alltoall_base, buffers.source, buffers.target
    options = _options(c10d.AllToAllOptions, is_async)
    return lambda: run(target, source, [], [], options)


def _send_recv(side: Side, buffers: Buffers, _: Any, is_async: bool) -> Any:
    """Sends to the next rank and receives from the previous one, like sendrecv of nccl-tests."""
    after, before = (side.rank + 1) % side.world_size, (side.rank - 1) % side.world_size
    group, sent, received = side.group, buffers.source, buffers.target
    if side.device != "cpu":  # NCCL needs both messages in one call
        messages = [
            dist.P2POp(dist.isend, sent, group=group, group_peer=after),
            dist.P2POp(dist.irecv, received, group=group, group_peer=before),
        ]
        return lambda: dist.batch_isend_irecv(messages)
    outgoing, incoming = [sent], [received]
    return lambda: [group.send(outgoing, after, 0), group.recv(incoming, before, 0)]


def _barrier(side: Side, _: Buffers, __: Any, is_async: bool) -> Any:
    options = _options(c10d.BarrierOptions, is_async, device=torch.device(side.device))
    run = side.group.barrier
    return lambda: run(options)


_STARTS: dict[str, Callable[[Side, Buffers, Any, bool], Any]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
    "barrier": _barrier,
}


def count_wrong(
    plan: BenchPlan, op: str, count: int, side: Side, buffers: Buffers, call: Call
) -> int:
    """Runs `call` `plan.check` times, counts wrong elements, and clears the buffers."""
    pattern = Pattern(op, plan.redop, plan.dtype, side.world_size)
    expected = pattern.expected(side.rank, count)
    wrong = 0
    for _ in range(plan.check):
        buffers.fill(pattern, side.rank)
        call()
        wrong += pattern.wrong(buffers.target, expected)
    buffers.clear()
    return wrong
