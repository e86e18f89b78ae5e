import ctypes
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import commprof
from commprof import _native

COLL_API, COLL, KERNEL_CH, CHANNEL_ENDED = 1 << 9, 1 << 1, 1 << 6, 22


class Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint64),
        ("parent", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("fields", ctypes.c_uint64 * 40),
    )


class Table(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("name", "init", "start", "stop", "state", "finalize")
    )


def text(value: str) -> int:
    TEXTS.append(ctypes.create_string_buffer(value.encode()))
    return ctypes.addressof(TEXTS[-1])


TEXTS: list = []
TABLE = Table.in_dll(ctypes.CDLL(_native.native.__file__), "ncclProfiler_v6")
POINTER, INT = ctypes.c_void_p, ctypes.c_int
INIT = ctypes.CFUNCTYPE(*(INT, POINTER, ctypes.c_uint64, POINTER, POINTER, INT, INT, INT, POINTER))(
    TABLE.init
)
START = ctypes.CFUNCTYPE(INT, POINTER, POINTER, POINTER)(TABLE.start)
STATE = ctypes.CFUNCTYPE(INT, POINTER, INT, POINTER)(TABLE.state)
CONTEXT, MASK = ctypes.c_void_p(), ctypes.c_int()


def start(kind: int, parent: int | None, *fields: int) -> int | None:
    event, handle = Event(kind, parent, 0), ctypes.c_void_p()
    event.fields[: len(fields)] = fields
    START(CONTEXT, ctypes.byref(handle), ctypes.byref(event))
    return handle.value


def reduce_inside_nccl() -> None:
    func, kind = text("AllReduce"), text("ncclFloat32")
    call = start(COLL_API, None, func, 1024, kind, 0, 0, 0)
    ring, simple = text("RING"), text("SIMPLE")
    operation = start(COLL, call, 0, func, 0, 0, 1024, 0, kind, 1, ring, simple)
    channel = start(KERNEL_CH, operation, 0, time.monotonic_ns())
    STATE(channel, CHANNEL_ENDED, ctypes.byref(ctypes.c_uint64(time.monotonic_ns() + 1000)))


def all_reduce(tensors: list, group: object, op: object, _: object, *rest: object) -> tuple:
    """Replaces the kernel of ``c10d::allreduce_``; gloo makes the Work."""
    reduce_inside_nccl()
    work = torch.ops.c10d.allreduce_coalesced_(tensors, group, op, *rest)
    return tensors, work


def main(directory: Path) -> None:
    INIT(ctypes.byref(CONTEXT), 0xABC, ctypes.byref(MASK), text("dp0"), 1, 1, 0, None)
    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", all_reduce, "CPU")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with commprof.profile(directory) as profiler:
        for _ in range(2):
            with profiler.phase("backward"):
                dist.all_reduce(torch.ones(1024))
            profiler.step()
        reduce_inside_nccl()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
