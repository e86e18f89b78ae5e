"""The trace format as Python sees it: layouts, codes and names.

The same tables stand in ``csrc/core/record.h``; a test compares the two. A trace carries
the tables it was written with, and the reader uses those.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

TRACE_MAGIC: Final = b"COMMPROF"
TRACE_VERSION: Final = 1
RING_MAGIC: Final = b"CPRING01"
BLOCK_MAGIC: Final = 0x424B5043

#: magic, version, header_bytes, session, reserved
FILE_HEADER: Final = struct.Struct("<8sIIQQ")
#: magic, block type, payload_bytes, crc32 of the payload, reserved
BLOCK_HEADER: Final = struct.Struct("<IIQII")
#: magic, record_bytes, pid, capacity, session; then head, tail, dropped on lines of their own
RING_HEADER: Final = struct.Struct("<8sIIQQ")
RING_HEADER_BYTES: Final = 256
RING_HEAD_OFFSET: Final = 64
RING_TAIL_OFFSET: Final = 128
RING_DROPPED_OFFSET: Final = 192


class BlockType(IntEnum):
    """What a block of the trace file holds."""

    METADATA = 1
    RECORDS = 2
    GROUP = 3
    END = 4
    SALVAGED = 5
    STACK = 6
    SUMMARY = 7
    SPARE = 8


class Kind(IntEnum):
    """What a record says; field meanings per kind are in ``docs/trace_format.md``."""

    NONE = 0
    STEP = 1
    PHASE = 2
    ISSUE = 3
    END = 4
    WAIT = 5
    FINALIZE_BEGIN = 6
    FINALIZE_END = 7
    BUCKET = 8
    BUCKET_END = 9
    CLOCK = 10
    STACK = 11
    DEVICE_READY = 12
    DEVICE_WAIT = 13
    DEVICE_FINALIZE = 14
    DEVICE_PHASE = 15
    DEVICE_STEP = 16
    DEVICE_CLOCK = 17
    SPAN = 18
    COMPRESSION = 19
    QUALITY = 20
    PAUSE = 21


#: Kinds whose ``value`` is a time, as ``timestamp_ns`` is.
TIME_IN_VALUE: Final = (
    Kind.PHASE,
    Kind.WAIT,
    Kind.BUCKET,
    Kind.DEVICE_WAIT,
    Kind.DEVICE_FINALIZE,
    Kind.DEVICE_PHASE,
    Kind.SPAN,
    Kind.PAUSE,
)


class Phase(IntEnum):
    """Phases of a step that the training thread declares."""

    OTHER = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4


FLAG_FAILED: Final = 1
FLAG_DEVICE_ASYNC: Final = 2
FLAG_LAST_BUCKET: Final = 4
FLAG_RUN_DELAY_READ: Final = 8
FLAG_DEVICE_TIME: Final = 16
FLAG_NON_FINITE: Final = 32
FLAG_SPARSE: Final = 64

#: Stages of a compressed bucket, by the code in ``aux`` of a span.
STAGES: Final = ("encode", "exchange", "reduce", "decode")

#: Who placed a step boundary: the script, an optimizer's update, or one that GradScaler skipped.
STEP_DECLARED: Final = 0
STEP_UPDATED: Final = 1
STEP_SKIPPED: Final = 2

#: In place of the samples read in a phase, where they cannot be counted.
SAMPLES_UNKNOWN: Final = 2**32 - 1
#: How much capture keeps, by code.
MODES: Final = ("off", "always-on", "full")
#: ``seq`` of a message that cannot be told from others.
NO_SEQ: Final = 0xFFFFFFFF


def comes_before(seq: int, other: int) -> bool:
    """Whether one sequence number of a group stands before another; both count modulo 2**32."""
    return seq != other and (other - seq) % 2**32 < 2**31


KINDS: Final = tuple(kind.name.lower() for kind in Kind)
PHASES: Final = tuple(phase.name.lower() for phase in Phase)
OPS: Final = (
    "other",
    "all_reduce",
    "all_reduce_coalesced",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "recv_any_source",
)


def op_name(code: int) -> str:
    """Of an operation; a newer recorder, or a damaged trace, may have codes that are not known."""
    return OPS[code] if code < len(OPS) else f"operation {code}"


#: One record: a cache line of 64 bytes, little-endian.
RECORD_DTYPE: Final = np.dtype(
    [
        ("timestamp_ns", "<u8"),
        ("op_id", "<u8"),
        ("kind", "u1"),
        ("op", "u1"),
        ("dtype", "u1"),
        ("reduce_op", "u1"),
        ("group", "<u4"),
        ("thread", "<u4"),
        ("aux", "<u4"),
        ("bytes_in", "<u8"),
        ("bytes_out", "<u8"),
        ("seq", "<u4"),
        ("flags", "<u4"),
        ("value", "<u8"),
    ]
)
assert RECORD_DTYPE.itemsize == 64

#: An array of RECORD_DTYPE.
Records = npt.NDArray[np.void]
