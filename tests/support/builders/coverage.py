"""Every way to issue a collective on ``N`` ranks, with the rows expected in the trace."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

N = 2
#: A float has F bytes, an integer has L bytes.
F, L = 4, 8


class Row(NamedTuple):
    op: str
    bytes_in: int
    bytes_out: int
    dtype: str = "Float"
    reduce_op: str = ""


Prepared = tuple[Callable[[], object], list[Row]]
#: A case gets a rank, and returns a function that issues the calls, and the expected rows.
Case = Callable[[int], Prepared]


def reduced(size: int, reduce_op: str = "SUM", dtype: str = "Float") -> Row:
    return Row("all_reduce", size, size, dtype, reduce_op)


#: From torch 2.15 on, ``all_gather_object`` uses another operation.
NEW = torch.__version__ >= (2, 15)
GLOO_TAKES_LISTS = torch.__version__ >= (2, 12)
GATHERED = "all_gather_into_tensor" if NEW else "all_gather"
VALUE = {"rank": "any"}


def pickled_bytes() -> int:
    written = io.BytesIO()
    pickle.Pickler(written).dump(VALUE)
    return len(written.getvalue())


def objects(rank: int) -> Prepared:
    size, root = pickled_bytes(), rank == 0

    def issue() -> None:
        dist.all_gather_object([None] * N, VALUE)
        dist.broadcast_object_list([VALUE if root else None], src=0)
        dist.gather_object(VALUE, [None] * N if root else None, dst=0)
        dist.scatter_object_list([None], [VALUE] * N if root else None, src=0)

    return issue, [
        # all_gather_object sends all lengths, then all objects, padded to the longest length.
        Row(GATHERED, L, N * L, "Long"),
        Row(GATHERED, size, N * size, "Byte"),
        Row("broadcast", L, L, "Long"),
        Row("broadcast", size, size, "Byte"),
        Row("all_gather", L, N * L, "Long"),
        Row("gather", size, N * size if root else 0, "Byte"),
        # scatter_object_list sends the longest length, the objects, and each object's length.
        Row("broadcast", L, L, "Long"),
        Row("scatter", N * size if root else 0, size, "Byte"),
        Row("scatter", N * L if root else 0, L, "Long"),
    ]


def messages_of_objects(rank: int) -> Prepared:
    def issue() -> None:
        if rank == 0:
            dist.send_object_list([VALUE], dst=1)
        else:
            dist.recv_object_list([None], src=0)

    parts = ((L, "Long"), (pickled_bytes(), "Byte"))
    sent = [Row("send", size, 0, dtype) for size, dtype in parts]
    return issue, sent if rank == 0 else [Row("recv", 0, size, dtype) for size, dtype in parts]


def two_layers() -> nn.Sequential:
    """The layers have 144 and 68 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (N,))


def by_hand(rank: int) -> Prepared:
    x = torch.ones(6)

    def issue() -> None:
        dist.all_reduce(x)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        dist.all_reduce(x.half(), op=dist.ReduceOp.MAX)
        dist.broadcast(x, src=1)
        dist.reduce(x, dst=1)

    return issue, [
        reduced(6 * F),
        reduced(6 * F, "AVG"),
        reduced(6 * F // 2, "MAX", "Half"),
        Row("broadcast", 6 * F, 6 * F),
        Row("reduce", 6 * F, 6 * F, reduce_op="SUM"),
    ]


def by_hand_async(rank: int) -> Prepared:
    def issue() -> None:
        for work in [dist.all_reduce(torch.ones(6), async_op=True) for _ in range(3)]:
            work.wait()

    return issue, [reduced(6 * F)] * 3


def of_a_group_s_own_methods(rank: int) -> Prepared:
    group: Any = dist.group.WORLD
    return lambda: group.allreduce([torch.ones(3)]).wait(), [reduced(3 * F)]


def gathered(rank: int) -> Prepared:
    def issue() -> None:
        dist.all_gather([torch.empty(6) for _ in range(N)], torch.ones(6))
        dist.all_gather_into_tensor(torch.empty(6 * N), torch.ones(6))
        dist.gather(torch.ones(6), [torch.empty(6) for _ in range(N)] if rank == 0 else None)

    return issue, [
        Row("all_gather", 6 * F, N * 6 * F),
        Row("all_gather_into_tensor", 6 * F, N * 6 * F),
        Row("gather", 6 * F, N * 6 * F if rank == 0 else 0),
    ]


def scattered(rank: int) -> Prepared:
    def issue() -> None:
        dist.reduce_scatter(torch.empty(3), [torch.ones(3) for _ in range(N)])
        dist.reduce_scatter_tensor(torch.empty(3), torch.ones(3 * N))
        dist.scatter(torch.empty(3), [torch.ones(3) for _ in range(N)] if rank == 0 else None)

    return issue, [
        Row("reduce_scatter", N * 3 * F, 3 * F, reduce_op="SUM"),
        Row("reduce_scatter_tensor", N * 3 * F, 3 * F, reduce_op="SUM"),
        Row("scatter", N * 3 * F if rank == 0 else 0, 3 * F),
    ]


def all_to_all(rank: int) -> Prepared:
    def issue() -> None:
        if GLOO_TAKES_LISTS:
            dist.all_to_all([torch.empty(2) for _ in range(N)], [torch.ones(2) for _ in range(N)])
        dist.all_to_all_single(torch.empty(4 * N), torch.ones(4 * N))

    rows = [Row("all_to_all", N * 2 * F, N * 2 * F)] if GLOO_TAKES_LISTS else []
    return issue, [*rows, Row("all_to_all_single", N * 4 * F, N * 4 * F)]


def coalesced(rank: int) -> Prepared:
    def issue() -> None:
        dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
        dist.all_gather_coalesced(
            [[torch.empty(2), torch.empty(3)] for _ in range(N)], [torch.ones(2), torch.ones(3)]
        )

    return issue, [
        Row("all_reduce_coalesced", 5 * F, 5 * F, reduce_op="SUM"),
        Row("all_gather_coalesced", 5 * F, N * 5 * F),
    ]


def barriers(rank: int) -> Prepared:
    def issue() -> None:
        dist.barrier()
        dist.monitored_barrier()

    return issue, [Row("barrier", 0, 0, ""), Row("monitored_barrier", 0, 0, "")]


def messages(rank: int) -> Prepared:
    def issue() -> None:
        if rank == 0:
            dist.send(torch.ones(3), 1)
            dist.recv(torch.ones(5), 1)
        else:
            dist.recv(torch.ones(3), 0)
            dist.send(torch.ones(5), 0)

    sent, received = (3, 5) if rank == 0 else (5, 3)
    rows = [Row("send", sent * F, 0), Row("recv", 0, received * F)]
    return issue, rows if rank == 0 else rows[::-1]


def messages_async(rank: int) -> Prepared:
    def issue() -> None:
        works = [dist.isend(torch.ones(3), 1 - rank), dist.irecv(torch.ones(3), 1 - rank)]
        for work in works:
            assert work is not None
            work.wait()

    return issue, [Row("send", 3 * F, 0), Row("recv", 0, 3 * F)]


def messages_batched(rank: int) -> Prepared:
    def issue() -> None:
        send = dist.P2POp(dist.isend, torch.ones(3), 1 - rank)
        receive = dist.P2POp(dist.irecv, torch.ones(3), 1 - rank)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()

    return issue, [Row("send", 3 * F, 0), Row("recv", 0, 3 * F)]


def from_any_source(rank: int) -> Prepared:
    pair = dist.new_group([0, 1])

    def issue() -> None:
        if rank == 0:
            dist.send(torch.ones(3), 1, group=pair)
        else:
            dist.recv(torch.ones(3), group=pair)

    return issue, [Row("send", 3 * F, 0) if rank == 0 else Row("recv_any_source", 0, 3 * F)]


def sparse(rank: int) -> Prepared:
    x = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0]), (100,))
    return lambda: dist.all_reduce(x), [reduced(2 * F + 2 * L)]


def functional_collectives(rank: int) -> Prepared:
    group: Any = dist.group.WORLD

    def issue() -> None:
        for result in (
            functional.all_reduce(torch.ones(5), "sum", group),
            functional.broadcast(torch.ones(5), 1, group),
            functional.all_gather_tensor(torch.ones(5), 0, group),
            functional.reduce_scatter_tensor(torch.ones(6), "sum", 0, group),
            functional.all_to_all_single(torch.ones(6), None, None, group),
            *functional.all_reduce_coalesced([torch.ones(5), torch.ones(3)], "sum", group),
        ):
            result + 0

    return issue, [
        reduced(5 * F),
        Row("broadcast", 5 * F, 5 * F),
        Row("all_gather_into_tensor_coalesced", 5 * F, N * 5 * F),
        Row("reduce_scatter_tensor_coalesced", 6 * F, 6 * F // N, reduce_op="SUM"),
        Row("all_to_all_single", 6 * F, 6 * F),
        Row("all_reduce_coalesced", 8 * F, 8 * F, reduce_op="SUM"),
    ]


def compiled(rank: int) -> Prepared:
    group: Any = dist.group.WORLD

    @torch.compile(backend="aot_eager")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", group) + 1

    return lambda: doubled(torch.ones(4)), [reduced(4 * F)]


def ddp(rank: int) -> Prepared:
    model = DistributedDataParallel(two_layers())
    return lambda: model(torch.ones(2, 8)).sum().backward(), [reduced(212 * F)]


def fsdp2(rank: int) -> Prepared:
    from torch.distributed.fsdp import fully_shard

    model, row = two_layers(), mesh()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=row)

    def gather(parameters: int) -> Row:
        return Row("all_gather_into_tensor", parameters * F // N, parameters * F)

    def scatter(parameters: int) -> Row:
        size = parameters * F
        return Row("reduce_scatter_tensor", size, size // N, reduce_op="AVG")

    # Backward prefetches layer 0 before it scatters the gradients of layer 1.
    return lambda: model(torch.ones(2, 8)).sum().backward(), [
        *(gather(144), gather(68)),
        *(gather(68), gather(144), scatter(68), scatter(144)),
    ]


def dtensor(rank: int) -> Prepared:
    row = mesh()
    x = distribute_tensor(torch.ones(4, 4), row, [Shard(0)])
    return lambda: x.redistribute(row, [Replicate()]).to_local() + 0, [
        Row("all_gather_into_tensor_coalesced", 16 * F // N, 16 * F)
    ]


def tensor_parallel(rank: int) -> Prepared:
    model = two_layers()
    parallelize_module(model, mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.ones(3, 8, requires_grad=True)
    return lambda: model(x).sum().backward(), [reduced(3 * 4 * F), reduced(3 * 8 * F)]


def zero_optimizer(rank: int) -> Prepared:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = two_layers()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    sizes = [parameter.numel() * F for parameter in model.parameters()]
    return optimizer.step, [Row("broadcast", size, size) for size in sorted(sizes, reverse=True)]


def straight_to_the_backend(rank: int) -> Prepared:
    group: Any = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    return lambda: backend.allreduce([torch.ones(3)]).wait(), []


def coalescing_manager(rank: int) -> Prepared:
    pair = dist.new_group([0, 1])  # the manager makes the group unusable

    def issue() -> None:
        with dist._coalescing_manager(group=pair, device=torch.device("cpu"), async_ops=True):
            dist.all_reduce(torch.ones(4), group=pair)

    return issue, []


def all_gather_of_unequal_sizes(rank: int) -> Prepared:
    def issue() -> None:
        dist.all_gather([torch.empty(2), torch.empty(3)], torch.ones(2 + rank))

    return issue, [Row("all_gather", (2 + rank) * F, 5 * F)]


def gathered_into_one_tensor(rank: int) -> Prepared:
    into = torch.empty(6 * N) if rank == 0 else None
    return lambda: dist.gather_single(torch.ones(6), into), [
        Row("gather", 6 * F, N * 6 * F if rank == 0 else 0)
    ]


#: Each name is in the document. In the origins of the sizes, P is the number of parameters, n the
#: number of ranks, and B the bytes of the tensor.
CASES: dict[str, tuple[Case, str]] = {
    "`dist.all_reduce`, `broadcast`, `reduce`": (by_hand, "B -> B"),
    "the same with `async_op=True`": (by_hand_async, "B -> B"),
    "methods of the `ProcessGroup`": (of_a_group_s_own_methods, "B -> B"),
    "`dist.all_gather`, `gather` and variants": (
        gathered,
        "B -> n B; gather: B -> 0 except at dst",
    ),
    "`dist.reduce_scatter`, `scatter` and variants": (
        scattered,
        "n B -> B; scatter: 0 -> B except at src",
    ),
    "`dist.all_to_all`, `all_to_all_single`": (all_to_all, "n B -> n B"),
    "`dist.all_reduce_coalesced`, `all_gather_coalesced`": (
        coalesced,
        "sum B -> sum B; sum B -> n sum B",
    ),
    "`dist.barrier`, `monitored_barrier`": (barriers, "0 -> 0"),
    "`dist.send`, `recv`": (messages, "B -> 0; 0 -> B"),
    "`dist.isend`, `irecv`": (messages_async, "B -> 0; 0 -> B"),
    "`dist.batch_isend_irecv`": (messages_batched, "B -> 0; 0 -> B"),
    "`dist.recv` from any source": (from_any_source, "B -> 0; 0 -> B"),
    "`dist.all_gather_object`, `broadcast_object_list`, `gather_object`, `scatter_object_list`": (
        objects,
        "as the eager calls, of 8 and of the pickle's length",
    ),
    "`dist.send_object_list`, `recv_object_list`": (
        messages_of_objects,
        "8 and the pickle's length -> 0; 0 -> both",
    ),
    "`dist.all_reduce` of a sparse tensor": (sparse, "indices and values"),
    "functional collectives": (functional_collectives, "as the eager calls"),
    "functional collectives under `torch.compile`": (compiled, "B -> B"),
    "DDP, backward": (ddp, "4 P -> 4 P"),
    "FSDP2, forward and backward": (fsdp2, "4 P / n -> 4 P; 4 P -> 4 P / n"),
    "DTensor `redistribute`": (dtensor, "B / n -> B"),
    "tensor parallel, column then row": (tensor_parallel, "B of the activations"),
    "`ZeroRedundancyOptimizer.step`": (zero_optimizer, "4 P of each tensor"),
    "a `Backend` object called directly": (straight_to_the_backend, ""),
    "`dist._coalescing_manager`": (coalescing_manager, ""),
    "`dist.all_gather` of unequal sizes": (all_gather_of_unequal_sizes, "B -> sum of all"),
}
if hasattr(dist, "gather_single"):
    CASES["`dist.gather_single`"] = (gathered_into_one_tensor, "B -> 0 except at dst")
