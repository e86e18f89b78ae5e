from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from commprof import _native
from commprof.analysis.align.arrivals import match_arrivals
from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.align.matching import bucket_numbers, last_awaited, match, needed_ranks
from commprof.trace import columns
from commprof.trace.schema import FLAG_DEVICE_ASYNC, OPS, SOME_WAIT, Kind
from tests.support.builders.traces import MS, THREAD, Rank

BROADCAST, REDUCE, GATHER, SCATTER = map(OPS.index, ("broadcast", "reduce", "gather", "scatter"))


def awaited(
    issue: list[int], end: list[int], op: str, root: int = 0, backend: str = "gloo"
) -> list[int]:
    ranks = [Rank(rank, len(issue)) for rank in range(len(issue))]
    for rank, begun, done in zip(ranks, issue, end, strict=True):
        rank.backend = backend
        rank.collective(0, begun, done, op=op, aux=root)
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    matching = match(traces, tables)
    rows = last_awaited(matching, traces, tables, np.array(issue))
    return [int(row) for row in rows]  # the row is the rank, as each rank has one row


@pytest.mark.parametrize(
    ("op", "root", "waiting"),
    [
        # These waits were measured with gloo on 6 ranks: late rank -> ranks that waited for it.
        (BROADCAST, 0, {0: [1, 2, 3, 4, 5], 1: [0, 3, 5], 2: [0], 3: [1], 4: [0], 5: [1]}),
        (BROADCAST, 1, {0: [2], 1: [0, 2, 3, 4, 5], 2: [0, 1, 4], 3: [1], 4: [2], 5: [1]}),
        (GATHER, 1, {0: [1], 1: [0, 2, 3, 4, 5], 2: [1], 3: [1], 4: [1], 5: [1]}),
        (SCATTER, 0, {0: [1, 2, 3, 4, 5], 1: [0], 2: [0], 3: [0], 4: [0], 5: [0]}),
        (REDUCE, 1, {late: [rank for rank in range(6) if rank != late] for late in range(6)}),
    ],
)
def test_needed_ranks_match_the_waits_measured_with_gloo(
    op: int, root: int, waiting: dict[int, list[int]]
) -> None:
    needs = needed_ranks(op, root, 6, True)
    for late, ranks in waiting.items():
        assert [rank for rank in np.flatnonzero(needs[:, late]) if rank != late] == ranks


@pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")
@pytest.mark.parametrize("size", range(1, 10))
def test_always_on_mode_in_cpp_needs_the_same_ranks_as_python(size: int) -> None:
    assert _native.native is not None
    ranks = range(size)
    for op, root, is_gloo in itertools.product(SOME_WAIT, ranks, (False, True)):
        found = [
            [_native.native.needs(op, root, is_gloo, size, rank, other) for other in ranks]
            for rank in ranks
        ]
        assert found == needed_ranks(op, root, size, is_gloo).tolist(), (op, root, is_gloo)


def test_broadcast_ranks_that_do_not_need_a_later_leaf_wait_for_the_late_root() -> None:
    # In gloo's broadcast on 4 ranks, only rank 1 sends to rank 3.
    assert awaited([20, 5, 5, 50], [30, 55, 30, 55], "broadcast") == [0, 3, 0, 3]


def test_a_late_broadcast_leaf_delays_only_the_ranks_that_need_it() -> None:
    assert awaited([20, 5, 25, 5], [60, 60, 60, 60], "broadcast") == [2, 0, 2, 0]


def test_a_rank_that_arrives_after_another_was_done_did_not_delay_it() -> None:
    # NCCL's route through the ranks is not known, but rank 1 was done before rank 2 arrived.
    assert awaited([20, 5, 50], [22, 25, 55], "broadcast", backend="nccl") == [0, 0, 2]


@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_in_gather_and_scatter_only_the_root_waits_for_all_ranks(op: str) -> None:
    assert awaited([5, 10, 40, 7], [50, 50, 50, 50], op, root=1) == [1, 2, 2, 1]


def test_in_a_collective_without_root_all_ranks_wait_for_the_last_arrival() -> None:
    assert awaited([5, 40, 7], [50, 50, 50], "all_reduce") == [1, 1, 1]


def test_with_unknown_ends_all_ranks_count_as_waiting_for_the_last_arrival() -> None:
    assert awaited([5, 10, 40], [0, 0, 0], "reduce") == [2, 2, 2]


def test_ranks_with_different_roots_are_still_matched() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for root, rank in enumerate(ranks):
        rank.collective(0, 10 + root, 20, op="broadcast", aux=root + 7)
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    assert last_awaited(match(traces, tables), traces, tables, np.array([10, 11])).tolist() == [
        1,
        1,
    ]


@pytest.mark.parametrize("seed", range(5))
def test_matching_many_collectives_at_once_equals_matching_each_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    size, calls = int(random.integers(2, 9)), 40
    issue = random.integers(1, 50, (calls, size)) + 100 * np.arange(calls)[:, np.newaxis]
    end = issue + random.integers(0, 60, (calls, size))
    kinds = random.choice(["broadcast", "gather", "reduce", "all_reduce"], calls)
    roots = random.integers(0, size, calls)
    ranks = [Rank(rank, size) for rank in range(size)]
    for call in range(calls):
        for rank in ranks:
            own = int(issue[call, rank.rank]), int(end[call, rank.rank])
            rank.collective(call, *own, op=str(kinds[call]), aux=int(roots[call]))
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    rows = last_awaited(match(traces, tables), traces, tables, issue.T.ravel())
    found = rows.reshape(size, calls) // calls
    for call in range(calls):
        alone = awaited(
            issue[call].tolist(), end[call].tolist(), str(kinds[call]), int(roots[call])
        )
        assert issue[call][found[:, call]].tolist() == issue[call][alone].tolist()


def numbers(rank: Rank) -> list[int]:
    trace = rank.trace()
    return bucket_numbers(trace, columns.collectives(trace)).tolist()


def hooked(rank: Rank, op_id: int, index: int, ready: int, launched: int) -> None:
    rank._add(Kind.BUCKET, ready, op_id=op_id, aux=index, value=launched, thread=THREAD)


def one_pass(rank: Rank, *sizes: int) -> None:
    for i, size in enumerate(sizes):
        rank.collective(i, (10 + i) * MS, (20 + i) * MS, bytes=size, graph_task=3)
    rank.finalize(30 * MS, 40 * MS, cpu=0, graph_task=3)


def test_collectives_issued_in_the_hook_get_its_bucket_number() -> None:
    rank = Rank()
    hooked(rank, 100, 1, 10 * MS, 12 * MS)
    rank.collective(0, 11 * MS, 20 * MS, graph_task=3)
    rank.collective(1, 13 * MS, 20 * MS, graph_task=3)
    hooked(rank, 101, 0, 14 * MS, 16 * MS)
    rank.collective(2, 15 * MS, 20 * MS, graph_task=3)
    rank.collective(3, 15 * MS, 20 * MS, graph_task=3, thread=THREAD + 5)
    rank.finalize(30 * MS, 40 * MS, cpu=0, graph_task=3)
    assert numbers(rank) == [1, -1, 0, -1]


def test_collectives_of_a_compressor_s_thread_get_the_bucket_it_works_on() -> None:
    rank = Rank()
    hooked(rank, 100, 4, 10 * MS, 11 * MS)
    worker = THREAD + 5
    rank._add(Kind.SPAN, 20 * MS, op_id=100, aux=1, value=30 * MS, thread=worker)
    rank.collective(0, 25 * MS, 30 * MS, op="all_gather", thread=worker)
    rank.collective(1, 31 * MS, 32 * MS, op="all_gather", thread=worker)
    assert numbers(rank) == [4, -1]


def test_python_capture_s_bucket_and_its_collective_are_one_operation() -> None:
    rank = Rank()
    op_id = rank.collective(0, 10 * MS, 20 * MS, graph_task=3)
    hooked(rank, op_id, 2, 30 * MS, 31 * MS)
    assert numbers(rank) == [2]


def test_without_a_hook_buckets_are_numbered_in_order_of_issue_in_the_pass() -> None:
    rank = Rank()
    one_pass(rank, 8, 4, 4)
    rank.collective(9, 50 * MS, 60 * MS, bytes=4)
    rank.collective(10, 70 * MS, 80 * MS, bytes=4, graph_task=5)  # DDP does not end this pass
    assert numbers(rank) == [0, 1, 2, -1, -1]


def test_buckets_on_a_device_are_numbered_in_the_order_in_which_the_host_issued_them() -> None:
    rank = Rank()
    for i, ready in enumerate((20, 14, 16)):  # the first bucket's stream is ready last
        flags = FLAG_DEVICE_ASYNC
        op_id = rank.collective(i, (10 + i) * MS, (30 + i) * MS, graph_task=3, flags=flags)
        rank._add(Kind.DEVICE_READY, ready * MS, op_id=op_id)
    rank.finalize(40 * MS, 50 * MS, cpu=0, graph_task=3)
    trace = rank.trace()
    table = columns.collectives(on_device_timeline(trace))
    found = bucket_numbers(trace, table)
    assert found[np.argsort(table.op_id)].tolist() == [0, 1, 2]


def test_all_reduces_of_backward_are_no_buckets_if_no_ddp_model_was_trained() -> None:
    rank = Rank(cross_check_sources={"begin_monotonic_ns": 2**62, "ddp_logs": []})
    one_pass(rank, 8, 4, 4)
    assert numbers(rank) == [-1, -1, -1]


def test_bucket_numbers_are_unknown_if_two_models_share_a_backward_pass() -> None:
    rank = Rank()
    one_pass(rank, 8, 4)
    rank.finalize(41 * MS, 42 * MS, cpu=0, graph_task=3)
    assert numbers(rank) == [-1, -1]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ({"rebuilt_bucket_sizes": "4, 8"}, [0, 1]),
        ({"bucket_sizes": "8, 4", "rebuilt_bucket_sizes": "12"}, [0, 1]),
        # DDP has one bucket, so one of the two all-reduces is not DDP's.
        ({"rebuilt_bucket_sizes": "8"}, [-1, -1]),
        ({}, [0, 1]),
    ],
)
def test_bucket_numbers_are_unknown_if_ddp_s_log_contradicts_the_all_reduce_sizes(
    log: dict[str, Any], expected: list[int]
) -> None:
    rank = Rank(cross_check_sources={"begin_monotonic_ns": 2**62, "ddp_logs": [log]})
    one_pass(rank, 8, 4)
    assert numbers(rank) == expected


def test_of_ranks_that_arrive_last_at_the_same_time_the_lowest_is_named() -> None:
    traces = []
    for number in range(3):
        rank = Rank(number, 3)
        rank.collective(0, 100 if number else 90, 200)
        traces.append(rank.trace())
    tables = [columns.collectives(trace) for trace in traces]
    found = match_arrivals(match(traces, tables), traces, tables)
    assert [each.late_rank.tolist() for each in found] == [[1]] * 3
