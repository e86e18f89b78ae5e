"""Beliefs about functional collectives, their gradients and torch.compile."""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from benchmarks.beliefs.asking import belief, operators, outcome

SEEN = "csrc/torch/capture/observer.cpp"
PLAN = "csrc/torch/capture/op_plan.h"


@belief(
    "functional all_reduce issues c10d's all-reduce at the call, not at the first use",
    "allreduce_",
    SEEN,
)
def functional_is_issued() -> str:
    return operators(lambda: functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD))


@belief("functional all_gather_tensor issues _allgather_base_", "_allgather_base_", PLAN)
def functional_gathers() -> str:
    return operators(lambda: functional.all_gather_tensor(torch.ones(4), 0, dist.group.WORLD))


@belief(
    "functional reduce_scatter_tensor issues _reduce_scatter_base_", "_reduce_scatter_base_", PLAN
)
def functional_scatters() -> str:
    tensor = torch.ones(4)
    return operators(lambda: functional.reduce_scatter_tensor(tensor, "sum", 0, dist.group.WORLD))


@belief("functional permute_tensor issues a send and a receive", "send, recv_", PLAN)
def functional_permutes() -> str:
    return operators(lambda: functional.permute_tensor(torch.ones(4), [1, 0], dist.group.WORLD))


@belief("functional broadcast works over gloo", "works")
def functional_broadcasts() -> str:
    return outcome(lambda: functional.broadcast(torch.ones(4), 0, dist.group.WORLD) + 1)


@belief("a functional average over gloo is refused or right", "0.5")
def functional_averages() -> str:
    tensor = torch.full((2,), float(dist.get_rank()))
    return str((functional.all_reduce(tensor, "avg", dist.group.WORLD) + 0)[0].item())


@belief(
    "a functional result that nobody uses leaves no Work behind",
    "0",
    "csrc/torch/capture/timed_work.h",
)
def functional_is_dropped() -> str:
    result: Any = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    del result
    gc.collect()
    return str(torch._C._distributed_c10d._get_work_registry_size())


@belief("before the values of a functional result are read, torch waits for the result", "4.0")
def functional_is_read() -> str:
    result = functional.all_reduce(torch.full((4,), 2.0), "sum", dist.group.WORLD)
    return str(result.tolist()[0])


@belief("backward through the plain functional all_reduce raises", "raises")
def functional_backward() -> str:
    leaf = torch.ones(2, requires_grad=True)
    result = functional.all_reduce(leaf * 3, "sum", dist.group.WORLD)
    told = outcome(lambda: result.sum().backward())
    if told != "works":
        return "raises"
    return f"gradient {leaf.grad[0].item() if leaf.grad is not None else None}"


@belief(
    "backward of all_gather_tensor_autograd is one reduce-scatter", "_reduce_scatter_base_", SEEN
)
def functional_gather_backward() -> str:
    leaf = torch.ones(2, 2, requires_grad=True)
    result = functional.all_gather_tensor_autograd(leaf, 0, dist.group.WORLD)
    return operators(lambda: result.sum().backward())


@belief("backward of torch.distributed.nn's all_reduce is an all-reduce", "allreduce_", SEEN)
def nn_all_reduce_backward() -> str:
    import torch.distributed.nn.functional as differentiable

    leaf = torch.ones(2, requires_grad=True)
    result = differentiable.all_reduce(leaf * 1)
    return operators(lambda: result.sum().backward())


@belief("backward of torch.distributed.nn's broadcast is a reduce", "reduce_", SEEN)
def nn_broadcast_backward() -> str:
    import torch.distributed.nn.functional as differentiable

    leaf = torch.ones(2, requires_grad=True)
    result = differentiable.broadcast(leaf * 1, 0)
    return operators(lambda: result.sum().backward())


def _compiled(call: Any) -> Any:
    return torch.compile(call, backend="eager", fullgraph=True)


@belief("dist.all_reduce in a compiled function needs no graph break", "works", SEEN)
def compiled_all_reduce() -> str:
    def call(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor + 1

    return outcome(lambda: _compiled(call)(torch.ones(4)))


@belief("in a compiled function, dist.all_reduce changes its argument in place", "2.0", SEEN)
def compiled_all_reduce_in_place() -> str:
    def call(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor + 1

    tensor = torch.ones(4)
    _compiled(call)(tensor)
    return str(tensor[0].item())


@belief(
    "dist.all_reduce(async_op=True) and its wait() compile without a graph break", "works", SEEN
)
def compiled_async() -> str:
    def call(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor, async_op=True).wait()
        return tensor + 1

    told = outcome(lambda: _compiled(call)(torch.ones(4)))
    return told.partition(":")[0]


@belief("dist.barrier compiles without a graph break", "works", SEEN)
def compiled_barrier() -> str:
    def call(tensor: torch.Tensor) -> torch.Tensor:
        dist.barrier()
        return tensor + 1

    told = outcome(lambda: _compiled(call)(torch.ones(4)))
    return told.partition(":")[0]


@belief("dist.send and recv compile without a graph break", "works", SEEN)
def compiled_send() -> str:
    rank = dist.get_rank()

    def call(tensor: torch.Tensor) -> torch.Tensor:
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        return tensor + 1

    told = outcome(lambda: _compiled(call)(torch.ones(4)))
    return told.partition(":")[0]


@belief("aot_eager issues the same operator as eager: allreduce_", "allreduce_", SEEN)
def compiled_operator() -> str:
    def call(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor + 1

    function = torch.compile(call, backend="aot_eager", fullgraph=True)
    function(torch.ones(4))
    return operators(lambda: function(torch.ones(4)))


@belief(
    "torch.compile of an FSDP2 layer does not change gathers and reduce-scatters",
    "4 _allgather_base_, 2 _reduce_scatter_base_",
    SEEN,
)
def compiled_fsdp() -> str:
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(2)))
    for layer in model:
        layer.compile(backend="aot_eager")
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def call() -> None:
        model(torch.ones(2, 16)).square().sum().backward()

    call()
    return operators(call)


def _inductor(call: Any, *tensors: torch.Tensor) -> str:
    compiled = torch.compile(call)
    compiled(*tensors)
    return operators(lambda: compiled(*tensors))


@belief("Inductor keeps a functional all-reduce whose result nobody uses", "allreduce_", SEEN)
def inductor_unused() -> str:
    def call(tensor: torch.Tensor) -> torch.Tensor:
        functional.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        return tensor + 1

    return _inductor(call, torch.ones(8))


@belief("Inductor does not merge two equal functional all-reduces", "2 allreduce_", SEEN)
def inductor_equal() -> str:
    def call(tensor: torch.Tensor) -> Any:
        first = functional.all_reduce(tensor, "sum", dist.group.WORLD)
        return first + functional.all_reduce(tensor, "sum", dist.group.WORLD)

    return _inductor(call, torch.ones(8))


@belief("Inductor does not merge three small functional all-reduces", "3 allreduce_", SEEN)
def inductor_small() -> str:
    def call(*tensors: torch.Tensor) -> list[Any]:
        return [functional.all_reduce(one * 2, "sum", dist.group.WORLD) + 1 for one in tensors]

    return _inductor(call, *(torch.ones(8) for _ in range(3)))
