"""Time, traffic and error of each gradient bucket that a compressor sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.collectives.traffic import ring_bytes
from commprof.field_groups import FieldGroup
from commprof.text import counted, in_ms, plain_digits
from commprof.trace import columns
from commprof.trace.columns import Ints, compressions
from commprof.trace.lookup import row_containing, row_of
from commprof.trace.reader import Trace
from commprof.trace.schema import STAGES, Kind
from commprof.units import ns_to_ms

Floats = npt.NDArray[np.float64]

_FP32_BYTES = 4


@dataclass(frozen=True)
class BucketTimes(FieldGroup):
    """Median times of one bucket."""

    #: Time from when the bucket's gradients are ready until the compressor begins.
    queue_ms: float
    encode_ms: float
    #: Time of the transfer, including the wait for other ranks. This time overlaps the other stages
    #: if a bucket is sent in pieces.
    exchange_ms: float
    reduce_ms: float
    decode_ms: float
    #: Time from when the bucket's gradients are ready until their mean is ready.
    done_ms: float

    @property
    def work_ms(self) -> float:
        """Time in which the compressor's thread computed."""
        return self.encode_ms + self.reduce_ms + self.decode_ms


@dataclass(frozen=True)
class BucketBytes(FieldGroup):
    """Mean bytes per call of one bucket."""

    #: Size of a rank's encoded gradients.
    payload_bytes: float
    #: All bytes that the rank sends to other ranks.
    wire_bytes: float
    #: Bytes of a ring all-reduce in fp32, divided by ``wire_bytes``; NaN if the model is on one
    #: rank.
    ratio: float

    @property
    def plain_bytes(self) -> float:
        """Bytes that a ring all-reduce in fp32 sends; NaN if ``ratio`` is NaN."""
        return self.ratio * self.wire_bytes


@dataclass(frozen=True)
class BucketErrors(FieldGroup):
    """Mean errors of one bucket over the calls; NaN if no error was measured."""

    #: L2 norm of the error, divided by the norm of the encoder's input.
    relative_error: float
    #: Cosine of the angle between the encoder's input and the sent values.
    cosine: float
    #: Norm of the residual, divided by the norm of the gradient.
    residual_ratio: float
    #: Fraction of the values that became 0.
    zeroed: float
    #: Fraction of the values that were sent as less than half of their size, but not as 0: clipped
    #: values, and values that the factors of PowerSGD approximate poorly.
    saturated: float


@dataclass(frozen=True)
class CompressionRow:
    """One bucket of one compressor over all ranks and measured steps."""

    scheme: str
    #: Index of the bucket in its step.
    bucket: int
    #: Size of the bucket's fp32 gradients.
    gradient_bytes: int
    #: Number of calls of all ranks in the measured steps.
    calls: int
    times: BucketTimes
    sent: BucketBytes
    errors: BucketErrors
    #: Number of calls in which a rank's gradients were not finite.
    non_finite: int


@dataclass(frozen=True)
class _Calls:
    """Columns with one row per compressed bucket, of one rank or of all ranks."""

    scheme: npt.NDArray[np.str_]
    bucket: Ints
    size: Ints
    #: ``[time, call]``; the times have the order of ``BucketTimes``.
    times_ns: Ints
    payload: Ints
    wire: Ints
    #: Bytes of a ring all-reduce in fp32.
    ring: Floats
    quality: Floats
    non_finite: npt.NDArray[np.bool_]


def compression_rows(
    traces: Sequence[Trace], measured_steps: Ints, world_size: int
) -> tuple[CompressionRow, ...]:
    """Returns a row per compression scheme and bucket; empty without compressed buckets."""
    sending = [trace for trace in traces if len(columns.of_kind(trace.records, Kind.COMPRESSION))]
    if not sending:
        return ()
    parts = [_calls(trace, measured_steps, world_size) for trace in sending]
    calls = _Calls(
        **{
            name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
            for name in _Calls.__dataclass_fields__
        }
    )
    kinds = sorted(
        set(zip(calls.scheme.tolist(), calls.bucket.tolist(), calls.size.tolist(), strict=True))
    )
    return tuple(
        _row(calls, (calls.scheme == scheme) & (calls.bucket == bucket) & (calls.size == size))
        for scheme, bucket, size in kinds
    )


def compression_remarks(
    context: Mapping[str, Any],
    rows: Sequence[CompressionRow],
    world_size: int,
    recorded: int,
    steps: int,
) -> list[str]:
    """Returns remarks on each compressor: bytes saved, time spent, and non-finite gradients.

    Args:
        context: the run's context.
        rows: rows of the ranks that left a trace.
        world_size: number of ranks of the job.
        recorded: number of ranks that left a trace.
        steps: number of measured steps.
    """
    where = f"At {counted(world_size, 'rank')}"
    asked = context.get("hook")
    if not rows:
        return (
            [
                f"{where} --hook {asked} compressed nothing. Either the script made no DDP model, "
                "or the model's gradients are not fp32 tensors on the CPU, or the script "
                f"registered a communication hook of its own, which replaced {asked}."
            ]
            if asked and context.get("capture") != "python" and steps
            else []
        )
    found = []
    for scheme in sorted({row.scheme for row in rows}):
        mine = [row for row in rows if row.scheme == scheme]
        found += _about_scheme(scheme, mine, where, recorded * steps)
    return found


def _about_scheme(
    scheme: str, rows: Sequence[CompressionRow], where: str, rank_steps: int
) -> list[str]:
    per_step = [row.calls / rank_steps for row in rows]
    counted_rows = list(zip(rows, per_step, strict=True))
    sent = sum(row.sent.wire_bytes * n for row, n in counted_rows)
    plain = sum(row.sent.plain_bytes * n for row, n in counted_rows if row.sent.wire_bytes)
    work = sum(row.times.work_ms * n for row, n in counted_rows)
    found = []
    if sent:
        found.append(
            f"{where} {scheme} sent {plain_digits(sent / 1e6)} MB per step and rank instead of the "
            f"{plain_digits(plain / 1e6)} MB of an fp32 ring all-reduce ({plain / sent:.1f} times "
            f"fewer bytes). Encoding, reducing and decoding took {in_ms(work)} per step on the "
            "compressor's thread."
        )
    bad = sum(row.non_finite for row in rows)
    if bad:
        found.append(
            f"{where} {bad} of {sum(row.calls for row in rows)} buckets that {scheme} sent had "
            "non-finite gradients on some rank, and became NaN on all ranks."
        )
    return found


def _calls(trace: Trace, measured_steps: Ints, world_size: int) -> _Calls:
    done, buckets, steps = compressions(trace), columns.buckets(trace), columns.steps(trace)
    row = row_of(done.op_id, buckets.op_id)
    inside = row >= 0
    step = np.full(len(row), -1, dtype=np.int64)
    ready_ns = buckets.ready_ns[row[inside]]
    step[inside] = row_containing(steps.begin_ns, steps.end_ns, ready_ns)
    inside &= step >= 0
    inside[inside] &= np.isin(steps.index[step[inside]], measured_steps)
    row = row[inside]
    numel = np.maximum(1, buckets.bytes[row] // _FP32_BYTES)
    shares = [
        np.where(count[inside] < 0, np.nan, count[inside] / numel)
        for count in (done.zeroed, done.saturated)
    ]
    ratios = (done.relative_error, done.cosine, done.residual_ratio)
    ready = buckets.ready_ns[row]
    queue = np.maximum(0, done.begin_ns[inside] - ready)
    return _Calls(
        scheme=np.array(done.scheme, dtype=np.str_)[inside],
        bucket=buckets.index[row],
        size=buckets.bytes[row],
        times_ns=np.vstack([queue, done.stage_ns[:, inside], buckets.end_ns[row] - ready]),
        payload=done.payload_bytes[inside],
        wire=done.wire_bytes[inside],
        ring=ring_bytes(trace, buckets, world_size)[row],
        quality=np.vstack([*(ratio[inside] for ratio in ratios), *shares]),
        non_finite=done.non_finite[inside],
    )


def _row(calls: _Calls, chosen: npt.NDArray[np.bool_]) -> CompressionRow:
    first = int(np.flatnonzero(chosen)[0])
    times = np.median(calls.times_ns[:, chosen], axis=1).tolist()
    assert len(times) == len(STAGES) + 2
    wire, ring = float(calls.wire[chosen].mean()), float(calls.ring[chosen].mean())
    return CompressionRow(
        scheme=str(calls.scheme[first]),
        bucket=int(calls.bucket[first]),
        gradient_bytes=int(calls.size[first]),
        calls=int(chosen.sum()),
        times=BucketTimes(*map(ns_to_ms, times)),
        sent=BucketBytes(
            payload_bytes=float(calls.payload[chosen].mean()),
            wire_bytes=wire,
            ratio=ring / wire if wire > 0 and ring > 0 else math.nan,
        ),
        errors=BucketErrors(*(_mean_of_known(values[chosen]) for values in calls.quality)),
        non_finite=int(calls.non_finite[chosen].sum()),
    )


def _mean_of_known(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
