from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from commprof.trace import columns, schema
from commprof.trace.columns import of_kind
from commprof.trace.lookup import look_up
from commprof.trace.nccl import nccl_ops
from commprof.trace.reader import Trace, read_trace

#: For each operation of NCCL: c10d's name, and input and output as multiples of the call's count.
OPS = {
    "AllReduce": ("all_reduce", 1, 1),
    "AllGather": ("all_gather_into_tensor", 1, 2),
    "ReduceScatter": ("reduce_scatter_tensor", 2, 1),
    "Broadcast": ("broadcast", 1, 1),
    "Reduce": ("reduce", 1, 1),
    "Send": ("send", 1, 0),
    "Recv": ("recv", 0, 1),
}
DATATYPES = {
    "ncclInt8": "Char",
    "ncclFloat16": "Half",
    "ncclBfloat16": "BFloat16",
    "ncclFloat32": "Float",
    "ncclFloat64": "Double",
}


@dataclass(frozen=True, order=True)
class Operation:
    group: str
    op: str
    seq: int
    peer: int
    dtype: str
    bytes_in: int
    bytes_out: int


def of_unknown_size(operation: Operation) -> Operation:
    """Sets the bytes that depend on the number of ranks to 0."""
    if operation.op == "all_gather_into_tensor":
        return replace(operation, bytes_out=0)
    return replace(operation, bytes_in=0) if "scatter" in operation.op else operation


@dataclass(frozen=True)
class Times:
    """A time of 0 ns means that the time is not known."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Played:
    """``told`` has the times at which the plugin heard of the operation's begin and end."""

    ran: Times
    told: Times
    #: Number that capture gave the operation which made the call; 0 means no such operation.
    op_id: int = 0
    #: Number of the graph's replay; 0 means a call outside of replays.
    replay: int = 0
    channels: int = 0


@dataclass(frozen=True)
class NcclOp:
    op_id: int
    replay: int
    channels: int
    tuning: tuple[str, str]
    size_bytes: int
    times: Times
    spread_ns: int
    on_gpu: bool


def play(
    player: Path, *arguments: object, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a player without the variables of this process, which may set another rank."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "TMPDIR")}
    return subprocess.run(
        [player, *map(str, arguments)],
        env={"COMMPROF_NCCL": "kernels", **kept, **environment},
        capture_output=True,
        text=True,
        check=check,
        timeout=120,
    )


def played(text: str) -> dict[Operation, Played]:
    result = {}
    for line in text.splitlines():
        group, func, seq, peer, count, datatype, *times = line.split("\t")
        begin_ns, end_ns, begin_told_ns, end_told_ns, *rest = map(int, times)
        op, into, out = OPS[func]
        dtype = DATATYPES[datatype]
        size = int(count) * schema.ELEMENT_BYTES[dtype]
        operation = Operation(group, op, int(seq), int(peer), dtype, into * size, out * size)
        assert operation not in result, operation
        ran, told = Times(begin_ns, end_ns), Times(begin_told_ns, end_told_ns)
        result[operation] = Played(ran, told, *rest)
    return result


def recorded(path: Path) -> tuple[Trace, dict[Operation, Times]]:
    trace = read_trace(path)
    return trace, dict(_rows(trace))


def _rows(trace: Trace) -> Iterator[tuple[Operation, Times]]:
    table = columns.collectives(trace)
    ready = of_kind(trace.records, schema.Kind.DEVICE_READY)
    begin_ns = look_up(
        table.op_id,
        ready["op_id"].astype(np.int64),
        ready["timestamp_ns"].astype(np.int64),
    )
    for i in range(len(table)):
        operation = Operation(
            trace.groups[int(table.group[i])].name,
            schema.op_name(int(table.op[i])),
            int(table.seq[i]),
            int(table.peer[i]),
            trace.metadata["dtypes"][int(table.dtype[i])],
            int(table.bytes_in[i]),
            int(table.bytes_out[i]),
        )
        yield operation, Times(int(begin_ns[i]), int(table.end_ns[i]))


def launched(path: Path) -> tuple[Trace, dict[tuple[str, str, int, int], NcclOp]]:
    trace = read_trace(path)
    table = nccl_ops(trace)
    result = {}
    for i in range(len(table)):
        replays = " replays" if table.replay[i] else ""
        key = (
            trace.communicators[int(table.communicator[i])].hash + replays,
            schema.op_name(int(table.op[i])),
            int(table.peer[i]),
            int(table.seq[i]),
        )
        assert key not in result, key
        result[key] = NcclOp(
            op_id=int(table.op_id[i]),
            replay=int(table.replay[i]),
            channels=int(table.channels[i]),
            tuning=(
                schema.NCCL_ALGORITHMS[table.algorithm[i]],
                schema.NCCL_PROTOCOLS[table.protocol[i]],
            ),
            size_bytes=int(table.size_bytes[i]),
            times=Times(int(table.begin_ns[i]), int(table.end_ns[i])),
            spread_ns=int(max(table.begin_spread_ns[i], table.end_spread_ns[i])),
            on_gpu=bool(table.on_gpu[i]),
        )
    return trace, result


def differences(
    expected: dict[Operation, Played], found: dict[Operation, Times], on_gpu: bool
) -> list[str]:
    """A recorded time must lie between the event and the moment at which the plugin heard of it."""
    lines = [f"lost: {operation}" for operation in sorted(expected.keys() - found.keys())]
    lines += [f"added: {operation}" for operation in sorted(found.keys() - expected.keys())]
    for operation in sorted(expected.keys() & found.keys()):
        truth, times = expected[operation], found[operation]
        if truth.ran.end_ns == 0:
            right = times == Times(0, 0) or not on_gpu
        else:
            right = (
                truth.ran.begin_ns <= times.begin_ns <= truth.told.begin_ns
                and truth.ran.end_ns <= times.end_ns <= truth.told.end_ns
            )
        if not right:
            lines.append(f"times of {operation}: {times}, not {truth}")
    return lines


def logged(path: Path) -> list[str]:
    """If two threads may have logged a block, sorts its lines and removes the events' numbers."""
    return sorted(
        block if block.startswith(("dp", "unnamed")) else "\n".join(sorted(_without_numbers(block)))
        for block in path.read_text().split("\f")[1:]
    )


def _without_numbers(block: str) -> list[str]:
    return re.sub(r"^\d+ |\b(parent|of) \d+", r"\1", block, flags=re.MULTILINE).splitlines()
