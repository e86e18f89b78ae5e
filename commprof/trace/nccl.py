"""Tables of the records of NCCL's profiler plugin (``csrc/nccl_plugin``)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from commprof.field_groups import FieldGroup
from commprof.trace import schema
from commprof.trace.columns import DURATION, MOMENT, Ints, ints, of_kind, once_per_trace
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class NcclOps(FieldGroup):
    """One row per operation that NCCL launched, in order of ``begin_ns``."""

    #: Id of the collective in ``columns.collectives``. The id is not in that table if the call did
    #: not come through c10d.
    op_id: Ints
    op: Ints
    #: Key of ``Trace.communicators``.
    communicator: Ints
    #: Sequence number in the communicator; ``schema.NO_SEQ`` if not known. Calls and replays are
    #: numbered separately. Messages are numbered for each pair of ranks.
    seq: Ints
    #: Number of the CUDA graph's replay, from 1; 0 without one; ``schema.NO_REPLAY`` if unknown.
    replay: Ints
    #: Root or peer rank.
    peer: Ints
    channels: Ints
    #: Indices of ``schema.NCCL_ALGORITHMS`` and ``NCCL_PROTOCOLS``.
    algorithm: Ints
    protocol: Ints
    size_bytes: Ints
    begin_ns: Ints = field(metadata=MOMENT)
    #: If the times are not known, ``begin_ns`` and ``end_ns`` are both the time of issue.
    end_ns: Ints = field(metadata=MOMENT)
    #: True if the GPU measured the times; otherwise NCCL measured them on the host.
    on_gpu: Bools
    #: Time from the first channel's begin to the last channel's begin.
    begin_spread_ns: Ints = field(metadata=DURATION)
    #: Time from the first channel's end to the last channel's end.
    end_spread_ns: Ints = field(metadata=DURATION)

    def __len__(self) -> int:
        """Number of operations."""
        return len(self.op_id)

    @property
    def timed(self) -> Bools:
        """True for operations whose times are known."""
        return self.end_ns > self.begin_ns


@once_per_trace
def nccl_ops(trace: Trace) -> NcclOps:
    """Returns the operations of NCCL; empty without the plugin."""
    records = of_kind(trace.records, Kind.NCCL_OP)
    return NcclOps(
        op_id=ints(records["op_id"]),
        op=ints(records["op"]),
        communicator=ints(records["group"]),
        seq=ints(records["seq"]),
        replay=ints(records["aux"]),
        peer=ints(records["thread"]),
        channels=ints(records["dtype"]),
        algorithm=ints(records["reduce_op"] >> 4),
        protocol=ints(records["reduce_op"] & 15),
        size_bytes=ints(records["bytes_in"]),
        begin_ns=ints(records["timestamp_ns"]),
        end_ns=ints(records["value"]),
        on_gpu=(records["flags"] & schema.FLAG_DEVICE_TIME) != 0,
        begin_spread_ns=ints(records["bytes_out"] >> np.uint64(32)),
        end_spread_ns=ints(records["bytes_out"] & np.uint64(0xFFFFFFFF)),
    )


@dataclass(frozen=True)
class Transfers:
    """One row per channel on which NCCL's proxy moved an operation's data to or from a rank."""

    #: As in ``NcclOps``; 0 if the operation is not known.
    op_id: Ints
    #: 0 if the operation belongs to another process.
    communicator: Ints
    peer: Ints
    channel: Ints
    size_bytes: Ints
    begin_ns: Ints = field(metadata=MOMENT)
    #: Time in which a buffer waited for the GPU to fill or empty the buffer.
    gpu_ns: Ints = field(metadata=DURATION)
    #: For sends: time in which the peer had no free buffer. For receives: time in which data were
    #: flushed to the GPU's memory.
    peer_or_flush_ns: Ints = field(metadata=DURATION)
    #: For sends: time in which the network was sending. For receives: time of waiting for data.
    transfer_ns: Ints = field(metadata=DURATION)

    def __len__(self) -> int:
        """Number of transfers."""
        return len(self.op_id)


@once_per_trace
def sends(trace: Trace) -> Transfers:
    """Returns the transfers to other ranks; empty if not requested."""
    return _transfers(trace, Kind.NCCL_SEND)


@once_per_trace
def receives(trace: Trace) -> Transfers:
    """Returns the transfers from other ranks; empty if not requested."""
    return _transfers(trace, Kind.NCCL_RECV)


def _transfers(trace: Trace, kind: Kind) -> Transfers:
    records = of_kind(trace.records, kind)
    gpu_ns, peer_ns = ints(records["bytes_in"]), ints(records["bytes_out"])
    begin_ns = ints(records["timestamp_ns"])
    return Transfers(
        op_id=ints(records["op_id"]),
        communicator=ints(records["group"]),
        peer=ints(records["aux"]),
        channel=ints(records["dtype"]),
        size_bytes=ints(records["seq"]) * 2**32 + ints(records["thread"]),
        begin_ns=begin_ns,
        gpu_ns=gpu_ns,
        peer_or_flush_ns=peer_ns,
        transfer_ns=ints(records["value"]) - begin_ns - gpu_ns - peer_ns,
    )
