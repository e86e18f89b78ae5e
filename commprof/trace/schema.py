"""The trace format as Python sees it: layouts, codes and names.

The codes are made from the C++ headers (``codes.py``). A trace carries the tables it was
written with, and the reader uses those.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.trace import codes
from commprof.trace.codes import *  # noqa: F403 - they are part of the schema
from commprof.trace.codes import Kind, Phase

RING_MAGIC: Final = b"CPRING01"

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


def comes_before(seq: int, other: int) -> bool:
    """Whether one sequence number of a group stands before another; both count modulo 2**32."""
    return seq != other and (other - seq) % 2**32 < 2**31


KINDS: Final = tuple(kind.name.lower() for kind in Kind)
PHASES: Final = tuple(phase.name.lower() for phase in Phase)


def op_name(code: int) -> str:
    """Of an operation; a newer recorder, or a damaged trace, may have codes that are not known."""
    return codes.OPS[code] if code < len(codes.OPS) else f"operation {code}"


#: One record: a cache line of 64 bytes, little-endian.
RECORD_DTYPE: Final = np.dtype(list(codes.RECORD_FIELDS))
assert RECORD_DTYPE.itemsize == 64

#: An array of RECORD_DTYPE.
Records = npt.NDArray[np.void]
