"""What a compressor costs per bucket: processor time by stage, bytes on the wire, fixed overhead.

Its one thread takes bucket after bucket. With C the processor time of a bucket, W its time on the
wire and p the pieces in which it goes, C and W run beside each other but for the first piece:

    time = overhead + max(C, W) + min(C, W) / p
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.compression import CompressionRow
from commprof.errors import CommprofError
from commprof.predict.cost_model import CostCurve
from commprof.predict.exchange import exchange
from commprof.predict.regression import Line, robust_line
from commprof.predict.schedule import Schedule

TWO_PHASE, GATHER, RING = "two_phase", "gather", "ring"
#: How each scheme's payload travels, see docs/compressors.md.
EXCHANGES = {
    **dict.fromkeys(("fp16", "bf16", "int8", "int4"), TWO_PHASE),
    **dict.fromkeys(("topk", "sign"), GATHER),
    **dict.fromkeys(("none", "randomk", "powersgd"), RING),
}
#: Encoded bytes of a rank's share that go as one piece (``compress::Options::piece_bytes``).
_PIECE_BYTES = 1 << 20
#: Values tried, from 10 µs to 100 ms: 12 % apart.
_OVERHEADS = 81


@dataclass(frozen=True)
class HookCost:
    """Fitted on the buckets of one recorded run. Lines are (seconds, seconds per byte of fp32)."""

    label: str
    exchange: str
    encode: Line
    reduce: Line
    decode: Line
    #: Encoded bytes over fp32 bytes.
    payload_ratio: float
    #: Per bucket: threads that wake, headers, messages.
    overhead_s: float
    #: Of the recorded run.
    ranks: int
    ranks_per_core: float
    bucket_bytes: tuple[float, float]

    def time_s(
        self, size_bytes: float, ranks: int, curve: CostCurve, crowding: float = 1.0
    ) -> float:
        """From the compressor's begin with a bucket to its mean.

        Args:
            size_bytes: of the fp32 gradients.
            ranks: that exchange it.
            curve: of all-reduce on their link.
            crowding: how much longer its work takes than in the recorded run, for want of cores.
        """
        work_s = self.work_s(size_bytes, ranks) * crowding
        wire_s = self.wire_s(size_bytes, ranks, curve)
        overlapped = min(work_s, wire_s) / self._pieces(size_bytes, ranks)
        return self.overhead_s + max(work_s, wire_s) + overlapped

    def work_s(self, size_bytes: float, ranks: int) -> float:
        """Processor time."""
        encode, reduce, decode = (
            fixed + per_byte * size_bytes
            for fixed, per_byte in (self.encode, self.reduce, self.decode)
        )
        # After a gather everybody decodes and adds up what all others sent.
        growth = ranks / self.ranks if self.exchange == GATHER else 1.0
        return encode + (reduce + decode) * growth

    def wire_s(self, size_bytes: float, ranks: int, curve: CostCurve) -> float:
        """Time on the wire without the messages' latency, which the overhead holds."""
        if self.exchange == RING:
            return curve.time_s(self.payload_ratio * size_bytes, ranks)
        return self.sent_bytes(size_bytes, ranks) * curve.pieces[-1].beta_s_per_byte

    def sent_bytes(self, size_bytes: float, ranks: int) -> float:
        """By one rank for one bucket."""
        payload = self.payload_ratio * size_bytes
        if self.exchange == GATHER:
            return payload * (ranks - 1)
        return payload * 2 * (ranks - 1) / ranks

    def _pieces(self, size_bytes: float, ranks: int) -> int:
        if self.exchange != TWO_PHASE:
            return 1
        return max(1, int(self.payload_ratio * size_bytes / ranks / _PIECE_BYTES))


def fit_hook(
    label: str,
    rows: Sequence[CompressionRow],
    schedules: Sequence[Schedule],
    curve: CostCurve,
) -> HookCost:
    """The cost of one compressor, from runs of one world size of 2 ranks or more.

    Args:
        label: as given to ``--hook``.
        rows: what the runs' compressed buckets took.
        schedules: of the same runs. The overhead is what makes their replay end as they did.
        curve: of all-reduce on the runs' link.

    Raises:
        CommprofError: no bucket was compressed, or by one rank alone.
    """
    name = label.partition(":")[0]
    mine = [row for row in rows if row.payload_bytes > 0]
    ranks = schedules[0].world_size
    if not mine or ranks < 2 or name not in EXCHANGES:
        raise CommprofError(
            f"hook {label}: no compressed bucket of 2 ranks or more was recorded; record one with "
            f"python -m commprof.run --world-sizes 2 --hook {label}"
        )
    size = np.array([float(row.gradient_bytes) for row in mine])
    payload = np.array([row.payload_bytes for row in mine])
    bare = HookCost(
        label=label,
        exchange=EXCHANGES[name],
        encode=_line(size, [row.encode_ms for row in mine]),
        reduce=_line(size, [row.reduce_ms for row in mine]),
        decode=_line(size, [row.decode_ms for row in mine]),
        payload_ratio=float(payload.sum() / size.sum()),
        overhead_s=0.0,
        ranks=ranks,
        ranks_per_core=schedules[0].placement.ranks_per_core,
        bucket_bytes=(float(size.min()), float(size.max())),
    )
    return dataclasses.replace(bare, overhead_s=_overhead_s(bare, schedules, curve))


def _overhead_s(bare: HookCost, schedules: Sequence[Schedule], curve: CostCurve) -> float:
    """Per bucket; of a grid the one that misses the recorded ends least."""

    def miss(overhead_s: float) -> float:
        total = 0.0
        for schedule in schedules:
            sizes = schedule.bucket_bytes.tolist()
            alone = [bare.time_s(each, schedule.world_size, curve) + overhead_s for each in sizes]
            ready = schedule.ready_s.max(axis=1)
            end = exchange(ready, np.array(alone), np.zeros(len(sizes)), workers=1)
            period = float(np.median(schedule.period_s))
            total += float(np.abs(end - schedule.end_s).mean()) / period
        return total

    return min((0.0, *np.geomspace(1e-5, 0.1, _OVERHEADS).tolist()), key=miss)


def _line(size: np.ndarray, times_ms: Sequence[float]) -> Line:
    """Through sizes that differ; else all of it is taken to grow with the size."""
    seconds = np.maximum(np.array(times_ms) / 1e3, 1e-9)
    if len(np.unique(size)) > 1:
        return robust_line(size, seconds)
    return 0.0, float(np.median(seconds / size))
