"""The table of compressed buckets of one trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.trace import schema
from commprof.trace.columns import Ints, ints, look_up, of_kind, once_per_trace
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind, Records


@dataclass(frozen=True)
class Compressions:
    """One row per bucket that a compressor has sent."""

    #: Of the bucket.
    op_id: Ints
    scheme: tuple[str, ...]
    #: This rank's gradients once encoded, and what it sent to others for the bucket.
    payload_bytes: Ints
    wire_bytes: Ints
    #: Some rank's gradients were not finite.
    non_finite: npt.NDArray[np.bool_]
    #: When the compressor's thread began with it.
    begin_ns: Ints
    #: [stages of ``schema.STAGES``, buckets]: time in the pieces of each stage.
    stage_ns: Ints
    #: NaN, and for counts -1, where they were not measured; see ``commprof.trace.schema``.
    relative_error: npt.NDArray[np.float64]
    cosine: npt.NDArray[np.float64]
    residual_ratio: npt.NDArray[np.float64]
    zeroed: Ints
    saturated: Ints

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self.op_id)


@once_per_trace
def compressions(trace: Trace) -> Compressions:
    """Buckets sent by a compressor; empty without one."""
    records = of_kind(trace.records, Kind.COMPRESSION)
    spans = of_kind(trace.records, Kind.SPAN)
    quality = of_kind(trace.records, Kind.QUALITY)
    op_id = ints(records["op_id"])
    row = look_up(op_id, ints(quality["op_id"]), np.arange(1, len(quality) + 1)) - 1

    def ratio(field: str) -> npt.NDArray[np.float64]:
        values = quality[field].astype(np.uint64).view(np.float64)
        return np.where(row >= 0, np.append(values, np.nan)[row], np.nan)

    def count(field: str) -> Ints:
        return np.append(ints(quality[field]), -1)[row]

    return Compressions(
        op_id=op_id,
        scheme=tuple(_name(value) for value in records["value"].tolist()),
        payload_bytes=ints(records["bytes_in"]),
        wire_bytes=ints(records["bytes_out"]),
        non_finite=(records["flags"] & schema.FLAG_NON_FINITE) != 0,
        begin_ns=look_up(op_id, ints(spans["op_id"]), ints(spans["timestamp_ns"])),
        stage_ns=_stage_ns(op_id, spans),
        relative_error=ratio("bytes_in"),
        cosine=ratio("bytes_out"),
        residual_ratio=ratio("value"),
        zeroed=count("seq"),
        saturated=count("aux"),
    )


def _stage_ns(op_id: Ints, spans: Records) -> Ints:
    """Per stage and bucket the sum of its spans, which do not overlap within a stage."""
    result = np.zeros((len(schema.STAGES), len(op_id)), dtype=np.int64)
    row = look_up(ints(spans["op_id"]), op_id, np.arange(1, len(op_id) + 1)) - 1
    known = (row >= 0) & (spans["aux"] < len(schema.STAGES))
    length = ints(spans["value"]) - ints(spans["timestamp_ns"])
    np.add.at(result, (ints(spans["aux"])[known], row[known]), length[known])
    return result


def _name(value: int) -> str:
    """The ASCII characters of a scheme's name; others, which nobody writes, as "?"."""
    text = value.to_bytes(8, "little").rstrip(b"\0").decode("ascii", "replace")
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
