"""Beliefs about gloo's collectives and messages."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.beliefs.asking import belief, operators, outcome, ranges

OBSERVER = "csrc/torch/capture/observer.cpp"
COMPLETION = "csrc/torch/capture/completion.cpp"
HOST = "commprof/recordings/profiler_host.py"


@belief("gloo's all-reduce supports ReduceOp.AVG", "works", "csrc/core/record.h")
def gloo_averages() -> str:
    tensor = torch.full((4,), float(dist.get_rank()))
    return outcome(lambda: dist.all_reduce(tensor, dist.ReduceOp.AVG))


@belief("reduce_scatter_tensor over gloo supports ReduceOp.AVG, like all_reduce", "0.5")
def gloo_reduce_scatter_averages() -> str:
    output, tensor = torch.zeros(2), torch.full((4,), float(dist.get_rank()))
    dist.reduce_scatter_tensor(output, tensor, dist.ReduceOp.AVG)
    return str(output[0].item())


@belief("dist.reduce over gloo supports ReduceOp.AVG, like all_reduce", "works")
def gloo_reduce_averages() -> str:
    tensor = torch.full((4,), float(dist.get_rank()))
    return outcome(lambda: dist.reduce(tensor, 0, dist.ReduceOp.AVG))


@belief("an integer mean over gloo is refused", "RuntimeError")
def gloo_averages_integers() -> str:
    tensor = torch.tensor([dist.get_rank() * 3])
    told = outcome(lambda: dist.all_reduce(tensor, dist.ReduceOp.AVG))
    return told.partition(":")[0] if told != "works" else f"{tensor.item()} for the mean of 0 and 3"


@belief("gloo rounds each bf16 sum to bf16, so that 256 + 1 + 1 is 256", "256.0", ranks=3)
def gloo_sums_bf16() -> str:
    value = 256.0 if dist.get_rank() == 0 else 1.0
    tensor = torch.tensor([value], dtype=torch.bfloat16)
    dist.all_reduce(tensor)
    return str(tensor.item())


@belief("all ranks get the same bits of an all-reduce in fp32", "same", ranks=3)
def gloo_sums_alike() -> str:
    torch.manual_seed(dist.get_rank())
    tensor = torch.randn(1 << 16)
    dist.all_reduce(tensor)
    gathered = [torch.empty_like(tensor) for _ in range(3)]
    dist.all_gather(gathered, tensor)
    return "same" if all(torch.equal(gathered[0], other) for other in gathered) else "other bits"


@belief("the bits of a sum do not depend on how many tensors a bucket holds", "same", ranks=3)
def gloo_sums_by_position() -> str:
    torch.manual_seed(dist.get_rank())
    tensor = torch.randn(1 << 16)
    whole, halves = tensor.clone(), tensor.clone().chunk(2)
    dist.all_reduce(whole)
    for half in halves:
        dist.all_reduce(half)
    differ = int((whole != torch.cat(halves)).sum())
    return "same" if differ == 0 else "other last bits"


@belief("an all-reduce of bool with MIN is refused", "RuntimeError")
def gloo_reduces_bool() -> str:
    tensor = torch.tensor([dist.get_rank() == 0, True])
    told = outcome(lambda: dist.all_reduce(tensor, dist.ReduceOp.MIN))
    return told.partition(":")[0] if told != "works" else f"works: {tensor.tolist()}"


@belief("float8 can be gathered over gloo, because a gather only moves bytes", "works")
def gloo_gathers_float8() -> str:
    tensor = torch.ones(4).to(torch.float8_e4m3fn)
    gathered = [torch.empty_like(tensor) for _ in range(2)]
    return outcome(lambda: dist.all_gather(gathered, tensor))


@belief("float8 can be broadcast over gloo, because a broadcast only moves bytes", "works")
def gloo_broadcasts_float8() -> str:
    tensor = torch.ones(4).to(torch.float8_e4m3fn)
    return outcome(lambda: dist.broadcast(tensor, 0))


@belief("a complex all-reduce reaches the dispatcher as complex", "c10::complex<float>", OBSERVER)
def complex_is_reduced() -> str:
    from torch.profiler import ProfilerActivity, profile

    tensor = torch.ones(4, dtype=torch.complex64)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        dist.all_reduce(tensor)
    shapes = [e.input_shapes for e in recorded.events() if e.name == "gloo:all_reduce"]
    twice = shapes and shapes[0] and list(shapes[0][0]) == [4, 2]
    return "twice as many floats" if twice else f"c10::complex<float> {shapes}"


@belief("an all-reduce of an empty tensor is issued and ends", "allreduce_")
def empty_is_reduced() -> str:
    return operators(lambda: dist.all_reduce(torch.empty(0)))


@belief("in a group of one rank gloo runs nothing", "nothing", HOST, ranks=1)
def one_rank_runs() -> str:
    return ranges(lambda: dist.all_reduce(torch.ones(4)))


@belief("all_gather_into_tensor is recorded as the range gloo:all_gather", "gloo:all_gather", HOST)
def range_of_all_gather_into_tensor() -> str:
    output, tensor = torch.empty(8), torch.ones(4)
    return ranges(lambda: dist.all_gather_into_tensor(output, tensor))


@belief("all_to_all_single is recorded as the range gloo:all_to_all", "gloo:all_to_all", HOST)
def range_of_all_to_all_single() -> str:
    output, tensor = torch.empty(4), torch.ones(4)
    return ranges(lambda: dist.all_to_all_single(output, tensor))


@belief("all_to_all of lists runs over gloo as messages", "gloo:send, gloo:recv", HOST)
def range_of_all_to_all() -> str:
    output, tensors = [torch.empty(2) for _ in range(2)], [torch.ones(2) for _ in range(2)]
    return ranges(lambda: dist.all_to_all(output, tensors))


@belief("all_reduce_coalesced is recorded as one range for all tensors", "gloo:all_reduce", HOST)
def range_of_coalesced() -> str:
    tensors = [torch.ones(2), torch.ones(3)]
    return ranges(lambda: dist.all_reduce_coalesced(tensors))


@belief("a sparse all-reduce is recorded as one range, gloo:all_reduce", "gloo:all_reduce", HOST)
def range_of_sparse() -> str:
    tensor = torch.sparse_coo_tensor([[dist.get_rank()]], [1.0], (4,))
    return ranges(lambda: dist.all_reduce(tensor))


@belief("an isend's Work has no future", "RuntimeError", COMPLETION)
def message_has_future() -> str:
    rank = dist.get_rank()
    tensor = torch.ones(2)
    work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)
    told = outcome(lambda: work.get_future())
    work.wait()
    return told.partition(":")[0] if told != "works" else told


@belief("over gloo, the Work of every collective has a future", "works", COMPLETION)
def reduce_scatter_has_future() -> str:
    output, tensor = torch.zeros(2), torch.ones(4)
    work = dist.reduce_scatter_tensor(output, tensor, async_op=True)
    told = outcome(lambda: work.get_future())
    work.wait()
    return told


@belief("the future of an all-reduce holds the reduced tensors", "a list with the sum", COMPLETION)
def future_holds() -> str:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    value = work.get_future().value()
    is_list = isinstance(value, list) and len(value) == 1
    return "a list with the sum" if is_list and value[0][0] == 2 else repr(value)[:60]


@belief("the future of a broadcast holds the broadcast tensor", "a list with the tensor")
def future_of_broadcast_holds() -> str:
    tensor = torch.full((2,), float(dist.get_rank()))
    work = dist.broadcast(tensor, 0, async_op=True)
    work.wait()
    value = work.get_future().value()
    is_list = isinstance(value, list) and len(value) == 1
    return "a list with the tensor" if is_list and value[0][0] == 0 else repr(value)[:60]


@belief("a wait() that times out raises, and the group still works", "raises, works on")
def wait_runs_out() -> str:
    if dist.get_rank() == 1:
        time.sleep(1.5)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    limit = timedelta(milliseconds=200)
    told = outcome(lambda: work.wait(limit)) if dist.get_rank() == 0 else "works"
    after = outcome(lambda: dist.all_reduce(torch.ones(2)))
    if dist.get_rank() == 1:
        return "raises, works on" if after == "works" else f"raises, then {after.partition(':')[0]}"
    first = "raises" if told != "works" else "returns"
    second = "works on" if after == "works" else f"then {after.partition(':')[0]}"
    return f"{first}, {second}"


@belief("a blocking all-reduce leaves other Python threads running", "runs on")
def gil_is_free() -> str:
    counted: list[float] = []
    over = threading.Event()

    def count() -> None:
        while not over.is_set():
            counted.append(time.monotonic())
            time.sleep(0.01)

    thread = threading.Thread(target=count)
    thread.start()
    if dist.get_rank() == 1:
        time.sleep(0.5)
    begin = time.monotonic()
    dist.all_reduce(torch.ones(2))
    end = time.monotonic()
    over.set()
    thread.join()
    inside = sum(begin <= at <= end for at in counted)
    return "runs on" if dist.get_rank() == 1 or inside > 5 else "stands still"


@belief("gloo has two worker threads per group", "2", "commprof/analysis/collectives/in_flight.py")
def gloo_threads() -> str:
    return str(dist.ProcessGroupGloo._Options()._threads)


@belief("sends and receives of a batch over gloo are not coalesced", "recv_, send")
def batch_of_messages() -> str:
    peer = 1 - dist.get_rank()
    there, back = torch.ones(2), torch.empty(2)

    def call() -> None:
        batch = [dist.P2POp(dist.irecv, back, peer), dist.P2POp(dist.isend, there, peer)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()

    return operators(call)


@belief("after gloo refused a coalescing manager, a collective is issued as usual", "2.0")
def after_refused_coalescing() -> str:
    def call() -> None:
        with dist._coalescing_manager():
            dist.all_reduce(torch.ones(2))

    told = outcome(call)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    return str(tensor[0].item()) if told != "works" else "the manager works"


@belief("monitored_barrier names the late rank on rank 0, and raises there only", "told")
def monitored_barrier_names() -> str:
    if dist.get_rank() == 1:
        time.sleep(1.5)
    told = outcome(lambda: dist.monitored_barrier(timeout=timedelta(milliseconds=300)))
    if dist.get_rank() == 0:
        return "told" if "Rank 1" in told or "ranks 1" in told else told
    return "told" if told == "works" else f"raises {told.partition(':')[0]} on the late rank too"


@belief("a message to oneself is refused", "ValueError")
def message_to_oneself() -> str:
    told = outcome(lambda: dist.send(torch.ones(2), dist.get_rank()))
    return told.partition(":")[0]


@belief(
    "dist.all_reduce of a leaf that requires grad is refused, like other in-place changes",
    "refused",
)
def leaf_is_reduced() -> str:
    leaf = torch.ones(2, requires_grad=True)
    told = outcome(lambda: dist.all_reduce(leaf))
    return "refused" if told != "works" else f"changed in place to {leaf[0].item()}"


@belief("backward through dist.all_reduce raises", "raises")
def all_reduce_is_differentiable() -> str:
    leaf = torch.ones(2, requires_grad=True)
    middle = leaf * 3
    dist.all_reduce(middle)
    told = outcome(lambda: middle.sum().backward())
    return "raises" if told != "works" else f"gradient {leaf.grad[0].item()}, as if not reduced"


@belief("all_gather into tensors of another dtype is refused", "refused")
def gathers_into_another_dtype() -> str:
    outputs = [torch.empty(2, dtype=torch.float64) for _ in range(2)]
    told = outcome(lambda: dist.all_gather(outputs, torch.ones(2)))
    return "refused" if told != "works" else f"works: {outputs[0].tolist()}"


@belief("a second wait() returns at once, and returns True like the first", "True, True")
def waits_twice() -> str:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    return f"{work.wait()}, {work.wait()}"


@belief("a Work turns complete without wait(): is_completed() can be polled", "turns complete")
def completes_unwaited() -> str:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    until = time.monotonic() + 10
    while not work.is_completed() and time.monotonic() < until:
        time.sleep(0.01)
    told = "turns complete" if work.is_completed() else "stays incomplete"
    work.wait()
    return told


@belief("a reduce-scatter's Work turns complete without wait()", "turns complete", COMPLETION)
def reduce_scatter_completes_unwaited() -> str:
    output, tensor = torch.zeros(2), torch.ones(4)
    work = dist.reduce_scatter_tensor(output, tensor, async_op=True)
    until = time.monotonic() + 10
    while not work.is_completed() and time.monotonic() < until:
        time.sleep(0.01)
    told = "turns complete" if work.is_completed() else "stays incomplete"
    before = output[0].item()
    work.wait()
    return told if before == output[0].item() else f"{told}; wait() writes the output"


@belief("a message received from any source has a range of its own", "gloo:recvAnySource", HOST)
def range_of_any_source() -> str:
    def call() -> None:
        if dist.get_rank() == 0:
            dist.recv(torch.ones(4))
        else:
            dist.send(torch.ones(4), 0)

    seen = ranges(call)
    return "gloo:recvAnySource" if seen in ("gloo:recvAnySource", "gloo:send") else seen


@belief("20,000 all-reduces raise the process's memory by less than 4 MB", "so")
def gloo_keeps_its_memory() -> str:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    tensor = torch.ones(4)
    before = 0
    for number in range(22_000):
        dist.all_reduce(tensor)
        if number == 2_000:
            before = resident_bytes()
    grown = resident_bytes() - before
    return "so" if grown < 4e6 else f"{grown / 1e6:.0f} MB more"
