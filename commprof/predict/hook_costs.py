"""What a compressor costs per bucket: processor time by stage, bytes on the wire, fixed overhead.

Its one thread takes bucket after bucket. With C the processor time of a bucket, W its time on the
wire and p the pieces in which it goes, C and W run beside each other but for the first piece:

    time = overhead + max(C, W) + min(C, W) / p

Where the ranks of a host add up first (``hierarchical``, ``int8:hierarchical=1``), there are two
levels: within a host C = beta * size with the overhead as its alpha, both from the replay of
recorded steps, because the stages' own times hold the waiting for the host's other ranks; between H
hosts W is that of the link's own alpha and beta for H peers that send a host's bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.compression import CompressionRow
from commprof.errors import CommprofError
from commprof.predict.cost_model import OTHER_HOST, CostCurve
from commprof.predict.exchange import exchange
from commprof.predict.regression import Line, robust_line
from commprof.predict.schedule import Schedule

TWO_PHASE, GATHER, RING, HIERARCHICAL = "two_phase", "gather", "ring", "hierarchical"
#: How each scheme's payload travels, see docs/compressors.md.
EXCHANGES = {
    **dict.fromkeys(("fp16", "bf16", "int8", "int4"), TWO_PHASE),
    **dict.fromkeys(("topk", "sign"), GATHER),
    **dict.fromkeys(("none", "randomk", "powersgd"), RING),
    "hierarchical": HIERARCHICAL,
}
#: Encoded bytes of a rank's share that go as one piece (``compress::Options::piece_bytes``).
_PIECE_BYTES = 1 << 20
#: Messages of a bucket that follow each other: its header, then one per phase. Each goes to all
#: ranks at once (``Channel::exchange``), so there are as many for any number of ranks.
_MESSAGES = {TWO_PHASE: 3, GATHER: 2}
#: Ranks from which top-k may go by owners (``SplitGather::canPay``).
_FEWEST_OWNERS = 4
#: Values tried, from 10 µs to 100 ms: 12 % apart.
_OVERHEADS = 81
#: The backend cuts a bucket into so many chunks at least, and has some between hosts at a time.
_CHUNKS, _CHUNKS_IN_FLIGHT = 8, 2
#: Values tried within a host, from 10 ps to 100 ns a byte, and of the overhead beside them.
_BETAS, _ALPHAS = 41, 31


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
    #: By how much a rank's own work takes longer beside it, over the bytes of all gradients; below
    #: 0 where it leaves compute more than all-reduces do. NaN where no run like it had no hook.
    compute_s_per_byte: float = math.nan
    #: Whether a host's ranks add up first and only hosts exchange. ``reduce`` then holds all of its
    #: processor time, ``payload_ratio`` is of a host's bytes, and ``ranks`` counts hosts.
    between_hosts: bool = False
    #: Of the recorded run, rounded.
    ranks_per_host: int = 1
    #: Latency of a message in the recorded run, which ``overhead_s`` holds: the fitted alpha of its
    #: link. NaN where the profile does not say.
    alpha_s: float = math.nan
    #: Link class of the recorded run; empty where the profile does not say.
    link: str = ""

    def peers(self, ranks: int, ranks_per_host: int) -> int:
        """Those that exchange: what the methods below take as ranks."""
        return max(1, math.ceil(ranks / ranks_per_host)) if self.between_hosts else ranks

    def link_sharing(self, ranks: int, ranks_per_host: int) -> float:
        """What a host's link carries over what it would with one rank there, of ``sent_bytes``.

        Of what a rank sends to each of the others, only that to other hosts crosses the link, and
        so does that of its host's other ranks. A ring enters and leaves each host once.
        """
        everyone = self.exchange in (TWO_PHASE, GATHER) and not self.between_hosts
        if not everyone or ranks_per_host >= ranks:
            return 1.0
        return ranks_per_host * (ranks - ranks_per_host) / (ranks - 1)

    def time_s(
        self,
        size_bytes: float,
        ranks: int,
        curve: CostCurve,
        crowding: float = 1.0,
        sharing: float = 1.0,
        later_s: float = 0.0,
    ) -> float:
        """From the compressor's begin with a bucket to its mean.

        Args:
            size_bytes: of the fp32 gradients.
            ranks: that exchange it.
            curve: of all-reduce on their link.
            crowding: how much longer its work takes than in the recorded run, for want of cores.
            sharing: see ``link_sharing``.
            later_s: by how much a message takes longer to arrive than in the recorded run.
        """
        work_s = self.work_s(size_bytes, ranks) * crowding
        wire_s = self.wire_s(size_bytes, ranks, curve) * sharing
        overlapped = min(work_s, wire_s) / self._pieces(size_bytes, ranks)
        overhead_s = max(0.0, self.overhead_s + _MESSAGES.get(self.exchange, 0) * later_s)
        return overhead_s + max(work_s, wire_s) + overlapped

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
        if self.exchange == HIERARCHICAL:
            chunks_s = _CHUNKS * curve.time_s(size_bytes / _CHUNKS, ranks)
            return max(curve.time_s(size_bytes, ranks), chunks_s / _CHUNKS_IN_FLIGHT)
        if self.exchange == RING:
            return curve.time_s(self.payload_ratio * size_bytes, ranks)
        return self.sent_bytes(size_bytes, ranks) * curve.pieces[-1].beta_s_per_byte

    def sent_bytes(self, size_bytes: float, ranks: int) -> float:
        """By one rank for one bucket; ``between_hosts``, by one host."""
        payload = self.payload_ratio * size_bytes
        if self.exchange == GATHER:
            gathered = payload * (ranks - 1)
            # Where that is more, all values go as halves in two phases (TopK::dense).
            dense = size_bytes * (ranks - 1) / ranks if self._is_top_k else math.inf
            return min(gathered, dense)
        return payload * 2 * (ranks - 1) / ranks

    def remarks(self, ranks: int) -> list[str]:
        """What the model leaves out of its exchange at so many ranks."""
        if not self._is_top_k or ranks < _FEWEST_OWNERS:
            return []
        return [
            f"{self.label} at {ranks} ranks is priced as everyone's choices sent to everyone, at "
            "most as halves of all values; where ranks choose the same places it goes by owners, "
            "which is less"
        ]

    @property
    def _is_top_k(self) -> bool:
        return self.label.partition(":")[0] == "topk"

    def _pieces(self, size_bytes: float, ranks: int) -> int:
        if self.exchange == HIERARCHICAL:
            return _CHUNKS
        if self.exchange != TWO_PHASE or self.between_hosts:
            return 1
        return max(1, int(self.payload_ratio * size_bytes / ranks / _PIECE_BYTES))


def fit_hook(
    label: str,
    rows: Sequence[CompressionRow],
    schedules: Sequence[Schedule],
    curve: CostCurve,
    plain: Sequence[Schedule] = (),
) -> HookCost:
    """The cost of one compressor, from runs of one world size of 2 ranks or more.

    Args:
        label: as given to ``--hook``.
        rows: what the runs' compressed buckets took.
        schedules: of the same runs. The overhead is what makes their replay end as they did.
        curve: of all-reduce on the runs' link.
        plain: runs without a hook; those with the same buckets say what it takes from compute.

    Raises:
        CommprofError: no bucket was compressed, or by one rank alone; or the scheme is not known.
    """
    name = label.partition(":")[0]
    mine = [row for row in rows if row.payload_bytes > 0]
    ranks = schedules[0].world_size
    if name not in EXCHANGES:
        raise CommprofError(
            f"hook {label}: the model does not know how it exchanges (known: "
            f"{', '.join(EXCHANGES)}); predict without it"
        )
    if not mine or ranks < 2:
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
        compute_s_per_byte=_compute_s_per_byte(schedules, plain),
        alpha_s=curve.pieces[0].alpha_s,
        link=schedules[0].link,
    )
    if name == HIERARCHICAL or "hierarchical=1" in label.partition(":")[2].split(","):
        return _two_levels(bare, schedules, curve)
    return dataclasses.replace(bare, overhead_s=_overhead_s(bare, schedules, curve))


def _two_levels(bare: HookCost, schedules: Sequence[Schedule], curve: CostCurve) -> HookCost:
    """With the level within a host: latency and time per byte that miss the recorded ends least."""
    per_host = max(1, round(schedules[0].placement.ranks_per_host))
    hosts = max(1, math.ceil(bare.ranks / per_host))
    if hosts == 1 and bare.exchange != HIERARCHICAL:
        raise CommprofError(
            f"hook {bare.label}: recorded on one host, on which it compresses nothing; record it "
            "on several hosts"
        )
    nothing: Line = (0.0, 0.0)
    levels = dataclasses.replace(
        bare,
        encode=nothing,
        reduce=nothing,
        decode=nothing,
        # The backend reports a rank's whole bucket, the others the rank's part of its host's.
        payload_ratio=1.0 if bare.exchange == HIERARCHICAL else bare.payload_ratio * per_host,
        ranks=hosts,
        between_hosts=True,
        ranks_per_host=per_host,
    )

    def made(alpha_s: float, beta_s_per_byte: float) -> HookCost:
        return dataclasses.replace(levels, overhead_s=alpha_s, reduce=(0.0, beta_s_per_byte))

    def best(alphas: Sequence[float], betas: Sequence[float]) -> HookCost:
        tried = (made(alpha, beta) for beta in betas for alpha in alphas)
        return min(tried, key=lambda cost: _miss(cost, schedules, curve))

    coarse = best(
        (0.0, *np.geomspace(1e-5, 0.1, _ALPHAS).tolist()),
        (0.0, *np.geomspace(1e-11, 1e-7, _BETAS).tolist()),
    )
    # Between the neighbours of the best on the grid.
    closer = np.linspace(0.75, 1.35, 13)
    return best(
        (0.0, *(closer * coarse.overhead_s).tolist()), (0.0, *(closer * coarse.reduce[1]).tolist())
    )


def _compute_s_per_byte(hooked: Sequence[Schedule], plain: Sequence[Schedule]) -> float:
    """Median over pairs of runs that differ in the hook alone."""
    found = [
        (_own_s(one) - _own_s(other)) / one.gradient_bytes
        for one in hooked
        for other in plain
        if (one.world_size, one.link) == (other.world_size, other.link)
        and one.bucket_bytes.tolist() == other.bucket_bytes.tolist()
    ]
    return float(np.median(found)) if found else math.nan


def _own_s(schedule: Schedule) -> float:
    return float(np.median(schedule.backward_end_s - schedule.other_wait_s))


def _overhead_s(bare: HookCost, schedules: Sequence[Schedule], curve: CostCurve) -> float:
    """Per bucket; of a grid the one that misses the recorded ends least."""

    def miss(overhead_s: float) -> float:
        return _miss(dataclasses.replace(bare, overhead_s=overhead_s), schedules, curve)

    return min((0.0, *np.geomspace(1e-5, 0.1, _OVERHEADS).tolist()), key=miss)


def _miss(cost: HookCost, schedules: Sequence[Schedule], curve: CostCurve) -> float:
    """Mean absolute difference of the replayed ends over the step, summed over the schedules."""
    total = 0.0
    for schedule in schedules:
        sizes = schedule.bucket_bytes.tolist()
        per_host = max(1, round(schedule.placement.ranks_per_host))
        sharing = cost.link_sharing(cost.ranks, per_host) if schedule.link == OTHER_HOST else 1.0
        alone = [cost.time_s(each, cost.ranks, curve, sharing=sharing) for each in sizes]
        ready = schedule.ready_s.max(axis=1)
        end = exchange(ready, np.array(alone), np.zeros(len(sizes)), workers=1)
        period = float(np.median(schedule.period_s))
        total += float(np.abs(end - schedule.end_s).mean()) / period
    return total


def _line(size: np.ndarray, times_ms: Sequence[float]) -> Line:
    """Through sizes that differ; else all of it is taken to grow with the size."""
    seconds = np.maximum(np.array(times_ms) / 1e3, 1e-9)
    if len(np.unique(size)) > 1:
        return robust_line(size, seconds)
    return 0.0, float(np.median(seconds / size))
