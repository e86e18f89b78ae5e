from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from commprof.analysis.align.matching import match
from commprof.analysis.collectives.kinds import (
    CollectiveRow,
    Spread,
    caller,
    collective_rows,
    stepless_collectives,
)
from commprof.analysis.collectives.traffic import bus_factor, sizes_bytes
from commprof.report.sections import collectives as collectives_table
from commprof.trace import columns, schema
from commprof.trace.schema import Kind, Phase
from tests.support.builders.results import collective, parts, run_result, world
from tests.support.builders.traces import MS, Rank
from tests.support.section_text import tables_text

MB = 1_000_000
DTYPES = ["Byte", "Char"]


def rows(*ranks: Rank, steps: int = 1, shared: bool = True) -> tuple[CollectiveRow, ...]:
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    return collective_rows(match(traces, tables), traces, tables, np.arange(steps), shared)


def spreads(row: CollectiveRow) -> list[float]:
    parts = (row.times.duration, row.times.queue, row.times.wait, row.times.transfer)
    assert all(math.isnan(part.p95_ms) or part.p95_ms >= part.median_ms for part in parts)
    return [part.median_ms for part in parts]


def pair(op: str = "all_reduce") -> list[Rank]:
    ranks = [Rank(rank, 2, dtypes=DTYPES) for rank in range(2)]
    for rank, issue, end in zip(ranks, (10, 14), (30, 34), strict=True):
        rank.step(0, 100 * MS)
        rank.phase(Phase.BACKWARD, 5 * MS, 50 * MS)
        rank.collective(0, issue * MS, end * MS, bytes=8 * MB, op=op)
    return ranks


def test_wait_ends_and_transfer_begins_when_the_last_rank_starts() -> None:
    (row,) = rows(*pair())
    # In ms, duration = queue + wait + transfer: 20 = 0 + 4 + 16 and 20 = 0 + 0 + 20.
    assert spreads(row) == [20.0, 0.0, 2.0, 18.0]
    assert row.times.wait == Spread(2.0, pytest.approx(3.8))
    assert (row.kind.op, row.kind.dtype, row.kind.reduce_op) == ("all_reduce", "Byte", "sum")
    assert (row.kind.group, row.kind.group_size, row.kind.size_bytes) == ("0", 2, (8 * MB, 8 * MB))
    assert (row.calls, row.calls_per_step, row.total_bytes) == (2, 1.0, 16 * MB)
    assert row.phases == (("backward", 2),)
    assert row.times.algbw_gb_per_s == pytest.approx(0.4)
    assert row.times.busbw_gb_per_s == pytest.approx(0.4)  # 2 (n - 1) / n is 1 for two ranks


def test_in_a_job_without_steps_all_collectives_of_the_recording_count() -> None:
    ranks = [Rank(rank, 2, dtypes=DTYPES) for rank in range(2)]
    for rank, issue in zip(ranks, (10, 14), strict=True):
        for turn in range(5):
            begin = (issue + 100 * turn) * MS
            op_id = rank.collective(turn, begin, begin + 20 * MS, bytes=8 * MB)
            rank.wait(op_id, begin, begin + 20 * MS)
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    found = stepless_collectives(2, match(traces, tables), traces, tables, True)
    assert found is not None
    (row,) = found.rows
    assert (row.calls, row.calls_per_step, row.times.exposed_ms) == (10, 5.0, 100.0)
    assert row.times.busbw_gb_per_s == pytest.approx(0.4)
    shown = tables_text(collectives_table.of_stepless, run_result(stepless=(found,)))
    assert shown.startswith("Collectives of 2 ranks in a job without steps, sorted by exposed")
    assert "/rank" in shown
    ranks[1].step(0, 100 * MS)
    traces[1] = ranks[1].trace()
    assert stepless_collectives(2, match(traces, tables), traces, tables, True) is None


def test_calls_of_a_job_without_steps_have_the_phases_of_the_issuing_thread() -> None:
    ranks = [Rank(rank, 2, dtypes=DTYPES) for rank in range(2)]
    for rank in ranks:  # inference calls a model, and nothing ends a step
        for turn in range(5):
            begin = 100 * turn * MS
            rank.phase(Phase.FORWARD, begin, begin + 50 * MS)
            rank.collective(turn, begin + 10 * MS, begin + 20 * MS, bytes=8 * MB)
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    found = stepless_collectives(2, match(traces, tables), traces, tables, True)
    assert found is not None
    assert found.rows[0].phases == (("forward", 10),)


def test_a_queued_collective_starts_when_a_thread_is_free() -> None:
    # The third of three calls gets a thread at 30 ms on rank 0 and at 34 ms on rank 1.
    ranks = pair()
    for rank, issue, end in zip(ranks, (10, 14), (60, 62), strict=True):
        rank.collective(1, issue * MS + 1, end * MS, bytes=8 * MB)
        rank.collective(2, issue * MS + 2, 50 * MS, bytes=2 * MB)
    row = rows(*ranks)[1]
    assert row.kind.size_bytes == (2 * MB, 2 * MB)
    # In ms, rank 0 has 40 = 20 + 4 + 16, and rank 1 has 36 = 20 + 0 + 16.
    assert spreads(row) == pytest.approx([38.0, 20.0, 2.0, 16.0], abs=1e-4)
    assert row.times.algbw_gb_per_s == pytest.approx(2 / 16)


def test_failed_calls_are_counted_but_left_out_of_medians() -> None:
    ranks = pair()
    for rank in ranks:
        rank.step(100 * MS, 200 * MS)
        # Rank 1 times out, so the completion on the last rank is unknown.
        failed = rank.rank == 1
        late = rank.collective(1, 110 * MS, 190 * MS, bytes=8 * MB, failed=failed)
        rank.wait(late, 120 * MS, 190 * MS)
    (row,) = rows(*ranks, steps=2)
    assert (row.calls, row.failed) == (4, 1)
    # The durations are 20, 20 and 80 ms, and their 95th percentile is 74 ms.
    assert row.times.duration == Spread(20.0, pytest.approx(74.0))
    assert row.times.queue == Spread(0.0, 0.0)
    assert row.times.algbw_gb_per_s == pytest.approx(0.4)
    assert row.times.exposed_ms == pytest.approx(70 / 2)


def test_exposed_time_is_the_mean_over_steps_and_ranks() -> None:
    ranks = pair()
    ranks[0].wait(1, 20 * MS, 30 * MS)
    ranks[1].wait(1, 30 * MS, 34 * MS)
    for rank in ranks:
        rank.step(100 * MS, 200 * MS)
    (row,) = rows(*ranks, steps=2)
    assert row.times.exposed_ms == (10 + 4) / 2 / 2
    assert row.calls_per_step == 0.5


def test_collective_rows_count_only_measured_steps() -> None:
    ranks = pair()
    for rank in ranks:
        rank.step(100 * MS, 200 * MS)
        rank.collective(1, 110 * MS, 120 * MS, bytes=5)
        rank.collective(2, 210 * MS, 220 * MS, bytes=5)
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    (row,) = collective_rows(match(traces, tables), traces, tables, np.array([1]), True)
    assert (row.kind.size_bytes, row.calls) == ((5, 5), 2)
    assert (
        collective_rows(match(traces, tables), traces, tables, np.array([], dtype=np.int64), True)
        == ()
    )


def test_without_common_clocks_wait_transfer_and_bandwidth_are_nan() -> None:
    (row,) = rows(*pair(), shared=False)
    assert spreads(row)[:2] == [20.0, 0.0]
    assert all(
        map(math.isnan, [*spreads(row)[2:], row.times.algbw_gb_per_s, row.times.busbw_gb_per_s])
    )


def test_a_call_missing_on_one_rank_has_no_wait_or_transfer_time() -> None:
    (row,) = rows(pair()[0], Rank(1, 2, **{}))
    assert spreads(row)[:2] == [20.0, 0.0]
    assert all(map(math.isnan, spreads(row)[2:]))


def test_a_rank_that_finished_before_the_last_one_started_has_no_wait() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank, issue, end in zip(ranks, (10, 40), (12, 44), strict=True):
        rank.step(0, 100 * MS)
        rank.collective(0, issue * MS, end * MS, bytes=8 * MB, op="broadcast")
    (row,) = rows(*ranks)
    assert spreads(row) == [3.0, 0.0, 0.0, 3.0]
    assert (
        row.times.algbw_gb_per_s == row.times.busbw_gb_per_s == pytest.approx(2.0)
    )  # 8 MB in 4 ms are 2 GB/s
    assert row.kind.reduce_op == ""


def message(sent_ms: int, received_ms: int, waits: dict[int, tuple[int, int]]) -> list[Rank]:
    """``waits`` holds the begin and end of each rank's wait, in ms."""
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.step(0, 100 * MS)
    sizes: dict[str, Any] = {"bytes_in": 6 * MB, "bytes_out": 0}
    send = ranks[0].collective(0, sent_ms * MS, 0, op="send", aux=1, **sizes)
    sizes = {"bytes_in": 0, "bytes_out": 6 * MB}
    receive = ranks[1].collective(0, received_ms * MS, 0, op="recv", aux=0, **sizes)
    for rank, op_id in ((0, send), (1, receive)):
        begin, end = waits[rank]
        ranks[rank].wait(op_id, begin * MS, end * MS)
    return ranks


def test_a_message_has_no_queue_time_and_ends_when_it_is_received() -> None:
    ranks = message(20, 10, {0: (20, 26), 1: (10, 32)})
    by_op = {row.kind.op: row for row in rows(*ranks)}
    assert spreads(by_op["recv"]) == [22.0, 0.0, 10.0, 12.0]
    assert spreads(by_op["send"]) == [6.0, 0.0, 0.0, 6.0]
    for row in by_op.values():
        assert row.kind.size_bytes == (6 * MB, 6 * MB)
        assert row.times.busbw_gb_per_s == row.times.algbw_gb_per_s == pytest.approx(0.5)
        assert row.calls_per_step == 1.0


def test_a_message_received_before_its_wait_began_has_no_known_duration() -> None:
    ranks = message(20, 10, {0: (20, 26), 1: (50, 50)})
    by_op = {row.kind.op: row for row in rows(*ranks)}
    assert math.isnan(by_op["recv"].times.duration.median_ms)
    assert math.isnan(by_op["recv"].times.algbw_gb_per_s)
    assert spreads(by_op["send"])[0] == 6.0


def test_more_than_eight_sizes_of_an_operation_are_merged_into_size_classes() -> None:
    few, many = Rank(), Rank()
    for rank, sizes in ((few, [1, 2, 3, 4, 5, 6, 7, 8] * 2), (many, [1, 2, 3, 4, 5, 6, 7, 8, 9])):
        rank.step(0, 1000)
        for seq, size in enumerate(sizes):
            rank.collective(seq, 10 * seq, 10 * seq + 5, bytes=size)
    assert [row.kind.size_bytes for row in rows(few)] == [(size, size) for size in range(1, 9)]
    assert sorted(row.kind.size_bytes for row in rows(many)) == [(1, 1), (2, 3), (4, 7), (8, 9)]


def test_rows_are_sorted_by_exposed_time_and_then_by_duration() -> None:
    rank = Rank()
    rank.step(0, 1000)
    rank.collective(0, 10, 50, op="broadcast")
    rank.collective(1, 60, 160, op="all_gather")
    rank.wait(rank.collective(2, 170, 190, op="gather"), 175, 190)
    assert [row.kind.op for row in rows(rank)] == ["gather", "all_gather", "broadcast"]


def test_groups_dtypes_and_reductions_have_separate_rows() -> None:
    rank = Rank(groups={1: ("0", 1), 2: ("other", 1)}, dtypes=DTYPES)
    rank.step(0, 1000)
    rank.collective(0, 10, 20, bytes=4, reduce_op=1)
    rank.collective(1, 30, 40, bytes=4, reduce_op=4)
    rank.collective(2, 50, 60, bytes=4, reduce_op=4, dtype=1)
    rank.collective(0, 70, 80, bytes=4, reduce_op=4, group=2)
    found = {(row.kind.group, row.kind.dtype, row.kind.reduce_op) for row in rows(rank)}
    assert found == {
        *[("0", "Byte", "avg"), ("0", "Byte", "max")],
        *[("0", "Char", "max"), ("other", "Byte", "max")],
    }


def test_bus_bandwidth_of_a_single_rank_is_nan() -> None:
    rank = Rank()
    rank.step(0, 100 * MS)
    rank.collective(0, 10 * MS, 20 * MS, bytes=8 * MB)
    (row,) = rows(rank)
    assert row.times.algbw_gb_per_s == pytest.approx(0.8)
    assert math.isnan(row.times.busbw_gb_per_s)


def test_callers_are_sorted_by_their_number_of_calls() -> None:
    rank = Rank()
    torch = "/x/site-packages/torch/distributed/distributed_c10d.py:1 all_reduce"
    rank.stacks = {1: (torch, "train.py:9 sync"), 2: (torch, "train.py:7 step")}
    rank.step(0, 1000)
    for seq, stack in enumerate((1, 2, 2)):
        op_id = rank.collective(seq, 10 * seq, 10 * seq + 5, bytes=4)
        rank._add(Kind.STACK, 10 * seq, op_id=op_id, value=stack)
    (row,) = rows(rank)
    assert row.callers == (("train.py:7 step", 2), ("train.py:9 sync", 1))


def test_the_caller_is_the_innermost_frame_that_is_not_the_framework_s() -> None:
    inside = "/v/lib/site-packages/torch/_tensor.py:3 backward"
    wrapped = "/v/commprof/capture/auto_phases.py:3 inside"
    assert caller((inside, wrapped, "train.py:2 step", "train.py:9 main")) == "train.py:2 step"
    assert caller((inside,)) == inside
    assert caller(()) == ""


@pytest.mark.parametrize(
    ("op", "bytes_in", "bytes_out", "size"),
    [
        ("all_reduce", 8, 8, 8),
        ("all_reduce_coalesced", 8, 8, 8),
        ("broadcast", 8, 8, 8),
        ("reduce", 8, 8, 8),
        ("all_gather", 8, 32, 32),
        ("all_gather_into_tensor", 8, 32, 32),
        ("all_gather_into_tensor_coalesced", 8, 32, 32),
        ("reduce_scatter", 32, 8, 32),
        ("reduce_scatter_tensor", 32, 8, 32),
        ("all_to_all_single", 32, 40, 32),
        ("gather", 8, 0, 32),
        ("gather", 8, 32, 32),
        ("scatter", 0, 8, 32),
        ("scatter", 32, 8, 32),
        ("send", 8, 0, 8),
        ("recv", 0, 8, 8),
        ("barrier", 0, 0, 0),
    ],
)
def test_size_of_an_operation_on_four_ranks(
    op: str, bytes_in: int, bytes_out: int, size: int
) -> None:
    columns = (np.array([value]) for value in (schema.OPS.index(op), bytes_in, bytes_out, 4))
    assert sizes_bytes(*columns).tolist() == [size]


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_reduce_coalesced", 1.5),
        ("all_gather", 0.75),
        ("all_gather_into_tensor_coalesced", 0.75),
        ("reduce_scatter_tensor", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send", 1.0),
        ("recv", 1.0),
    ],
)
def test_bus_bandwidth_factor_of_an_operation_on_four_ranks(op: str, factor: float) -> None:
    assert bus_factor(op, 4) == factor


@pytest.mark.parametrize("op", ["barrier", "monitored_barrier", "other"])
def test_barriers_and_unknown_operations_have_no_bus_factor(op: str) -> None:
    assert math.isnan(bus_factor(op, 4))


def test_exposed_time_that_is_in_no_row_is_shown() -> None:
    found = world(2, parts=parts(exposed_ms=10.0), collectives=(collective(exposed_ms=4.0),))
    assert found.unlisted_exposed_ms == pytest.approx(6.0)
    assert "Exposed time in no row: 6 of 10 ms per step" in tables_text(
        collectives_table.sections, run_result(found)
    )
    found = world(2, parts=parts(exposed_ms=10.0), collectives=(collective(exposed_ms=9.9),))
    assert "in no row" not in tables_text(collectives_table.sections, run_result(found))
    found = world(
        2,
        parts=parts(exposed_ms=10.0),
        collectives=(collective(exposed_ms=4.0),),
        sampled_steps=((10, 19),),  # other steps may have more exposed time
    )
    assert "in no row" not in tables_text(collectives_table.sections, run_result(found))
