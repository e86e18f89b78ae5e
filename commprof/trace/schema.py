"""The trace format in Python: layouts, codes and names.

The codes are made from the C++ headers (``codes.py``). The metadata of a trace hold the names of
its codes; new codes are only appended, so that the codes here are also valid for older traces.

Kinds of records, and the fields that each uses besides ``timestamp_ns`` (when it happened, or
began), ``kind`` and ``thread``; the other fields are 0:

    none             no record
    step             ``op_id`` step; ``aux`` 1 if that step ends here and the next begins, 0 if it
                     begins here and no step ends; ``seq`` who placed the boundary (STEP_*)
    phase            ``aux`` phase (of nested phases the outermost); ``value`` end; ``seq`` samples
                     of the batches that DataLoaders returned in it, or SAMPLES_UNKNOWN
    issue            an operation was handed to its process group: ``op_id``, ``op``, ``dtype``,
                     ``reduce_op``, ``group``, ``aux`` root or peer rank, ``bytes_in``,
                     ``bytes_out``, ``flags``; ``seq`` sequence number in the group, equal on all
                     ranks (of a point-to-point message: number between its two ranks, or NO_SEQ);
                     ``value`` number of the backward pass (autograd graph task) + 1: the pass that
                     issued the operation or, if a compressor's thread issued it, the pass of the
                     bucket being sent; 0 outside of backward passes
    end              the operation completed: ``op_id``, ``op``, ``flags``
    wait             a thread was blocked in ``Work.wait``, in a collective's future or, with
                     FLAG_IN_ISSUE, in the call that issued it: ``op_id``, ``op``, ``flags``,
                     ``value`` end. A wait below 1 us is recorded only if no other record has the
                     operation's end (gloo's point-to-point and reduce-scatter)
    finalize_begin   DDP begins to wait for its buckets: ``op_id`` graph task; ``value`` ns of CPU
                     time that the thread has used; ``bytes_in``, if the flag run_delay_read is set,
                     ns for which the thread has been ready to run without a core; with
                     FLAG_MANUAL_FINALIZE, the script's own call of ``finalize_backward()``
    finalize_end     DDP has all of its buckets: the same fields as finalize_begin
    bucket           a gradient bucket reached the DDP hook: ``op_id``, ``group``, ``seq`` number of
                     buckets the hook had before, ``dtype``, ``aux`` index, ``bytes_in`` size,
                     ``bytes_out`` hash of its parameters' shapes, ``flags``, ``value`` when
                     the bucket's exchange was launched
    bucket_end       the hook's future completed: ``op_id``, ``aux`` index, ``flags``
    clock            this clock was compared with rank 0's: ``value`` rank 0's clock less this one
                     in ns, signed; ``bytes_in`` bound on its error; ``bytes_out`` round trip
    stack            who issued an operation: ``op_id``, ``value`` number of the stack
    device_ready     the issuing stream came to the operation: ``op_id``, ``op``, ``bytes_in`` time
                     at which the host had issued the operation
    device_wait      a stream waited for an operation, or ran it itself: ``op_id``, ``op``,
                     ``value`` end, ``bytes_in`` time at which the host issued the wait or the
                     operation, ``bytes_out`` stream, ``seq`` device
    device_finalize  a stream passed DDP's finalisation: ``op_id`` graph task, ``value`` end,
                     ``bytes_in`` time at which the host ended the finalisation, ``bytes_out``
                     stream, ``seq`` device
    device_phase     a stream passed a phase: ``aux`` phase, ``value`` end, ``bytes_in`` begin of
                     the phase on the host, ``bytes_out`` stream, ``seq`` device
    device_step      a stream came to a step boundary: ``op_id``, ``aux`` and ``seq`` as in a record
                     of kind step, ``bytes_in`` time of the boundary on the host
    device_clock     a device's clock was compared with the host's: ``aux`` device, ``value`` its
                     time in ns, ``bytes_in`` bound on the error of ``timestamp_ns``,
                     ``bytes_out`` largest error bound of times converted since the previous record
    span             a piece of a compressor thread's work on a bucket: ``op_id`` of the bucket,
                     ``aux`` stage, ``value`` end
    compression      a compressed bucket is done: ``op_id`` of the bucket, ``aux`` index,
                     ``bytes_in`` size of this rank's encoded gradients, ``bytes_out`` bytes sent,
                     ``flags``, ``value`` the first 8 characters of the scheme's name, the first in
                     the lowest byte
    quality          errors of a bucket's compression, if measured: ``op_id`` of the bucket,
                     ``seq`` number of values that became 0, ``aux`` number of values cut to the
                     largest that can be sent; three doubles, stored as their bits: ``bytes_in``
                     relative L2 error, ``bytes_out`` cosine, ``value`` norm of the residual divided
                     by the gradient's
    pause            no thread of the process ran, for 1 ms at least: ``value`` end
    run_delay        the thread was ready to run and had no core for ``bytes_in`` ns, according to
                     the kernel's counter, read at the ends of its phases: ``value`` end,
                     ``bytes_out`` CPU time of the process's other threads, inexact by the
                     time between two clock readings; no record if both fields are 0
    host_counts      the kernel's counts for a thread that lacked a core or had many page faults:
                     ``value`` end, ``aux`` involuntary switches, ``seq`` minor and ``op_id`` major
                     page faults; ``bytes_in``, if the thread lacked a core, ns for which its cgroup
                     was throttled since this was last read; ``bytes_out``, if it had major faults,
                     ns for which tasks of the host were stalled for memory

    nccl_op          NCCL carried out ``op_id``, or a part of it, in a kernel: ``op`` in NCCL's
                     words; ``value`` end, equal to the begin if the times are not known;
                     ``group`` number of the communicator; ``seq`` number in the communicator,
                     counted separately for calls and replays; ``aux`` number of the CUDA graph's
                     replay from 1, 0 for a call, NO_REPLAY if not known; ``thread`` root or peer
                     rank; ``dtype`` channels; ``reduce_op`` 16 * algorithm + protocol (NCCL_*);
                     ``bytes_in`` size as in NCCL's call; ``bytes_out`` ns from the first to the
                     last channel's begin (upper 32 bits) and end (lower 32 bits); ``flags``
                     device_time if the times are the GPU's and not those at which NCCL saw them
    nccl_send        one channel of an operation was sent to a rank by NCCL's proxy: ``op_id``, 0 if
                     it belongs to another process; ``group`` communicator, ``aux`` the rank,
                     ``dtype`` channel, ``value`` end; ``bytes_in`` ns in which it waited for the
                     GPU, and ``bytes_out`` for the peer to offer a buffer; in the rest the network
                     was sending; ``seq`` * 2**32 + ``thread`` size in bytes
    nccl_recv        the same for a receive: ``value`` end; ``bytes_out`` ns in which data were
                     flushed to the GPU's memory; in the rest data had not arrived

Times in records of the kinds that begin with ``device_``, and in an end with the flag device_time,
are times of a device, converted to ``CLOCK_MONOTONIC``, unless stated otherwise. Any thread may
write such a record after the device has passed the event; ``thread`` is the one that put the event
on the stream.
"""

from __future__ import annotations

import struct
from typing import Final

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

#: Kinds whose ``value`` is a time on the same clock as ``timestamp_ns``.
TIME_IN_VALUE: Final = (
    Kind.PHASE,
    Kind.WAIT,
    Kind.BUCKET,
    Kind.DEVICE_WAIT,
    Kind.DEVICE_FINALIZE,
    Kind.DEVICE_PHASE,
    Kind.SPAN,
    Kind.PAUSE,
    Kind.RUN_DELAY,
    Kind.HOST_COUNTS,
    Kind.NCCL_OP,
    Kind.NCCL_SEND,
    Kind.NCCL_RECV,
)


def comes_before(seq: int, other: int) -> bool:
    """True if a sequence number of a group precedes another; both count modulo 2**32."""
    return seq != other and (other - seq) % 2**32 < 2**31


#: Codes of operations with a root, of messages, and of both together. In these operations a rank
#: may be done before another rank has arrived.
ROOTED: Final = tuple(
    code for code, awaits in enumerate(codes.AWAITS) if awaits in ("tree", "ring", "root")
)
POINT_TO_POINT: Final = tuple(code for code, awaits in enumerate(codes.AWAITS) if awaits == "peer")
SOME_WAIT: Final = (*ROOTED, *POINT_TO_POINT)

KINDS: Final = tuple(kind.name.lower() for kind in Kind)
PHASES: Final = tuple(phase.name.lower() for phase in Phase)
#: Names of the values of ``reduce_op``, which are the values of ``c10d::ReduceOp::RedOpType``.
REDUCE_OPS: Final = (
    *("sum", "avg", "product", "min", "max"),
    *("band", "bor", "bxor", "premul_sum"),
)
#: Index of a replay if it is not known.
NO_REPLAY: Final = 0xFFFFFFFF
#: Value of ``reduce_op`` in recordings that do not name the reduction.
UNKNOWN_REDUCE_OP: Final = 255


def op_name(code: int) -> str:
    """Returns an operation's name; for an unknown code such as 99, "operation 99".

    Newer recorders may write unknown codes, and damaged traces may hold them.
    """
    return codes.OPS[code] if code < len(codes.OPS) else f"operation {code}"


#: One record: a cache line of 64 bytes, little-endian.
RECORD_DTYPE: Final = np.dtype(list(codes.RECORD_FIELDS))
assert RECORD_DTYPE.itemsize == 64

#: An array of RECORD_DTYPE.
Records = npt.NDArray[np.void]
