"""Cost of a compressor per bucket: processor time, transfer time and fixed overhead.

A compressor has one thread, which processes one bucket after another. A bucket is sent in p pieces.
C is the processor time of the bucket, and W its transfer time. C and W overlap except for the first
piece:

    time = overhead + max(C, W) + min(C, W) / p

In a hierarchical exchange, the ranks of a host first add up their gradients, then the hosts
exchange the sums. The compressor ``hierarchical`` works like this. Other compressors work like this
with the option ``hierarchical=1``. In this exchange, C is the time within a host, beta * size, and
the overhead is the latency within a host. beta and the overhead are fitted by replaying recorded
steps, because the stages' own times include waiting for the host's other ranks. W is the transfer
time between hosts, which follows from the cost curve of the link between hosts. Each host counts as
one peer.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from commprof import invocation
from commprof.forecast.costs.cost_model import CostCurve
from commprof.forecast.costs.regression import Line

#: How ranks exchange a bucket, see docs/compressors.md.
TWO_PHASE, GATHER, RING, HIERARCHICAL = "two_phase", "gather", "ring", "hierarchical"
#: Encoded bytes that a rank sends as one piece (``compress::Options::piece_bytes``).
_PIECE_BYTES = 1 << 20
#: Number of successive messages of a bucket: one for the header, and one per phase. A message goes
#: to all ranks in parallel (``Channel::exchange``).
_MESSAGES = {TWO_PHASE: 3, GATHER: 2}
#: Up to this number of ranks, two phases become one (``inOnePhase()`` in ``block_scheme.cpp``).
_ONE_PHASE_RANKS = 2
#: With this number of ranks or more, top-k may let each rank add up a part of the bucket
#: (``SplitGather::canPay``).
_FEWEST_OWNERS = 4
#: Least number of chunks into which commprof's own backend cuts a bucket.
_CHUNKS = 8
#: Number of chunks that are in flight between hosts at a time.
_CHUNKS_IN_FLIGHT = 2


def recording(label: str) -> str:
    """Returns a command that records a run with the compressor ``label``."""
    return invocation.command("run", "--world-sizes", "2", "--hook", invocation.quoted(label))


@dataclass(frozen=True)
class HookFigures:
    """The fitted figures of a ``HookCost``, with the same names and units."""

    encode: Line
    reduce: Line
    decode: Line
    overhead_s: float


@dataclass(frozen=True)
class HookCost:
    """Cost of a compressor, fitted on one recorded run."""

    label: str
    exchange: str
    #: Processor time of each stage as a straight line: (fixed s, s per byte of fp32).
    encode: Line
    reduce: Line
    decode: Line
    #: Encoded bytes divided by fp32 bytes.
    payload_ratio: float
    #: Fixed time per bucket: waking threads, headers, messages.
    overhead_s: float
    #: Number of ranks, ranks per core, and smallest and largest bucket of the recorded run.
    ranks: int
    ranks_per_core: float
    bucket_bytes: tuple[float, float]
    #: Extra time of a rank's own work due to the compressor, divided by the bytes of all gradients.
    #: The extra time is relative to plain all-reduces, and may be below 0. NaN if unknown.
    compute_s_per_byte: float = math.nan
    #: True if hosts exchange the sums of their ranks' gradients. Then ``reduce`` holds all
    #: processor time, ``payload_ratio`` refers to the bytes of a host, and ``ranks`` is a number of
    #: hosts.
    between_hosts: bool = False
    #: Ranks per host of the recorded run, rounded; 1 if ``between_hosts`` is False.
    ranks_per_host: int = 1
    #: Latency of a message in the recorded run; ``overhead_s`` includes this latency. NaN if
    #: unknown.
    alpha_s: float = math.nan
    #: Link class of the recorded run; empty if unknown.
    link: str = ""
    #: Mean absolute error of the bucket ends in a replay of the recorded run, divided by the step
    #: time; NaN if unknown.
    residual: float = math.nan
    #: Root mean square of the relative residuals of a bucket's processor time; NaN if unknown.
    work_residual: float = math.nan
    #: Ends of the 95 % bootstrap intervals. A figure is NaN if its uncertainty is unknown. None if
    #: the profile has no intervals.
    low: HookFigures | None = None
    high: HookFigures | None = None
    #: Bootstrap replicates. Replicate i was fitted with replicate i of the link's cost curve.
    replicates: tuple[HookFigures, ...] = ()

    def replicate(self, number: int) -> HookCost:
        """Returns the cost with the figures of one bootstrap replicate.

        The index of the replicate is ``number`` modulo the number of replicates. Returns this cost
        unchanged if it has no replicates.
        """
        if not self.replicates:
            return self
        drawn = self.replicates[number % len(self.replicates)]
        return dataclasses.replace(
            self,
            encode=drawn.encode,
            reduce=drawn.reduce,
            decode=drawn.decode,
            overhead_s=drawn.overhead_s,
        )

    def peers(self, ranks: int, ranks_per_host: int) -> int:
        """Returns the number of hosts or ranks that exchange buckets."""
        return max(1, math.ceil(ranks / ranks_per_host)) if self.between_hosts else ranks

    def link_sharing(self, ranks: int, ranks_per_host: int) -> float:
        """Returns the load of a host's link, as a multiple of one rank's ``sent_bytes``.

        The link carries the messages of all ranks of the host to other hosts. In a ring, only one
        rank of each host sends to another host.
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
        """Returns the time in s from the compressor's start on a bucket to the complete mean.

        Args:
            size_bytes: size of the fp32 gradients.
            ranks: number of peers, see :meth:`peers`.
            curve: cost curve of the link between the peers.
            crowding: factor for processor time: ranks per core, divided by recorded ranks per core.
            sharing: factor for transfer time, see :meth:`link_sharing`.
            later_s: extra latency of a message, compared with the recorded run.
        """
        work_s = self.work_s(size_bytes, ranks) * crowding
        transfer_s = self.transfer_s(size_bytes, ranks, curve) * sharing
        overlapped = min(work_s, transfer_s) / self._pieces(size_bytes, ranks)
        messages = self._messages(ranks)
        recorded_s = curve.pieces[0].alpha_s - later_s  # a message's latency in the recorded run
        more_s = (messages - self._messages(self.ranks)) * recorded_s
        overhead_s = max(0.0, self.overhead_s + more_s + messages * later_s)
        return overhead_s + max(work_s, transfer_s) + overlapped

    def work_s(self, size_bytes: float, ranks: int) -> float:
        """Returns the processor time of a bucket, in s."""
        encode, reduce, decode = (
            fixed + per_byte * size_bytes
            for fixed, per_byte in (self.encode, self.reduce, self.decode)
        )
        # After a gather, each rank decodes and adds up the values of all other ranks.
        growth = ranks / self.ranks if self.exchange == GATHER else 1.0
        return encode + (reduce + decode) * growth

    def transfer_s(self, size_bytes: float, ranks: int, curve: CostCurve) -> float:
        """Returns the transfer time of a bucket, in s.

        In the exchanges ``RING`` and ``HIERARCHICAL``, this time includes the latency of the
        messages. In other exchanges, ``overhead_s`` includes the latency.
        """
        if self.exchange == HIERARCHICAL:
            chunks_s = _CHUNKS * curve.time_s(size_bytes / _CHUNKS, ranks, "all_reduce")
            whole_s = curve.time_s(size_bytes, ranks, "all_reduce")
            return max(whole_s, chunks_s / _CHUNKS_IN_FLIGHT)
        if self.exchange == RING:
            return curve.time_s(self.payload_ratio * size_bytes, ranks, "all_reduce")
        return self.sent_bytes(size_bytes, ranks) * curve.pieces[-1].beta_s_per_byte

    def sent_bytes(self, size_bytes: float, ranks: int) -> float:
        """Returns the bytes that one peer sends for a bucket."""
        payload = self.payload_ratio * size_bytes
        if self.exchange == GATHER:
            gathered = payload * (ranks - 1)
            # Top-k sends all values as fp16 if that takes fewer bytes (TopK::dense).
            dense = size_bytes * (ranks - 1) / ranks if self._is_top_k else math.inf
            return min(gathered, dense)
        return payload * 2 * (ranks - 1) / ranks

    def remarks(self, peers: int) -> list[str]:
        """Returns remarks on parts of the exchange that the model leaves out.

        Args:
            peers: result of :meth:`peers`.
        """
        if not self._is_top_k or peers < _FEWEST_OWNERS:
            return []
        one = "host" if self.between_hosts else "rank"
        return [
            f"the real cost of {self.label} at {peers} {one}s can be lower than predicted: if all "
            f"{one}s choose the same positions, each {one} adds up a part of the bucket and sends "
            "only the sums"
        ]

    @property
    def _is_top_k(self) -> bool:
        return self.label.partition(":")[0] == "topk"

    def _pieces(self, size_bytes: float, ranks: int) -> int:
        if self.exchange == HIERARCHICAL:
            return _CHUNKS
        if self.exchange != TWO_PHASE or self.between_hosts:
            return 1
        chunks = 1 if ranks <= _ONE_PHASE_RANKS else ranks
        return max(1, int(self.payload_ratio * size_bytes / chunks / _PIECE_BYTES))

    def _messages(self, ranks: int) -> int:
        found = _MESSAGES.get(self.exchange, 0)
        one_less = self.exchange == TWO_PHASE and ranks <= _ONE_PHASE_RANKS
        return found - 1 if one_less else found
