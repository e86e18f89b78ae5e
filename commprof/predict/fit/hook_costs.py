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
from dataclasses import dataclass

from commprof import invocation
from commprof.predict.fit.cost_model import CostCurve
from commprof.predict.fit.regression import Line

TWO_PHASE, GATHER, RING, HIERARCHICAL = "two_phase", "gather", "ring", "hierarchical"
#: How each scheme's payload travels, see docs/compressors.md.
EXCHANGES = {
    **dict.fromkeys(("fp16", "bf16", "int8", "int4"), TWO_PHASE),
    "topk": GATHER,
    **dict.fromkeys(("none", "powersgd"), RING),
    "hierarchical": HIERARCHICAL,
}
#: Encoded bytes of a rank's share that go as one piece (``compress::Options::piece_bytes``).
_PIECE_BYTES = 1 << 20
#: Messages of a bucket that follow each other: its header, then one per phase. Each goes to all
#: ranks at once (``Channel::exchange``), so there are as many for any number of ranks but that two
#: phases are one up to ``_ONE_PHASE_RANKS`` (``inOnePhase()`` in ``block_scheme.cpp``).
_MESSAGES = {TWO_PHASE: 3, GATHER: 2}
_ONE_PHASE_RANKS = 2
#: Ranks from which top-k may go by owners (``SplitGather::canPay``).
_FEWEST_OWNERS = 4
#: The backend cuts a bucket into so many chunks at least, and has some between hosts at a time.
_CHUNKS, _CHUNKS_IN_FLIGHT = 8, 2


def recording(label: str) -> str:
    """The command that records a run with this compressor, to fit its cost from."""
    return invocation.command("run", "--world-sizes", "2", "--hook", invocation.quoted(label))


@dataclass(frozen=True)
class HookFigures:
    """Fitted figures of a ``HookCost``, with its names and units."""

    encode: Line
    reduce: Line
    decode: Line
    overhead_s: float


@dataclass(frozen=True)
class HookCost:
    """Cost of a compressor, fitted on one recorded run; lines are (s, s per byte of fp32)."""

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
    #: What the replay of the recorded run misses its ends by, in the mean, over the step.
    residual: float = math.nan
    #: Root mean square of the relative residuals of a bucket's processor time; NaN where it is not
    #: of the stages' own times, and as the one above where the profile does not say.
    work_residual: float = math.nan
    #: 95 % bootstrap interval, figure by figure; NaN where nothing says how far it may be off.
    low: HookFigures | None = None
    high: HookFigures | None = None
    #: Bootstrap replicates. The one of a number was fitted beside the link's of that number.
    replicates: tuple[HookFigures, ...] = ()

    def replicate(self, number: int) -> HookCost:
        """The cost with one bootstrap replicate's figures, counted modulo their number."""
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
        """Number of ranks that exchange, which the methods below take as ranks."""
        return max(1, math.ceil(ranks / ranks_per_host)) if self.between_hosts else ranks

    def link_sharing(self, ranks: int, ranks_per_host: int) -> float:
        """Load of a host's link over that with one rank there, in units of ``sent_bytes``.

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
        """Time from the compressor's start on a bucket to the bucket's mean.

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
        messages = self._messages(ranks)
        more_s = (messages - self._messages(self.ranks)) * curve.pieces[0].alpha_s
        overhead_s = max(0.0, self.overhead_s + more_s + messages * later_s)
        return overhead_s + max(work_s, wire_s) + overlapped

    def work_s(self, size_bytes: float, ranks: int) -> float:
        """Processor time for a bucket."""
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
        """Bytes that one rank sends for a bucket; with ``between_hosts``, that one host sends."""
        payload = self.payload_ratio * size_bytes
        if self.exchange == GATHER:
            gathered = payload * (ranks - 1)
            # Where that is more, all values go as halves in two phases (TopK::dense).
            dense = size_bytes * (ranks - 1) / ranks if self._is_top_k else math.inf
            return min(gathered, dense)
        return payload * 2 * (ranks - 1) / ranks

    def remarks(self, ranks: int) -> list[str]:
        """Says what the model leaves out of the exchange at so many ranks."""
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
        chunks = 1 if ranks <= _ONE_PHASE_RANKS else ranks
        return max(1, int(self.payload_ratio * size_bytes / chunks / _PIECE_BYTES))

    def _messages(self, ranks: int) -> int:
        found = _MESSAGES.get(self.exchange, 0)
        one_less = self.exchange == TWO_PHASE and ranks <= _ONE_PHASE_RANKS
        return found - 1 if one_less else found
