from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.align.arrivals import Arrivals, match_arrivals
from commprof.analysis.align.matching import match
from commprof.analysis.step.exposure import exposures
from commprof.analysis.step.waiting import split
from commprof.trace import columns
from tests.support.builders.traces import MS, THREAD, Rank


def waiting(ranks: list[Rank], of: int = 0) -> tuple[float, float, set[int]]:
    """Returns a rank's wait and transfer in ms, and the ranks for which it waited."""
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    arrivals = match_arrivals(match(traces, tables), traces, tables)[of]
    trace = traces[of]
    found = exposures(tables[of], columns.waits(trace), columns.finalizations(trace), THREAD)
    result = split(found, tables[of], arrivals)
    wait = float(result.wait_ns.sum())
    return wait / MS, (float(found.waited_ns.sum()) - wait) / MS, set(result.culprit.tolist())


def backward(rank: Rank, issues_ms: list[float], ends_ms: list[float], done_ms: float) -> Rank:
    for seq, (issue, end) in enumerate(zip(issues_ms, ends_ms, strict=True)):
        rank.collective(seq, int(issue * MS), int(end * MS), bytes=8, graph_task=0)
    rank.finalize(int(issues_ms[-1] * MS), int(done_ms * MS), cpu=0)
    return rank


def test_a_wait_is_split_into_wait_and_transfer_at_the_last_arrival() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank, issue in zip(ranks, (10, 25), strict=True):
        rank.wait(rank.collective(0, issue * MS, 30 * MS), (issue + 2) * MS, 30 * MS)
    assert waiting(ranks, 0) == (13.0, 5.0, {1})
    assert waiting(ranks, 1) == (0.0, 3.0, {1})


def test_a_receiver_waits_until_its_message_is_sent() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    send = ranks[0].collective(0, 30 * MS, 0, op="send", aux=1, bytes_in=8, bytes_out=0)
    receive = ranks[1].collective(0, 10 * MS, 0, op="recv", aux=0, bytes_in=0, bytes_out=8)
    ranks[0].wait(send, 30 * MS, 34 * MS)
    ranks[1].wait(receive, 10 * MS, 40 * MS)
    assert waiting(ranks, 0) == (0.0, 4.0, {0})
    assert waiting(ranks, 1) == (20.0, 10.0, {0})


def test_a_message_issued_in_backward_does_not_count_as_a_bucket() -> None:
    # DDP's finalisation does not wait for messages, such as those of a pipeline.
    ranks = [
        backward(Rank(0, 2), [10, 14], [12.5, 36.5], 36.5),
        backward(Rank(1, 2), [10, 34], [12.5, 36.5], 36.5),
    ]
    message = ranks[0].collective(0, 35 * MS, 0, graph_task=0, op="send", aux=1)
    ranks[0].wait(message, 36 * MS, 36 * MS)
    assert waiting(ranks, 0) == (pytest.approx(20.0), pytest.approx(2.5), {-1, 1})


def test_waiting_for_a_late_rank_counts_once_the_previous_bucket_is_transferred() -> None:
    ranks = [
        backward(Rank(0, 2), [10, 14], [12.5, 36.5], 36.5),
        backward(Rank(1, 2), [10, 34], [12.5, 36.5], 36.5),
    ]
    assert waiting(ranks, 0) == (pytest.approx(20.0), pytest.approx(2.5), {1})
    assert waiting(ranks, 1) == (pytest.approx(0.0), pytest.approx(2.5), {1})


def test_a_late_rank_costs_nothing_while_a_previous_bucket_is_in_transfer() -> None:
    ranks = [
        backward(Rank(0, 2), [10, 14], [210, 215], 215),
        backward(Rank(1, 2), [10, 34], [210, 215], 215),
    ]
    wait, wire, _ = waiting(ranks, 0)
    assert (wait, wire) == (pytest.approx(0.0), pytest.approx(201.0))


def test_a_late_rank_costs_nothing_until_all_previous_buckets_are_transferred() -> None:
    ranks = [
        backward(Rank(0, 2), [10, 12, 14], [100, 40, 110], 110),
        backward(Rank(1, 2), [11, 12, 60], [100, 40, 110], 110),
    ]
    assert waiting(ranks, 0) == (pytest.approx(0.0), pytest.approx(96.0), {1})


def test_a_rank_that_is_late_with_every_bucket_is_waited_for() -> None:
    ranks = [
        backward(Rank(0, 2), [10, 14], [32.5, 36.5], 36.5),
        backward(Rank(1, 2), [30, 34], [32.5, 36.5], 36.5),
    ]
    assert waiting(ranks, 0) == (pytest.approx(20.0), pytest.approx(2.5), {1})


def test_waiting_is_traced_back_over_queued_buckets_to_the_first_late_one() -> None:
    ranks = [
        backward(Rank(0, 2), [10, 12, 14], [40, 50, 60], 60),
        backward(Rank(1, 2), [30, 32, 34], [40, 50, 60], 60),
    ]
    assert waiting(ranks, 0) == (pytest.approx(16.0), pytest.approx(30.0), {1})


def test_of_ranks_late_for_different_buckets_the_one_that_cost_time_is_named() -> None:
    ranks = [
        backward(Rank(0, 3), [10, 12], [22, 44], 44),
        backward(Rank(1, 3), [20, 24], [22, 44], 44),
        backward(Rank(2, 3), [12, 40], [22, 44], 44),
    ]
    assert waiting(ranks, 0) == (pytest.approx(28.0), pytest.approx(4.0), {2})


def test_blocked_time_after_the_last_bucket_is_not_waiting_for_a_rank() -> None:
    ranks = [
        backward(Rank(0, 2), [10], [32], 50),
        backward(Rank(1, 2), [30], [32], 32),
    ]
    assert waiting(ranks, 0) == (pytest.approx(20.0), pytest.approx(20.0), {1})


def test_wait_and_transfer_are_unknown_if_the_other_rank_is_missing() -> None:
    rank = backward(Rank(0, 2), [10, 14], [12, 36], 36)
    wait, wire, culprits = waiting([rank])
    assert np.isnan(wait)
    assert np.isnan(wire)
    assert culprits == {-1}


def test_the_wait_of_a_backward_pass_with_an_unmatched_bucket_is_unknown() -> None:
    ranks = [backward(Rank(0, 2), [10, 14], [12, 36], 36), Rank(1, 2)]
    ranks[1].collective(1, 14 * MS, 36 * MS, graph_task=0)
    assert np.isnan(waiting(ranks, 0)[0])


def test_an_unmatched_wait_of_zero_length_leaves_the_sums_known() -> None:
    rank = Rank(0, 2)
    rank.wait(rank.collective(0, 10, 20), 30, 30)
    assert waiting([rank])[:2] == (0.0, 0.0)


def test_a_single_rank_waits_for_no_other_rank() -> None:
    rank = backward(Rank(), [10, 14], [12, 20], 20)
    assert waiting([rank]) == (pytest.approx(0.0), pytest.approx(6.0), {0})


def compressed(rank: Rank, ready_ms: list[float], done_ms: list[float], size: int = 2) -> Rank:
    """Adds a backward pass whose compressed buckets go to each other rank in messages.

    A bucket is sent once the bucket is ready and the previous bucket is done.
    """
    before = 0.0
    for index, (ready, done) in enumerate(zip(ready_ms, done_ms, strict=True)):
        begin, end = max(ready, before), int(done * MS)
        for peer in set(range(size)) - {rank.rank}:
            for op, sent in (("send", 8), ("recv", 0)):
                sizes = {"bytes_in": sent, "bytes_out": 8 - sent}
                at = int((begin + 0.1) * MS)
                message = rank.collective(index, at, 0, graph_task=0, op=op, aux=peer, **sizes)
                rank.wait(message, end, end, thread=THREAD + 2)
        times = [ready, begin, begin + 0.1, done, done, done]
        rank.compressed(index, 8, tuple(int(x * MS) for x in times), seq=index)
        before = done
    rank.finalize(int(ready_ms[-1] * MS), int(done_ms[-1] * MS), cpu=0)
    return rank


@pytest.mark.parametrize("size", [2, 3])
def test_a_compressed_bucket_waits_for_the_gradients_of_the_last_rank(size: int) -> None:
    late = size - 1
    ranks = [compressed(Rank(rank, size), [10, 14], [31, 32], size) for rank in range(late)]
    ranks.append(compressed(Rank(late, size), [30, 30.5], [31, 32], size))
    assert waiting(ranks, 0) == (pytest.approx(16.0), pytest.approx(2.0), {late})
    assert waiting(ranks, late) == (pytest.approx(0.0), pytest.approx(1.5), {late})


def test_waits_for_compressed_buckets_missing_on_a_rank_are_unknown() -> None:
    ranks = [compressed(Rank(0, 2), [10], [31]), compressed(Rank(1, 2), [30], [31])]
    ranks[1] = Rank(1, 2)
    wait, _, culprits = waiting(ranks, 0)
    assert np.isnan(wait)
    assert culprits == {-1}


def test_equal_buckets_of_two_models_are_matched_in_order() -> None:
    ranks = []
    for number, (first, second) in enumerate([(10.5, 12.0), (10.0, 20.0)]):
        rank = Rank(number, 2)
        for ready, done in ((first, 11.0), (second, 22.0)):
            times = [ready, ready, ready, done, done, done]
            rank.compressed(0, 8, tuple(int(x * MS) for x in times), seq=0)
        rank.finalize(12 * MS, 22 * MS, cpu=0)
        ranks.append(rank)
    assert arrivals_of(ranks)[0].buckets.late_rank.tolist() == [0, 1]


def arrivals_of(ranks: list[Rank]) -> list[Arrivals]:
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    return match_arrivals(match(traces, tables), traces, tables)
