"""Who came last, and whom the others wait for, from the summaries of always-on mode alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.align import histogram
from commprof.analysis.late.arrivals import clocks_are_shared
from commprof.analysis.late.stragglers import find_late_rank
from commprof.analysis.step.pauses import ORIGINS
from commprof.trace.reader import Trace
from commprof.trace.summary import Summary
from commprof.units import ns_to_ms, ns_to_s

#: The late rank is named if one origin explains this part of what its own work takes longer.
_MOST = 0.5


@dataclass(frozen=True)
class LastRow:
    """How often one rank was the last to issue a collective, and what that cost the others."""

    rank: int
    #: Of the collectives, each counted once per rank that took part and told of it.
    share: float
    #: Sum over the other ranks of the time from their issue to this one's, or to their own
    #: completion if that came first. Collectives overlap, so it can exceed the time that passed.
    cost_s: float


@dataclass(frozen=True)
class SummaryLateRank:
    """The rank that the others wait for."""

    rank: int
    #: Mean waiting per step and waiting rank that it caused.
    wait_ms: float
    #: Of all waiting for late ranks.
    share: float
    #: As ``stragglers.LateRank.p_value``, over blocks of time in the place of steps.
    p_value: float
    #: Waiting that it caused, summed over the ranks that waited.
    cost_s: float
    #: Where its own work takes longer than the others': of ``pauses.ORIGINS``.
    phase: str
    #: Part of it that lies there.
    phase_share: float


def last_rows(summaries: Sequence[Summary]) -> tuple[LastRow, ...]:
    """One row per rank that was ever the last, the most costly first."""
    count: dict[int, int] = {}
    wait_ns: dict[int, int] = {}
    for summary in summaries:
        for last in summary.last:
            count[last.rank] = count.get(last.rank, 0) + last.count
            wait_ns[last.rank] = wait_ns.get(last.rank, 0) + last.wait_ns
    total = sum(count.values())
    rows = [LastRow(rank, count[rank] / total, ns_to_s(wait_ns[rank])) for rank in count]
    return tuple(sorted(rows, key=lambda row: (-row.cost_s, row.rank)))


def late_rank(traces: Sequence[Trace], summaries: Sequence[Summary]) -> SummaryLateRank | None:
    """The rank that the others wait for, by the rule of :func:`stragglers.find_late_rank`.

    Where neither a phase nor pauses explain most of what its own work takes longer, nobody is
    named; nor where a rank left no summary, or times of several hosts cannot be compared.
    """
    ranks = [trace.rank for trace in traces]
    steps = min(summary.steps.count for summary in summaries)
    if ranks != list(range(traces[0].world_size)) or steps == 0:
        return None
    if not _times_compare(traces, summaries):
        return None
    waited_for = _waited_for(summaries)
    rows = len(waited_for)
    step_ns = histogram.quantile(histogram.merge(s.steps for s in summaries), 0.5)
    error = histogram.merge(s.arrival_clock_error for s in summaries)
    error_ns = histogram.quantile(error, 0.95) if error.count else 0.0  # one clock for all
    # Its figures are per row, which holds this many steps.
    per_row = steps / max(1, rows)
    found = find_late_rank(waited_for, step_ns * per_row, error_ns * per_row)
    if found is None:
        return None
    phase, share = _slow_phase(found.rank, summaries)
    if share < _MOST:
        return None
    return SummaryLateRank(
        rank=found.rank,
        wait_ms=ns_to_ms(found.wait_ns * rows / steps),
        share=found.share,
        p_value=found.p_value,
        cost_s=found.cost_s,
        phase=phase,
        phase_share=share,
    )


def _times_compare(traces: Sequence[Trace], summaries: Sequence[Summary]) -> bool:
    """Whether the blocks are by one clock: where hosts have heard of each other, rank 0's."""
    return clocks_are_shared(traces) or all(s.hosts.clock and s.hosts.heard for s in summaries)


def _waited_for(summaries: Sequence[Summary]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """``[block, rank]``, summed over the ranks that waited, in the coarsest blocks of any."""
    block_ns = max(summary.waited_for.block_ns for summary in summaries)
    blocks, culprits, waited = [], [], []
    for summary in summaries:
        cells = summary.waited_for.cells
        blocks.append(cells[:, 0] * summary.waited_for.block_ns // block_ns)
        culprits.append(cells[:, 1])
        waited.append(cells[:, 2])
    known, row = np.unique(np.concatenate(blocks), return_inverse=True)
    culprit = np.concatenate(culprits)
    total = np.zeros((len(known), len(summaries)))
    inside = culprit < len(summaries)
    np.add.at(total, (row[inside], culprit[inside]), np.concatenate(waited)[inside])
    return total


def _slow_phase(rank: int, summaries: Sequence[Summary]) -> tuple[str, float]:
    """The origin whose mean exceeds the other ranks' median most; its part of all such excess.

    The part is 0 where none exceeds it.
    """
    means = np.array([_mean_by_origin(summary) for summary in summaries])
    excess = np.maximum(0, means[rank] - np.median(np.delete(means, rank, axis=0), axis=0))
    best = int(np.argmax(excess))
    total = float(excess.sum())
    return ORIGINS[best], float(excess[best]) / total if total > 0 else 0.0


def _mean_by_origin(summary: Summary) -> list[float]:
    """Mean time per step in the order of ``ORIGINS``; the summary has steps."""
    paused = [total / summary.steps.count for total in summary.paused_ns]
    work = [histogram.mean(phase) for phase in summary.phases]
    return [*(a - b for a, b in zip(work, paused, strict=True)), sum(paused)]
