"""Result of always-on mode at one world size, computed from the ranks' summaries."""

from __future__ import annotations

from dataclasses import dataclass

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.collectives.apart import TrainedApart
from commprof.analysis.late.slower_ranks import SlowerRanks
from commprof.field_groups import FieldGroup


@dataclass(frozen=True)
class LastRow:
    """How often one rank issued an operation last, and how long the other ranks then waited."""

    rank: int
    #: Fraction of all operations. An operation counts once for each rank that reported it.
    share: float
    #: Sum of the times for which the other ranks' operations waited for this rank. Operations
    #: overlap, so the sum can exceed elapsed time.
    cost_s: float


@dataclass(frozen=True)
class SummaryLateRank:
    """The rank that the other ranks wait for, according to the summaries."""

    rank: int
    #: Mean time per step that one waiting rank waits for this rank.
    wait_ms: float
    #: Waiting for this rank, as a fraction of all waiting.
    share: float
    #: See ``stragglers.LateRank.p_value``; computed from blocks of time instead of steps.
    p_value: float
    #: Waiting for this rank, summed over the ranks that waited.
    cost_s: float
    #: One of ``exposure.ORIGINS``: the phase in which this rank works longest, compared with the
    #: other ranks.
    phase: str
    #: Fraction of this rank's extra work that lies in ``phase``.
    phase_share: float
    #: Number of ranks that wait for this rank; 0 if not known.
    waiting_ranks: int = 0
    #: Other ranks that come late, mostly because they waited for this rank.
    through: tuple[int, ...] = ()


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of one histogram of times, accurate to 1 %; NaN if the histogram is empty."""

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    #: Exact sum of the values.
    total_ms: float


@dataclass(frozen=True)
class OperationRow:
    """Figures of one kind of operation over all ranks."""

    #: Name in c10d. "other" stands for operations for which the summary had no room.
    op: str
    #: Name of the process group; empty if the row adds up rare groups and sizes.
    group: str
    #: Upper bound of the row's sizes; all sizes are at least half of this bound. 0 if the size is
    #: 0, or if the row adds up rare groups and sizes.
    below_bytes: int
    #: Number of operations, summed over the ranks that issued them.
    count: int
    #: Sum of the operations' sizes. A size is the larger of input and output.
    bytes: int
    failed: int
    unfinished: int
    #: Time from issue to completion.
    duration: Quantiles
    #: Time in the calls of ``Work.wait`` that blocked.
    wait: Quantiles
    #: Time from issue to the last rank's issue, for collectives whose last rank is known.
    until_last: Quantiles
    #: Time from the last rank's issue to completion. With gloo, the time in gloo's queue counts.
    transfer: Quantiles
    #: Mean size divided by mean ``transfer``, as in nccl-tests. NaN without ``transfer``, for
    #: "other", and for gather and scatter, whose size a summary does not keep.
    algbw_gb_per_s: float
    #: Algorithm bandwidth times bus factor, as in nccl-tests; NaN without algorithm bandwidth.
    busbw_gb_per_s: float


@dataclass(frozen=True)
class SummaryTiming(FieldGroup):
    """Number, duration and parts of the steps of one world size."""

    #: Number of steps of the rank with the fewest steps.
    steps: int
    #: Event that ends a step, from ``found_steps.SOURCES``. If ranks differ, the least certain
    #: event is given.
    steps_end: str
    #: Median over all steps of all ranks, accurate to 1 %.
    step_median_ms: float
    step_p95_ms: float
    #: The fields from here to ``step_ms`` are means over all steps of all ranks. ``step_ms`` is
    #: the sum of the other means.
    data_ms: float
    forward_ms: float
    backward_ms: float
    exposed_ms: float
    optimizer_ms: float
    other_ms: float
    step_ms: float
    exposed_p95_ms: float
    #: Mean exposed time before the last rank arrived; NaN if no last arrival is known. The steps in
    #: ``unsplit_steps`` do not count.
    exposed_wait_ms: float
    #: Mean exposed time after the last rank arrived, over the same steps; NaN if no last arrival is
    #: known.
    exposed_transfer_ms: float
    #: Number of steps in which some last arrival is not known.
    unsplit_steps: int


@dataclass(frozen=True)
class SummaryArrivals(FieldGroup):
    """How well the ranks know which rank arrived last at each collective."""

    #: Number of collectives whose last arrival is not known, summed over the ranks.
    arrivals_unknown: int
    #: Number of collectives in ``arrivals_unknown`` whose group has no place in the ranks' shared
    #: memory.
    arrivals_without_place: int
    #: Number of broadcasts and similar collectives in ``arrivals_unknown`` whose group has more
    #: than 256 ranks on several hosts.
    arrivals_unlisted: int
    #: Number of collectives whose last arrival is known, summed over the ranks.
    arrivals_known: int
    #: Number of collectives in ``arrivals_known`` for which some arrivals on other hosts are
    #: missing. A rank whose arrival is missing may have come last.
    arrivals_partial: int
    #: Number of hosts on which ranks run.
    machines: int
    #: True if the offset of every host's clock to rank 0's is known.
    clocks_compared: bool
    #: Number of other hosts in the tree along which arrivals reach a host, for the host with the
    #: fewest; 0 if some host is cut off.
    hosts_heard: int
    #: Number of datagrams with arrivals that the network refused.
    unsent_datagrams: int
    #: Number of collectives whose arrivals a host did not pass on, for lack of room.
    skipped_collectives: int
    #: 95th percentile of the bound on the error of last arrivals, accurate to 1 %. Only
    #: collectives between hosts count; NaN if there are none.
    arrival_clock_error_p95_us: float
    #: Maximum of the bound on the error of last arrivals; NaN if the percentile is NaN.
    arrival_clock_error_us: float


@dataclass(frozen=True)
class SummaryResult:
    """Figures of one world size in always-on mode; the first step of each rank does not count."""

    world_size: int
    ranks: tuple[int, ...]
    #: Time that the longest summary covers.
    covered_s: float
    timing: SummaryTiming
    arrivals: SummaryArrivals
    last: tuple[LastRow, ...]
    late_rank: SummaryLateRank | None
    slower_ranks: SlowerRanks | None
    #: Sorted by total time from issue to completion, largest first.
    operations: tuple[OperationRow, ...]
    #: Number of operations that are counted in rows without a group, because they are rare.
    moved: int
    dropped_records: int
    #: Number of completions and waits whose issue was not recorded.
    unmatched: int
    #: Sentences on traces that could not be read completely.
    problems: tuple[str, ...]
    cross_checks: tuple[CrossCheck, ...]
    apart: TrainedApart | None = None
