"""Which bucket a collective belongs to: by the hook, by a compressor's work, by DDP's order."""

from __future__ import annotations

from typing import Any

import pytest

from commprof.analysis.align.bucket_numbers import bucket_numbers
from commprof.trace import columns
from commprof.trace.schema import Kind
from tests.support.builders.traces import MS, THREAD, Rank


def numbers(rank: Rank) -> list[int]:
    trace = rank.trace()
    return bucket_numbers(trace, columns.collectives(trace)).tolist()


def hooked(rank: Rank, op_id: int, index: int, ready: int, launched: int) -> None:
    """A bucket that reached the hook, as the C++ capture writes it."""
    rank._add(Kind.BUCKET, ready, op_id=op_id, aux=index, value=launched, thread=THREAD)


def one_pass(rank: Rank, *sizes: int) -> None:
    """All-reduces of these sizes in one backward pass, which ends with DDP's finalisation."""
    for i, size in enumerate(sizes):
        rank.collective(i, (10 + i) * MS, (20 + i) * MS, bytes=size, graph_task=3)
    rank.finalize(30 * MS, 40 * MS, cpu=0, graph_task=3)


def test_what_the_hook_issues_is_its_buckets() -> None:
    rank = Rank()
    # Launched in another order than they are numbered in; a call between them is of neither.
    hooked(rank, 100, 1, 10 * MS, 12 * MS)
    rank.collective(0, 11 * MS, 20 * MS, graph_task=3)
    rank.collective(1, 13 * MS, 20 * MS, graph_task=3)
    hooked(rank, 101, 0, 14 * MS, 16 * MS)
    rank.collective(2, 15 * MS, 20 * MS, graph_task=3)
    rank.collective(3, 15 * MS, 20 * MS, graph_task=3, thread=THREAD + 5)
    rank.finalize(30 * MS, 40 * MS, cpu=0, graph_task=3)
    assert numbers(rank) == [1, -1, 0, -1]


def test_a_compressors_thread_works_for_a_bucket() -> None:
    rank = Rank()
    hooked(rank, 100, 4, 10 * MS, 11 * MS)
    worker = THREAD + 5
    rank._add(Kind.SPAN, 20 * MS, op_id=100, aux=1, value=30 * MS, thread=worker)
    rank.collective(0, 25 * MS, 30 * MS, op="all_gather", thread=worker)
    rank.collective(1, 31 * MS, 32 * MS, op="all_gather", thread=worker)
    assert numbers(rank) == [4, -1]


def test_the_python_captures_bucket_and_exchange_are_one_operation() -> None:
    rank = Rank()
    op_id = rank.collective(0, 10 * MS, 20 * MS, graph_task=3)
    hooked(rank, op_id, 2, 30 * MS, 31 * MS)
    assert numbers(rank) == [2]


def test_without_a_hook_the_order_in_the_pass_tells() -> None:
    rank = Rank()
    one_pass(rank, 8, 4, 4)
    rank.collective(9, 50 * MS, 60 * MS, bytes=4)  # the loss's, outside of any pass
    rank.collective(10, 70 * MS, 80 * MS, bytes=4, graph_task=5)  # a pass that DDP does not end
    assert numbers(rank) == [0, 1, 2, -1, -1]


def test_two_models_in_one_pass_leave_it_open() -> None:
    rank = Rank()
    one_pass(rank, 8, 4)
    rank.finalize(41 * MS, 42 * MS, cpu=0, graph_task=3)
    assert numbers(rank) == [-1, -1]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ({"rebuilt_bucket_sizes": "4, 8"}, [0, 1]),
        ({"bucket_sizes": "8, 4", "rebuilt_bucket_sizes": "12"}, [0, 1]),
        ({"rebuilt_bucket_sizes": "8"}, [-1, -1]),  # the other one is not DDP's
        ({}, [0, 1]),
    ],
)
def test_ddps_log_says_whether_another_all_reduce_is_among_them(
    log: dict[str, Any], expected: list[int]
) -> None:
    rank = Rank(witnesses={"begin_monotonic_ns": 2**62, "ddp_logs": [log]})
    one_pass(rank, 8, 4)
    assert numbers(rank) == expected
