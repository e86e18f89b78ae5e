"""Result of always-on mode for one world size, from the ranks' summaries."""

from __future__ import annotations

from dataclasses import dataclass

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.collectives.apart import TrainedApart
from commprof.analysis.late.slower_ranks import SlowerRanks
from commprof.field_groups import FieldGroup


@dataclass(frozen=True)
class LastRow:
    """Share and cost of the operations that one rank was the last to issue."""

    rank: int
    #: Fraction of all operations; each counts once per rank that took part and reported it.
    share: float
    #: Sum over the other ranks of the time from their issue to this rank's issue, or to their own
    #: completion if that came first. Collectives overlap, so the sum can exceed elapsed time.
    cost_s: float


@dataclass(frozen=True)
class SummaryLateRank:
    """The rank that the others wait for, found from summaries alone."""

    rank: int
    #: Time per step for which one waiting rank waits for this rank, on average.
    wait_ms: float
    #: Fraction of all waiting that is waiting for this rank.
    share: float
    #: As ``stragglers.LateRank.p_value``, with blocks of time instead of steps.
    p_value: float
    #: Waiting that this rank caused, summed over the ranks that waited.
    cost_s: float
    #: Entry of ``exposure.ORIGINS`` in which the rank's own work exceeds the others' work most.
    phase: str
    #: Fraction of the rank's excess of own work that lies in ``phase``.
    phase_share: float
    #: As ``stragglers.LateRank.waiting_ranks``.
    waiting_ranks: int = 0
    #: Other ranks that are waited for, mostly because they waited for this rank themselves.
    through: tuple[int, ...] = ()


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of one histogram of times, accurate to 1 %; NaN if the histogram is empty."""

    #: Number of values.
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    #: Sum of the values; exact.
    total_ms: float


@dataclass(frozen=True)
class OperationRow:
    """Figures of one kind of operation over all ranks."""

    #: c10d's name; "other" for operations for which the summary had no room.
    op: str
    #: Name of the process group, the same on all ranks; empty if the row adds up rare groups and
    #: sizes, for which the summary had no room.
    group: str
    #: Size class: sizes in bytes are below this, and at least half of it. 0 for no bytes, and for a
    #: row that adds up rare groups and sizes.
    below_bytes: int
    #: Number of operations, summed over the ranks that issued them.
    count: int
    #: Sum over these operations of the larger of input and output.
    bytes: int
    failed: int
    unfinished: int
    #: From issue to completion.
    duration: Quantiles
    #: Time in ``Work.wait``, over the calls that blocked.
    wait: Quantiles
    #: For collectives whose last arrival is known: time from issue to the last rank's issue. The
    #: next field, ``transfer``, is the time from the last rank's issue to completion; with gloo, it
    #: includes the time in gloo's queue.
    until_last: Quantiles
    transfer: Quantiles
    #: nccl-tests' algorithm bandwidth: mean size divided by mean ``transfer``. The next field is
    #: its bus bandwidth: algorithm bandwidth times bus factor. NaN without ``transfer``, and for
    #: gather and scatter, whose size a summary does not keep.
    algbw_gb_per_s: float
    busbw_gb_per_s: float


@dataclass(frozen=True)
class SummaryTiming(FieldGroup):
    """Number, length and parts of the steps of one world size, from the ranks' summaries."""

    #: Smallest number of steps, over the ranks.
    steps: int
    #: Event that ends a step: an entry of ``found_steps.SOURCES``; if ranks differ, the least
    #: certain entry.
    steps_end: str
    #: Median over all steps of all ranks, within 1 %; the next field is their 95th percentile.
    step_median_ms: float
    step_p95_ms: float
    #: This and the next fields up to ``step_ms`` are exact means over all steps of all ranks; the
    #: parts add up to ``step_ms``.
    data_ms: float
    forward_ms: float
    backward_ms: float
    exposed_ms: float
    optimizer_ms: float
    other_ms: float
    step_ms: float
    exposed_p95_ms: float
    #: Mean exposed time before the arrival that ended the waiting, over the steps for which this
    #: arrival is known; the next field is the mean exposed time after it. NaN without such steps.
    exposed_wait_ms: float
    exposed_transfer_ms: float
    #: Number of steps for which the arrival that ended the waiting is not known.
    unsplit_steps: int


@dataclass(frozen=True)
class SummaryArrivals(FieldGroup):
    """For how many collectives the ranks know the last arrival."""

    #: Number of collectives whose last arrival is not known, summed over the ranks.
    arrivals_unknown: int
    #: Number of collectives in ``arrivals_unknown`` whose group has no place in the ranks' shared
    #: memory.
    arrivals_without_place: int
    #: Number of collectives in ``arrivals_unknown`` whose group has more than 256 ranks on several
    #: hosts, and in which a rank need not wait for all others, such as a broadcast.
    arrivals_unlisted: int
    #: Number of collectives whose last arrival is known, summed over the ranks.
    arrivals_known: int
    #: Number of collectives in ``arrivals_known`` for which no arrival of some ranks on other hosts
    #: was received, so that one of these ranks may have come last.
    arrivals_partial: int
    #: Number of hosts with ranks; the ranks of a host share memory and a clock.
    machines: int
    #: True if the offset of every host's clock to rank 0's is known.
    clocks_compared: bool
    #: Hosts exchange arrivals along a tree. This is the number of other hosts in the tree to which
    #: a host belongs, for the host with the fewest; 0 if a host is cut off.
    hosts_heard: int
    #: Number of datagrams with arrivals that the network refused.
    unsent_datagrams: int
    #: Number of collectives whose arrivals a host did not pass on, for lack of room.
    skipped_collectives: int
    #: Bound on the error of arrivals, in µs: 95th percentile, within 1 %, over the collectives
    #: between hosts whose last arrival is known. The next field is the maximum. NaN if there are no
    #: such collectives.
    arrival_clock_error_p95_us: float
    arrival_clock_error_us: float


@dataclass(frozen=True)
class SummaryResult:
    """Figures of one world size since always-on mode began, without each rank's first step."""

    world_size: int
    #: Ranks that left a summary.
    ranks: tuple[int, ...]
    #: Longest time that a rank's summary covers.
    covered_s: float
    timing: SummaryTiming
    arrivals: SummaryArrivals
    last: tuple[LastRow, ...]
    late_rank: SummaryLateRank | None
    #: Several ranks that work longer than all others; None if there are none.
    slower_ranks: SlowerRanks | None
    #: Sorted by total time from issue to completion, largest first.
    operations: tuple[OperationRow, ...]
    #: Number of operations of rare groups and sizes, which are counted in rows without a group.
    moved: int
    dropped_records: int
    #: Number of completions and waits whose issue was not seen.
    unmatched: int
    #: Sentences on traces that could not be read, or could not be read to their end.
    problems: tuple[str, ...]
    cross_checks: tuple[CrossCheck, ...]
    #: Ranks or parameters that are trained without an exchange of gradients, see
    #: ``Communication.apart``.
    apart: TrainedApart | None = None
