"""Cost of a compressor per bucket: processor time by stage, bytes on the wire, fixed overhead.

A compressor has one thread, which processes one bucket after another. With C the processor time of
a bucket, W its transfer time and p the number of pieces in which it is sent, C and W overlap except
for the first piece:

    time = overhead + max(C, W) + min(C, W) / p

With the compressor ``hierarchical``, or another compressor's option ``hierarchical=1``, the ranks
of a host first add up their gradients, then the hosts exchange the sums. Here C is the time within
a host, beta * size, and the overhead is the latency within a host. beta and this latency are fitted
by replaying recorded steps, because the stages' own times include waiting for the host's other
ranks. W is the transfer time between hosts; it follows from the cost curve of the link between
hosts. Each host counts as one peer.
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
#: Encoded bytes of a rank's share that are sent as one piece (``compress::Options::piece_bytes``).
_PIECE_BYTES = 1 << 20
#: Successive messages of a bucket: its header, then one per phase. A message goes to all ranks at
#: once (``Channel::exchange``), so the number of messages does not depend on the number of ranks.
#: One exception: with up to ``_ONE_PHASE_RANKS`` ranks, two phases become one (``inOnePhase()`` in
#: ``block_scheme.cpp``).
_MESSAGES = {TWO_PHASE: 3, GATHER: 2}
_ONE_PHASE_RANKS = 2
#: Least number of ranks at which top-k may let each rank sum its own part of the bucket
#: (``SplitGather::canPay``).
_FEWEST_OWNERS = 4
#: Least number of chunks into which commprof's own backend cuts a bucket.
_CHUNKS = 8
#: Number of these chunks that are in flight between hosts at a time.
_CHUNKS_IN_FLIGHT = 2


def recording(label: str) -> str:
    """Returns the command that records a run with this compressor, to fit its cost."""
    return invocation.command("run", "--world-sizes", "2", "--hook", invocation.quoted(label))


@dataclass(frozen=True)
class HookFigures:
    """Fitted figures of a ``HookCost``, with the same names and units."""

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
    #: In the recorded run: ranks, ranks per core, and the smallest and largest bucket.
    ranks: int
    ranks_per_core: float
    bucket_bytes: tuple[float, float]
    #: Extra time of a rank's own work due to the compressor, divided by the bytes of all gradients;
    #: below 0 if plain all-reduces slow compute down more than the compressor does. NaN if no
    #: similar run without a hook was recorded.
    compute_s_per_byte: float = math.nan
    #: True if ranks first add up gradients within their host, and hosts then exchange only the
    #: sums. In this case, ``reduce`` holds all processor time, ``payload_ratio`` refers to a
    #: host's bytes, and ``ranks`` counts hosts.
    between_hosts: bool = False
    #: Ranks per host of the recorded run, rounded.
    ranks_per_host: int = 1
    #: Latency of a message in the recorded run, the fitted alpha of its link; ``overhead_s``
    #: includes it. NaN if the profile lacks it.
    alpha_s: float = math.nan
    #: Link class of the recorded run; empty if the profile lacks it.
    link: str = ""
    #: Mean absolute error of the times at which buckets end in a replay of the recorded run,
    #: divided by the step time; NaN if the profile lacks it.
    residual: float = math.nan
    #: Root mean square of the relative residuals of a bucket's processor time; NaN if the cost was
    #: not fitted to the stages' own times, or the profile lacks it.
    work_residual: float = math.nan
    #: Ends of each figure's 95 % bootstrap interval; NaN for figures of unknown uncertainty. None
    #: if the profile lacks them.
    low: HookFigures | None = None
    high: HookFigures | None = None
    #: Bootstrap replicates. Replicate i was fitted with replicate i of the link's cost curve.
    replicates: tuple[HookFigures, ...] = ()

    def replicate(self, number: int) -> HookCost:
        """Returns the cost with the figures of one bootstrap replicate.

        Its index is ``number`` modulo the number of replicates. Without replicates, the cost is
        returned unchanged.
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
        """Number of peers that exchange buckets: hosts if ``between_hosts``, else ranks."""
        return max(1, math.ceil(ranks / ranks_per_host)) if self.between_hosts else ranks

    def link_sharing(self, ranks: int, ranks_per_host: int) -> float:
        """Load of a host's link, as a multiple of one rank's ``sent_bytes``.

        The link carries the messages that all ranks of the host send to other hosts. A ring enters
        and leaves each host only once.
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
        """Time from the compressor's start on a bucket until the bucket's mean is complete.

        Args:
            size_bytes: size of the fp32 gradients.
            ranks: number of peers, see :meth:`peers`.
            curve: cost of an all-reduce, or of an operation that stands in for it, on the link
                between the peers.
            crowding: ranks per core divided by recorded ranks per core; multiplies processor time.
            sharing: result of :meth:`link_sharing`; multiplies the transfer time.
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
        """Processor time for a bucket."""
        encode, reduce, decode = (
            fixed + per_byte * size_bytes
            for fixed, per_byte in (self.encode, self.reduce, self.decode)
        )
        # After a gather each rank decodes and adds up the values of all others.
        growth = ranks / self.ranks if self.exchange == GATHER else 1.0
        return encode + (reduce + decode) * growth

    def transfer_s(self, size_bytes: float, ranks: int, curve: CostCurve) -> float:
        """Transfer time of a bucket.

        It includes the messages' latency if the bucket is exchanged by all-reduces (``RING`` and
        ``HIERARCHICAL``). In the other exchanges, ``overhead_s`` includes this latency.
        """
        if self.exchange == HIERARCHICAL:
            chunks_s = _CHUNKS * curve.time_s(size_bytes / _CHUNKS, ranks, "all_reduce")
            whole_s = curve.time_s(size_bytes, ranks, "all_reduce")
            return max(whole_s, chunks_s / _CHUNKS_IN_FLIGHT)
        if self.exchange == RING:
            return curve.time_s(self.payload_ratio * size_bytes, ranks, "all_reduce")
        return self.sent_bytes(size_bytes, ranks) * curve.pieces[-1].beta_s_per_byte

    def sent_bytes(self, size_bytes: float, ranks: int) -> float:
        """Bytes that one peer (a rank, or a host if ``between_hosts``) sends for a bucket."""
        payload = self.payload_ratio * size_bytes
        if self.exchange == GATHER:
            gathered = payload * (ranks - 1)
            # Top-k sends all values as fp16 in two phases if these are fewer bytes (TopK::dense).
            dense = size_bytes * (ranks - 1) / ranks if self._is_top_k else math.inf
            return min(gathered, dense)
        return payload * 2 * (ranks - 1) / ranks

    def remarks(self, peers: int) -> list[str]:
        """Returns remarks on parts of the exchange that the model leaves out.

        Args:
            peers: number of peers that exchange buckets, see :meth:`peers`.
        """
        if not self._is_top_k or peers < _FEWEST_OWNERS:
            return []
        one = "host" if self.between_hosts else "rank"
        return [
            f"{self.label} at {peers} {one}s is priced as if each {one} sent its chosen values to "
            "all others, or all values in fp16 if these are fewer bytes; the real cost can be "
            f"lower: if all {one}s choose the same positions, each {one} adds up a part of the "
            "bucket and sends only the sums"
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
