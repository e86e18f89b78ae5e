from __future__ import annotations

import math

import numpy as np
import pytest

from commprof.analysis.align.arrivals import match_arrivals
from commprof.analysis.align.clocks import (
    SAME_CLOCK,
    ClockMap,
    clock_error_us,
    fit,
    on_common_clock,
    rank_clocks,
)
from commprof.analysis.align.matching import match
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.schema import Phase
from tests.support.builders.traces import MS, Rank

S = 1_000_000_000


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def fitted(*comparisons: tuple[int, int, int]) -> ClockMap:
    """Each comparison is (time, offset, error) in ns."""
    return fit(*(ints(*column) for column in zip(*comparisons, strict=True)))


def test_offset_is_linear_between_two_comparisons_and_keeps_the_drift_outside() -> None:
    clock = fitted((100 * S, 1000, 10), (110 * S, 2000, 30))
    own = ints(100 * S, 105 * S, 110 * S, 120 * S, 90 * S)
    assert (clock.to_common(own) - own).tolist() == [1000, 1500, 2000, 3000, 0]
    # Outside of the comparisons, the error grows by (10 + 30) ns in 10 s.
    assert clock.error(own) == pytest.approx([10, 20, 30, 30 + 40, 10 + 40])
    assert clock.wander == 0


def test_one_comparison_gives_a_constant_offset_with_growing_error() -> None:
    clock = fitted((100 * S, -3 * MS, 10))
    own = ints(100 * S, 101 * S, 98 * S)
    assert (clock.to_common(own) - own).tolist() == [-3 * MS] * 3
    assert clock.error(own) == pytest.approx([10, 10 + 500_000, 10 + 1_000_000])


def test_two_comparisons_too_close_in_time_give_zero_drift_with_the_largest_error() -> None:
    # Two errors of 200 us, 0.2 s apart, allow a drift of 2,000 ppm; no clock drifts so much.
    clock = fitted((0, 0, 200_000), (S // 5, 100_000, 200_000))
    assert (clock.rate, clock.rate_error) == (0.0, 500e-6)


def test_a_known_drift_is_followed_within_the_stated_error() -> None:
    random = np.random.default_rng(1)
    begin = 10**16  # 115 days in ns: a float is not exact to 1 ns
    at = begin + np.arange(0, 600, 10) * S
    drift = 20e-6

    def truth(own: Ints) -> Ints:
        return -(10**15) + np.rint(drift * (own - begin)).astype(np.int64)

    bound = random.integers(5_000, 40_000, len(at))
    seen = truth(at) + np.rint(bound * random.uniform(-1, 1, len(at))).astype(np.int64)
    clock = fit(at, seen, bound)
    own = begin + np.sort(random.integers(-30 * S, 630 * S, 2000))
    error = np.abs(clock.to_common(own) - own - truth(own))
    assert (error <= clock.error(own) + 1).all()
    assert clock.wander == 0
    assert clock.rate == pytest.approx(drift, abs=80_000 / 590e9)
    assert error.max() < 60_000


def test_mapping_to_the_common_clock_keeps_the_order_of_times() -> None:
    clock = fitted((0, 5 * MS, 10), (10 * S, 6 * MS, 10), (20 * S, 6 * MS + 100, 10))
    own = np.arange(-15 * S, 35 * S, S // 7, dtype=np.int64)
    assert (np.diff(clock.to_common(own)) > 0).all()


def test_a_disturbed_comparison_is_left_out() -> None:
    good = [(i * 10 * S, 1000 + i * 100, 50) for i in range(5)]
    bad = (25 * S, 90_000, 100_000)
    clock, without = fitted(*good, bad), fitted(*good)
    assert clock.at_ns.tolist() == without.at_ns.tolist() == [i * 10 * S for i in range(5)]
    assert clock.to_common(ints(25 * S)).tolist() == [25 * S + 1250]


def test_inaccurate_comparisons_on_a_busy_link_are_ignored_if_better_ones_exist() -> None:
    clock = fitted(
        (0, 0, 12_000),
        (S, 9 * MS, 20 * MS),
        (3 * S, -7 * MS, 15 * MS),
        (7 * S, 8 * MS, 18 * MS),
        (10 * S, 1000, 12_000),
        (12 * S, 5 * MS, 10 * MS),
    )
    assert clock.at_ns.tolist() == [0, 10 * S]
    assert clock.to_common(ints(5 * S)).tolist() == [5 * S + 500]
    # The drift error is (12 + 12) us / 10 s; 12 s is 2 s after the last comparison used.
    assert clock.error(ints(5 * S, 12 * S)) == pytest.approx([12_000, 12_000 + 4_800])


def test_an_inaccurate_comparison_is_used_if_good_ones_are_far_away_in_time() -> None:
    clock = fitted((0, 0, 10_000), (1800 * S, 300_000, 200_000), (3600 * S, 0, 10_000))
    assert clock.at_ns.tolist() == [0, 1800 * S, 3600 * S]


def test_a_changing_drift_widens_the_error() -> None:
    # The drift is 10 us/s, then 30 us/s; the error of each drift is 200 ns / 10 s = 0.02 us/s.
    offsets = [0, 100_000, 200_000, 500_000, 800_000]
    clock = fitted(*((i * 10 * S, offset, 100) for i, offset in enumerate(offsets)))
    assert clock.wander == pytest.approx(20e-6 - 0.04e-6)
    assert clock.error(ints(20 * S, 25 * S)) == pytest.approx([100, 100 + 19.96e-6 * 5 * S])


def test_the_most_accurate_of_several_simultaneous_comparisons_is_used() -> None:
    clock = fitted((S, 50, 40), (S + 10 * MS, 20, 30), (S + 20 * MS, 90, 60), (9 * S, 60, 35))
    assert clock.at_ns.tolist() == [S + 10 * MS, 9 * S]
    assert clock.offset_ns.tolist() == [20, 60]


def test_times_of_ranks_on_the_same_clock_are_unchanged() -> None:
    own = ints(0, 2**62)
    assert SAME_CLOCK.to_common(own) is own
    assert SAME_CLOCK.error(own).tolist() == [0, 0]


def test_the_last_arrival_is_found_across_clocks() -> None:
    # The times in ``issues`` are in ms after 1 s on rank 0's clock.
    ranks = [Rank(rank, 3, boot_id=f"host {rank}") for rank in range(3)]
    issues = ((10, 200), (35, 130), (20, 190))
    for rank, shift, times in zip(ranks, (0, 3 * MS, -50 * MS), issues, strict=True):
        if rank.rank:
            rank.clock(S + shift, -shift, 100)
        for seq, issue in enumerate(times):
            rank.collective(seq, S + shift + issue * MS, 2 * S + shift)
    traces = [rank.trace() for rank in ranks]
    clocks = rank_clocks(traces)
    assert clocks is not None
    moved = on_common_clock(traces, clocks)
    tables = [columns.collectives(trace) for trace in moved]
    for table, arrivals in zip(
        tables, match_arrivals(match(moved, tables), moved, tables), strict=True
    ):
        assert arrivals.late_rank.tolist() == [1, 0]
        assert arrivals.last_arrival_ns.tolist() == [S + 35 * MS, S + 200 * MS]
        assert table.end_ns.tolist() == [2 * S, 2 * S]
    # The comparison is at 1 s. The error grows by 500 ppm until rank 2's last issue, 190 ms later.
    assert clock_error_us(clocks, traces) == pytest.approx(0.1 + 500e-6 * 190e3)


def test_moving_a_trace_to_the_common_clock_changes_only_its_times() -> None:
    rank = Rank(1, 2)
    rank.step(S, 3 * S)
    rank.phase(Phase.BACKWARD, S + 10, S + 500)
    op = rank.collective(0, S + 20, S + 90, graph_task=4)
    rank.wait(op, S + 30, S + 95)
    rank.finalize(S + 100, S + 400, cpu=50)
    trace = rank.trace()
    clock = fitted((S, -1000, 10))
    (moved,) = on_common_clock([trace], [clock])
    assert on_common_clock([trace], [SAME_CLOCK])[0] is trace
    assert columns.steps(moved).begin_ns.tolist() == [S - 1000]
    assert columns.steps(moved).end_ns.tolist() == [3 * S - 1000]
    for before, after in (
        (columns.phases(trace), columns.phases(moved)),
        (columns.waits(trace), columns.waits(moved)),
        (columns.finalizations(trace).span, columns.finalizations(moved).span),
    ):
        assert (after.begin_ns == before.begin_ns - 1000).all()
        assert (after.end_ns == before.end_ns - 1000).all()
        assert after.key.tolist() == before.key.tolist()
    blocked = [columns.finalizations(t).blocked_ns.tolist() for t in (trace, moved)]
    assert blocked == [[250], [250]]
    tables = [columns.collectives(t) for t in (trace, moved)]
    assert tables[1].graph_task.tolist() == tables[0].graph_task.tolist() == [4]


def test_ranks_of_a_host_share_their_comparisons() -> None:
    ranks = [Rank(rank, 4, boot_id=f"host {rank // 2}") for rank in range(4)]
    ranks[2].clock(S, 7, 5)
    clocks = rank_clocks([rank.trace() for rank in ranks])
    assert clocks is not None
    assert [clock.is_same_clock for clock in clocks] == [True, True, False, False]
    assert clocks[2] is clocks[3]
    assert clocks[3].to_common(ints(S)).tolist() == [S + 7]


def test_clocks_are_unknown_if_one_host_was_never_compared() -> None:
    ranks = [Rank(rank, 3, boot_id=f"host {rank}") for rank in range(3)]
    ranks[1].clock(S, 7, 5)
    clocks = rank_clocks([rank.trace() for rank in ranks])
    assert clocks is None
    assert math.isnan(clock_error_us(clocks, []))


def test_ranks_compared_with_rank_0_share_a_clock_even_if_rank_0_left_no_trace() -> None:
    ranks = [Rank(rank, 3, boot_id=f"host {rank}") for rank in (1, 2)]
    ranks[0].clock(S, 7, 5)
    ranks[1].clock(S, 9, 5)
    clocks = rank_clocks([rank.trace() for rank in ranks])
    assert clocks is not None
    assert [clock.to_common(ints(S)).tolist() for clock in clocks] == [[S + 7], [S + 9]]


def test_ranks_without_boot_id_and_time_namespace_are_not_assumed_to_share_a_clock() -> None:
    ranks = [Rank(rank, 3) for rank in range(3)]
    for rank in ranks:
        rank.metadata["machine"].update(boot_id="", time_namespace="")
    ranks[1].clock(S, 7, 5)
    assert rank_clocks([rank.trace() for rank in ranks]) is None
    ranks[2].clock(S, 9, 5)
    clocks = rank_clocks([rank.trace() for rank in ranks])
    assert clocks is not None
    assert [len(clock.at_ns) for clock in clocks] == [0, 1, 1]
