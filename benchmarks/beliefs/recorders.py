"""Beliefs about what torch's own recorders show: Flight Recorder and torch.profiler."""

from __future__ import annotations

import json
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.beliefs.asking import belief, counted

FLIGHT = "commprof/recordings/flight_recorder.py"
EVENTS = "commprof/recordings/profiler_events.py"
HOST = "commprof/recordings/profiler_host.py"


def _pickled() -> Any:
    return pickle.loads(torch._C._distributed_c10d._dump_fr_trace())


def _entries() -> list[Any]:
    entries = list(_pickled()["entries"])
    if not entries:
        raise LookupError("the dump has no entries")
    return entries


@belief("Flight Recorder numbers a group's first collective 1", "1", FLIGHT)
def recorder_first_number() -> str:
    dist.all_reduce(torch.ones(2))
    return str(_entries()[0]["collective_seq_id"])


@belief("Flight Recorder records gloo's messages as messages", "is_p2p", FLIGHT)
def recorder_messages() -> str:
    tensor, rank = torch.ones(2), dist.get_rank()
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    entries = _pickled()["entries"]
    return "nothing" if not entries else "is_p2p" if entries[-1]["is_p2p"] else "as collectives"


@belief("a message does not change the number of the next collective", "as without it", FLIGHT)
def recorder_number_after_message() -> str:
    tensor, rank = torch.ones(2), dist.get_rank()
    dist.all_reduce(torch.ones(2))
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    dist.all_reduce(torch.ones(2))
    entries = [entry for entry in _entries() if "all_reduce" in entry["profiling_name"]]
    step = entries[-1]["collective_seq_id"] - entries[0]["collective_seq_id"]
    return "as without it" if step == 1 else f"{step - 1} higher"


@belief(
    "a collective has the same number on all ranks, even after a message between two ranks",
    "alike",
    FLIGHT,
    ranks=3,
)
def recorder_numbers_of_ranks() -> str:
    tensor, rank = torch.ones(2), dist.get_rank()
    if rank < 2:
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    dist.all_reduce(torch.ones(2))
    entries = [entry for entry in _entries() if "all_reduce" in entry["profiling_name"]]
    number = torch.tensor([entries[-1]["collective_seq_id"]])
    numbers = [torch.empty_like(number) for _ in range(3)]
    dist.all_gather(numbers, number)
    told = [int(one) for one in numbers]
    return "alike" if len(set(told)) == 1 else f"{told[0]}, {told[1]}, {told[2]}"


@belief(
    "a list reduce-scatter has one entry, named gloo:reduce_scatter", "gloo:reduce_scatter", FLIGHT
)
def recorder_reduce_scatter() -> str:
    dist.reduce_scatter(torch.empty(2), [torch.ones(2) for _ in range(2)])
    return counted(entry["profiling_name"] for entry in _entries())


@belief("monitored_barrier is one entry", "gloo:monitored_barrier", FLIGHT)
def recorder_monitored_barrier() -> str:
    from datetime import timedelta

    dist.monitored_barrier(timeout=timedelta(seconds=10))
    return counted(entry["profiling_name"] for entry in _pickled()["entries"])


@belief("a barrier's entry is named gloo:barrier", "gloo:barrier", FLIGHT)
def recorder_barrier() -> str:
    dist.barrier()
    return counted(entry["profiling_name"] for entry in _entries())


@belief("an all_to_all_single's entry is named gloo:all_to_all", "gloo:all_to_all", FLIGHT)
def recorder_all_to_all() -> str:
    dist.all_to_all_single(torch.empty(4), torch.ones(4))
    return counted(entry["profiling_name"] for entry in _entries())


@belief("the JSON dump has the same keys per entry as the pickle", "the same", FLIGHT)
def recorder_json_keys() -> str:
    dist.all_reduce(torch.ones(2))
    read = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    here, there = set(_entries()[0]), set(read["entries"][0])
    if here == there:
        return "the same"
    return f"json lacks {', '.join(sorted(here - there)) or 'none'}"


@belief("the JSON dump has the same keys at the top as the pickle", "the same", FLIGHT)
def recorder_json_top() -> str:
    dist.all_reduce(torch.ones(2))
    read = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    here, there = set(_pickled()), set(read)
    if here == there:
        return "the same"
    lacks, more = sorted(here - there), sorted(there - here)
    return f"json lacks {', '.join(lacks) or 'none'}, adds {', '.join(more) or 'none'}"


@belief("the JSON dump's pg_status has numbers, like the pickle's pg_status", "int", FLIGHT)
def recorder_json_status() -> str:
    dist.all_reduce(torch.ones(2))
    read = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    status = next(iter(read["pg_status"].values()))
    return type(status["last_enqueued_collective"]).__name__


@belief("time_created_ns is a time of the wall clock", "wall clock", FLIGHT)
def recorder_clock() -> str:
    dist.all_reduce(torch.ones(2))
    made = _entries()[-1]["time_created_ns"]
    if abs(made - time.time_ns()) < 60e9:
        return "wall clock"
    return "monotonic clock" if abs(made - time.monotonic_ns()) < 60e9 else "another clock"


@belief("Flight Recorder keeps the last 2,000 entries", "2000", FLIGHT)
def recorder_size() -> str:
    for _ in range(2300):
        dist.all_reduce(torch.ones(1))
    return str(len(_entries()))


@belief("entries of a destroyed group are kept", "kept", FLIGHT)
def recorder_after_destroy() -> str:
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    return "kept" if _pickled()["entries"] else "gone"


@belief("an entry of a broadcast names its input and its output", "one and one", FLIGHT)
def recorder_broadcast_sizes() -> str:
    dist.broadcast(torch.ones(3), 0)
    entry = _entries()[-1]
    told = len(entry["input_sizes"]), len(entry["output_sizes"])
    return "one and one" if told == (1, 1) else f"{told[0]} and {told[1]}"


@belief("a scatter's entry has inputs on the source only", "1 on others: 0", FLIGHT)
def recorder_scatter_sizes() -> str:
    tensors = [torch.ones(3), torch.ones(3)] if dist.get_rank() == 0 else None
    dist.scatter(torch.empty(3), tensors, 0)
    entry = _entries()[-1]
    count = len(entry["input_sizes"])
    expected = 2 if dist.get_rank() == 0 else 0
    return "1 on others: 0" if count == expected else f"{count} sizes"


@belief("an all-gather's entry has the size of the whole output", "[[8]]", FLIGHT)
def recorder_all_gather_sizes() -> str:
    dist.all_gather_into_tensor(torch.empty(8), torch.ones(4))
    return str(_entries()[-1]["output_sizes"])


@belief("the default group's name is the same in entries, pg_config and pg_status", "one", FLIGHT)
def recorder_group_names() -> str:
    dist.all_reduce(torch.ones(2))
    dump = _pickled()
    names = {entry["process_group"][0] for entry in dump["entries"]}
    config, status = set(dump.get("pg_config", {})), set(dump.get("pg_status", {}))
    return "one" if names == config == status else f"{names}, {config}, {status}".replace("'", "")


@belief("Flight Recorder's entries have stack frames by default", "there", FLIGHT)
def recorder_frames() -> str:
    dist.all_reduce(torch.ones(2))
    return "there" if _entries()[-1].get("frames") else "empty"


def _chrome(call: Any, **options: Any) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], **options) as recorded:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return dict(json.loads(path.read_text()))


@belief(
    "the exported trace has distributedInfo with rank and world size, even over gloo",
    "rank and world_size",
    "commprof/recordings/profiler_rank.py",
)
def profiler_distributed_info() -> str:
    told = _chrome(lambda: dist.all_reduce(torch.ones(2))).get("distributedInfo", {})
    return "rank and world_size" if {"rank", "world_size"} <= set(told) else f"{sorted(told)}"


@belief(
    "distributedInfo lists the process groups (pg_config), even over gloo",
    "listed",
    "commprof/recordings/profiler_groups.py",
)
def profiler_group_list() -> str:
    told = _chrome(lambda: dist.all_reduce(torch.ones(2))).get("distributedInfo", {})
    return "listed" if told.get("pg_config") else f"{sorted(told)}"


@belief("torch.profiler's trace has record_param_comms over gloo", "there", HOST)
def profiler_param_comms() -> str:
    events = _chrome(lambda: dist.all_reduce(torch.ones(2)))["traceEvents"]
    return "there" if any(e.get("name") == "record_param_comms" for e in events) else "absent"


@belief("gloo's range is a user_annotation in the exported trace", "user_annotation", EVENTS)
def profiler_category() -> str:
    events = _chrome(lambda: dist.all_reduce(torch.ones(2)))["traceEvents"]
    return str(next(e["cat"] for e in events if e.get("name") == "gloo:all_reduce"))


@belief("gloo's range and its operator are on two threads of the exported trace", "two", HOST)
def profiler_threads() -> str:
    events = _chrome(lambda: dist.all_reduce(torch.ones(2)))["traceEvents"]
    names = ("gloo:all_reduce", "c10d::allreduce_")
    threads = {name: {e["tid"] for e in events if e.get("name") == name} for name in names}
    return "two" if threads[names[0]].isdisjoint(threads[names[1]]) else "one"


@belief("a collective in flight when the profiler starts is left out", "left out", EVENTS)
def profiler_in_flight() -> str:
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(3)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    events = _chrome(work.wait)["traceEvents"]
    inside = any(e.get("name") == "gloo:all_reduce" for e in events)
    return "in" if inside else "left out"


@belief("a collective in flight when the profiler stops is left out", "left out", EVENTS)
def profiler_in_flight_at_end() -> str:
    works: list[Any] = []
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(3)
    trace = _chrome(lambda: works.append(dist.all_reduce(torch.ones(2), async_op=True)))
    works[0].wait()
    inside = [any(e.get("name") == "gloo:all_reduce" for e in trace["traceEvents"])]
    dist.broadcast_object_list(inside, 0)
    return "in" if inside[0] else "left out"


@belief(
    "with record_shapes, the sizes of an operator's lists of tensors are recorded",
    "[[2], [2]]",
    HOST,
)
def profiler_list_sizes() -> str:
    outputs, tensor = [torch.empty(2) for _ in range(2)], torch.ones(2)
    events = _chrome(lambda: dist.all_gather(outputs, tensor), record_shapes=True)["traceEvents"]
    event = next(e for e in events if e.get("name") == "c10d::allgather_")
    return str(event["args"]["Input Dims"][0])


@belief(
    "an event's exported time plus baseTimeNanoseconds is a time of the wall clock",
    "wall clock",
    EVENTS,
)
def profiler_clock() -> str:
    trace = _chrome(lambda: dist.all_reduce(torch.ones(2)))
    event = next(e for e in trace["traceEvents"] if e.get("name") == "gloo:all_reduce")
    base = trace.get("baseTimeNanoseconds")
    if base is None:
        return "no base"
    at = base + event["ts"] * 1e3
    return "wall clock" if abs(at - time.time_ns()) < 60e9 else "another clock"


@belief(
    "torch.profiler records the c10d operators of DDP's all-reduces during backward",
    "c10d::allreduce_",
    HOST,
)
def profiler_ddp() -> str:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    events = _chrome(lambda: model(torch.ones(2, 4)).sum().backward())["traceEvents"]
    names = {e.get("name") for e in events}
    return "c10d::allreduce_" if "c10d::allreduce_" in names else "no operator"


@belief("over gloo, an execution trace has record_param_comms with the group's name", "there")
def execution_trace_of_gloo() -> str:
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder:
        observer = ExecutionTraceObserver().register_callback(f"{folder}/trace.json")
        with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer):
            dist.all_reduce(torch.ones(4))
            time.sleep(0.1)
        nodes = json.loads(Path(f"{folder}/trace.json").read_text())["nodes"]
    return "there" if any(node["name"] == "record_param_comms" for node in nodes) else "absent"
