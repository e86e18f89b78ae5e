"""Defines the trace format in Python: layouts, codes and names.

The codes in ``codes.py`` are made from the C++ headers. New codes are only appended, so the codes
here are valid for older traces too. ``csrc/core/record_fields.inc`` explains the kinds of records
and their fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.trace import codes
from commprof.trace.codes import *  # noqa: F403 - the codes are part of the schema
from commprof.trace.codes import Kind, Phase

RING_MAGIC: Final = b"CPRING01"

#: magic, version, header_bytes, session, reserved
FILE_HEADER: Final = struct.Struct("<8sIIQQ")
#: magic, block type, payload_bytes, crc32 of the payload, reserved
BLOCK_HEADER: Final = struct.Struct("<IIQII")
#: magic, record_bytes, pid, capacity, session. After these come head, tail and dropped, each on its
#: own cache line
RING_HEADER: Final = struct.Struct("<8sIIQQ")
RING_HEADER_BYTES: Final = 256
RING_HEAD_OFFSET: Final = 64
RING_TAIL_OFFSET: Final = 128
RING_DROPPED_OFFSET: Final = 192


#: Number of bytes of an element, by the name of its type in torch (``c10::ScalarType``).
ELEMENT_BYTES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}


class Field(NamedTuple):
    """A field of one kind of record, from the table in ``csrc/core/record_fields.inc``."""

    #: Name of the member of ``RECORD_DTYPE`` that holds the field.
    member: str
    #: "moment", "operation", "pass", "pass_plus_one", "real" or "number"; the comment at the
    #: beginning of ``record_fields.inc`` explains them.
    content: str


#: For each kind of record: its fields besides ``timestamp_ns``, ``kind`` and ``thread``, by name.
FIELDS: Final[Mapping[Kind, Mapping[str, Field]]] = {
    kind: {
        name: Field(member, content)
        for of_kind, name, member, content in codes.RECORD_FIELDS
        if of_kind == kind.name.lower()
    }
    for kind in Kind
}


def members_with(*contents: str) -> frozenset[tuple[int, str]]:
    """Returns kind and member of each field whose content is one of ``contents``."""
    return frozenset(
        (int(kind), field.member)
        for kind, named in FIELDS.items()
        for field in named.values()
        if field.content in contents
    )


#: Kinds and members that hold a time on the same clock as ``timestamp_ns``.
MOMENTS: Final = members_with("moment")


def comes_before(seq: int, other: int) -> bool:
    """True if a sequence number of a group precedes another; both count modulo 2**32."""
    return seq != other and (other - seq) % 2**32 < 2**31


#: Three tuples of operation codes: operations with a root, point-to-point operations, and both
#: together. In these operations, a rank may be done before some other rank has arrived.
ROOTED: Final = tuple(
    code for code, awaits in enumerate(codes.AWAITS) if awaits in ("tree", "ring", "root")
)
POINT_TO_POINT: Final = tuple(code for code, awaits in enumerate(codes.AWAITS) if awaits == "peer")
SOME_WAIT: Final = (*ROOTED, *POINT_TO_POINT)

KINDS: Final = tuple(kind.name.lower() for kind in Kind)
PHASES: Final = tuple(phase.name.lower() for phase in Phase)
#: Names of the values of ``reduce_op``, in the order of ``c10d::ReduceOp::RedOpType``.
REDUCE_OPS: Final = (
    *("sum", "avg", "product", "min", "max"),
    *("band", "bor", "bxor", "premul_sum"),
)
#: Value for an unknown index of a CUDA graph's replay.
NO_REPLAY: Final = 0xFFFFFFFF
#: Value of ``reduce_op`` in recordings that do not name the reduction.
UNKNOWN_REDUCE_OP: Final = 255


def op_name(code: int) -> str:
    """Returns an operation's name; for an unknown code such as 99, "operation 99".

    Newer recorders may write unknown codes, and damaged traces may hold them.
    """
    return codes.OPS[code] if code < len(codes.OPS) else f"operation {code}"


#: One record: a cache line of 64 bytes, little-endian.
RECORD_DTYPE: Final = np.dtype(list(codes.RECORD_MEMBERS))
assert RECORD_DTYPE.itemsize == 64

#: An array of RECORD_DTYPE.
Records = npt.NDArray[np.void]
