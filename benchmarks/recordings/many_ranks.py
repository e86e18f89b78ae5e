"""Writes recordings of many ranks: torch.profiler's traces, and the Flight Recorder's dumps."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support.builders.flight_dumps import dump, entry

_STEP_US, _BASE_NS = 100_000, 1_780_000_000_000_000_000
_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85029158912,
      "computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": %(rank)d, "world_size": %(ranks)d, "pg_count": 1,
 "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl",
 "pg_size": %(ranks)d, "ranks": %(listed)s}], "nccl_version": "2.28.9"},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": %(base_ns)d,
  "traceEvents": [
"""
_EVENT = """  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": %d, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      %s
    }
  },
"""
_FLOW = """  {
    "ph": "%s", "id": %d, "pid": %d, "tid": %d, "ts": %.3f,
    "cat": "ac2g", "name": "ac2g"%s
  },
"""
_OF_KERNEL = (
    '"External id": %d, "queued": 0, "device": 0, "context": 1, "stream": %d, "correlation": %d, '
    '"registers per thread": 96, "shared memory": 87568, "blocks per SM": 0.242424, '
    '"warps per SM": 4.848485, "grid": [32, 1, 1], "block": [640, 1, 1], '
    '"est. achieved occupancy %%": 0'
)
_OF_COLLECTIVE = (
    '"Collective name": "allreduce", "In msg nelems": %(elements)d, "Out msg nelems": %(elements)d,'
    ' "Group size": %(ranks)d, "dtype": "Float", "In split size": "[]", "Out split size": "[]", '
    '"Process Group Name": "0", "Process Group Description": "default_pg", '
    '"Process Group Ranks": "%(listed)s", "Seq": %(seq)d'
)
#: Stack of a call. Dumps have stacks unless TORCH_INCLUDE_STACK_TRACE=0.
_FRAMES = [
    {"name": name, "filename": file, "line": line}
    for name, file, line in (
        ("all_reduce", "/opt/venv/lib/python3.12/site-packages/torch/distributed/c10d.py", 3026),
        ("wrapper", "/opt/venv/lib/python3.12/site-packages/torch/distributed/logger.py", 83),
        ("sync_gradients", "/home/user/project/trainer/distributed.py", 214),
        ("training_step", "/home/user/project/trainer/loop.py", 131),
        ("run_epoch", "/home/user/project/trainer/loop.py", 77),
        ("main", "/home/user/project/train.py", 402),
        ("<module>", "/home/user/project/train.py", 466),
    )
]
_OPERATORS = ("aten::addmm", "aten::relu", "aten::native_layer_norm", "aten::mul", "aten::add")


@dataclass(frozen=True)
class TracedJob:
    """A job in which torch.profiler records every rank."""

    ranks: int
    steps: int
    #: Number of all-reduces in a step.
    all_reduces: int
    #: Number of operators before each all-reduce; each operator has a kernel.
    operators: int


def write_traces(folder: Path, job: TracedJob) -> int:
    """Writes a trace for each rank; returns the total size in bytes.

    The clocks of the ranks differ by milliseconds. The kernels of an all-reduce begin at different
    times and end together.
    """
    folder.mkdir()
    size_bytes = 0
    for rank in range(job.ranks):
        text = "".join(_trace(job, rank))
        size_bytes += (folder / f"rank{rank}.pt.trace.json").write_text(text)
    return size_bytes


def _trace(job: TracedJob, rank: int) -> Iterator[str]:
    draw = np.random.default_rng(rank)
    base_ns = _BASE_NS + int(draw.integers(-5_000_000, 5_000_000))
    listed = list(range(job.ranks))
    about = {"ranks": job.ranks, "listed": listed, "rank": rank, "base_ns": base_ns}
    # torch shortens long lists of ranks in an event's arguments, but not in the head of the file.
    told = str(listed) if job.ranks <= 32 else f"[{', '.join(map(str, listed[:30]))}, ...]"
    yield _HEAD % about
    number, each_us = 1000 + 7 * rank, _STEP_US / job.all_reduces  # ids may start at any number
    own_us = 0.6 * each_us / (job.operators + 1)
    for step in range(job.steps):
        begin_us = 1000.0 + _STEP_US * step
        yield _host("user_annotation", f"ProfilerStep#{step + 5}", begin_us, _STEP_US - 1, step)
        for call in range(job.all_reduces):
            first_us = begin_us + each_us * call
            for place in range(job.operators):
                number += 1
                at_us = first_us + own_us * place + (rank * 31 + number) % 89 / 1000
                name = _OPERATORS[place % len(_OPERATORS)]
                yield _host("cpu_op", name, at_us, 0.5 * own_us, number)
                kernel = f"void at::native::kernel<{name[6:]}, 4>(int, float*)"
                yield from _launched(kernel, at_us, at_us + 0.4 * own_us, 0.5 * own_us, number, 7)
            number += 1
            at_us = first_us + own_us * job.operators
            arrives_us = at_us + float(draw.uniform(0.1, 0.9)) * own_us
            args = _OF_COLLECTIVE % {
                **about,
                **{"elements": 1 << 20, "listed": told, "seq": step * job.all_reduces + call},
            }
            yield _host("cpu_op", "c10d::allreduce_", at_us, 0.05 * own_us, number)
            yield _host("cpu_op", "record_param_comms", at_us, 0.04 * own_us, number, args)
            yield _host("user_annotation", "nccl:all_reduce", at_us, 0.04 * own_us, number)
            yield from _launched(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                *(at_us, arrives_us, first_us + 0.95 * each_us - arrives_us, number, 20, args),
            )
    yield "".join(_EVENT % ("Trace", "PyTorch Profiler (0)", 1, 1, 0, 1, ""))[:-2]
    yield '\n  ],\n  "traceName": "trace.json"\n}\n'


def _host(
    category: str, name: str, at_us: float, length_us: float, number: int, args: str = ""
) -> str:
    about = f'"External id": {number},"Record function id": {number}, "Ev Idx": {number}'
    about = f"{about}, {args}" if args else about
    return _EVENT % (category, name, 4321, 4321, at_us, length_us, about)


def _launched(
    name: str,
    at_us: float,
    runs_us: float,
    length_us: float,
    number: int,
    stream: int,
    args: str = "",
) -> Iterator[str]:
    """Yields a kernel, its launch, and the arrow between the two."""
    about = _OF_KERNEL % (number, stream, number)
    about = f"{about}, {args}" if args else about
    launch = f'"External id": {number}, "cbid": 430, "correlation": {number}'
    yield _EVENT % ("cuda_runtime", "cudaLaunchKernelExC", 4321, 4321, at_us, 4.5, launch)
    yield _FLOW % ("s", number, 4321, 4321, at_us, "")
    yield _EVENT % ("kernel", name, 0, stream, runs_us, length_us, about)
    yield _FLOW % ("f", number, 0, stream, runs_us, ', "bp": "e"')


def write_dumps(folder: Path, ranks: int, entries: int) -> int:
    """Writes a Flight Recorder dump for each rank of a hanging job; returns the size in bytes.

    Collectives of all ranks and of groups of 8 ranks alternate. The job hangs because rank 1 has
    not issued the last collective.
    """
    folder.mkdir()
    size_bytes = 0
    groups = {str(1 + first // 8): [*range(first, first + 8)] for first in range(0, ranks, 8)}
    for rank in range(ranks):
        of_eight = str(1 + rank // 8)
        listed = {"0": [*range(ranks)], of_eight: groups[of_eight]}
        count = entries - (rank == 1)
        found = [
            entry(
                *(("0", of_eight)[number % 2], 1000 + number // 2),
                op=("all_reduce", "_all_gather_base")[number % 2],
                state="completed" if number < entries - 1 else "scheduled",
                count=4096 * (1 + number % 5),
                at=_BASE_NS + 1_000_000 * number + 1000 * (rank * 37 % 101),
            )
            | {"frames": list(_FRAMES), "thread_id": "23456244340032", "thread_name": "python3"}
            for number in range(count)
        ]
        data = pickle.dumps(dump(listed, *found), protocol=2)
        size_bytes += (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return size_bytes
