from __future__ import annotations

import pytest

from commprof.analysis.collectives import mismatches as module
from commprof.analysis.collectives.mismatches import (
    Issued,
    MismatchFinder,
    issue_rows,
    issued_of,
    mismatch_of,
    mismatches_by_group,
    usual_after,
    with_lines,
)
from commprof.trace import columns
from commprof.trace.schema import FLAG_SPARSE, NO_SEQ, UNKNOWN_REDUCE_OP
from tests.support.builders.traces import Rank

DTYPES = ["Byte", "Char", "Short", "Int", "Long", "Half", "Float"]


def ranks(count: int = 3) -> list[Rank]:
    made = [Rank(rank, count, dtypes=DTYPES) for rank in range(count)]
    for rank in made:
        for seq in range(2):
            rank.collective(seq, 10 + seq, 20 + seq, bytes=8, dtype=6)
    return made


def mismatches(*made: Rank) -> tuple[list[str], int]:
    traces = [rank.trace() for rank in made]
    found, differing = mismatches_by_group(traces, [columns.collectives(trace) for trace in traces])
    finder = MismatchFinder()
    for trace in traces:
        for row in issue_rows(trace.records):
            one = trace.groups[row["group"]]
            issued = issued_of(row, trace.metadata["dtypes"])
            finder.add(trace.rank, one.name, one.size, row["seq"], issued, row["timestamp_ns"])
    finder.poll(last=True)
    live = {(one.group, one.seq): one.odd_ranks for one in finder.found}
    assert live == {(one.group, one.seq): one.odd_ranks for one in found}
    return [one.sentence for one in found], sum(map(len, differing.values()))


def test_equal_collectives_on_all_ranks_are_no_mismatch() -> None:
    assert mismatches(*ranks()) == ([], 0)
    assert mismatches_by_group([], []) == ((), {})


def test_a_mismatch_shows_both_values_and_names_the_odd_rank() -> None:
    made = ranks()
    for rank in made:
        size, dtype = (16, 5) if rank.rank == 1 else (8, 6)
        rank.collective(2, 30, 40, bytes=size, dtype=dtype)
        rank.collective(3, 50, 60, bytes=size, dtype=dtype)
    sentences, count = mismatches(*made)
    assert sentences == [
        "Collective 2 of group '0' is not the same on all ranks: rank 1 issued an all_reduce(sum) "
        "of 16 bytes as Half where ranks 0, 2 issued an all_reduce(sum) of 8 bytes as Float; "
        "rank 1 differs from the majority"
    ]
    assert count == 2
    traces = [rank.trace() for rank in made]
    (first,), _ = mismatches_by_group(traces, [columns.collectives(trace) for trace in traces])
    assert first.odd_ranks == (1,)


def test_a_mismatch_names_the_lines_whose_stacks_were_recorded() -> None:
    made = ranks(2)
    for rank in made:
        rank.stacks = {4: ("/site-packages/torch/x.py:1 f", f"/me/train.py:{7 + rank.rank} step")}
        rank.stack(rank.collective(2, 30, 40, bytes=8 + rank.rank, dtype=6), 4)
    (sentence,), _ = mismatches(*made)
    assert "rank 1 issued an all_reduce(sum) of 9 bytes as Float (train.py:8) where" in sentence


def test_a_mismatch_omits_the_reduction_if_it_was_not_recorded() -> None:
    made = ranks(2)
    for rank in made:
        rank.collective(2, 30, 40, bytes=8 + rank.rank, dtype=6, reduce_op=UNKNOWN_REDUCE_OP)
    (sentence,), _ = mismatches(*made)
    assert (
        "rank 1 issued an all_reduce of 9 bytes as Float where rank 0 issued an all_reduce of 8 "
        "bytes as Float; which rank is wrong cannot be told"
    ) in sentence


def test_different_operations_reductions_or_roots_are_mismatches() -> None:
    for fields in (
        ({"op": "broadcast"}, {"op": "all_reduce"}),
        ({"reduce_op": 0}, {"reduce_op": 3}),
        ({"op": "broadcast", "aux": 0}, {"op": "broadcast", "aux": 1}),
    ):
        made = ranks(2)
        for rank, own in zip(made, fields, strict=True):
            rank.collective(2, 30, 40, bytes=8, dtype=6, **own)  # type: ignore[arg-type]
        sentences, count = mismatches(*made)
        assert (len(sentences), count) == (1, 1), fields


def test_sizes_and_dtypes_that_may_differ_between_ranks_are_no_mismatch() -> None:
    made = ranks(2)
    for rank in made:
        uneven = 8 * (1 + rank.rank)
        rank.collective(2, 30, 40, op="all_to_all_single", bytes=uneven, dtype=6)
        rank.collective(3, 31, 41, op="all_gather", bytes_in=uneven, bytes_out=24, dtype=6)
        rank.collective(4, 32, 42, op="gather", bytes_in=8, bytes_out=16 * rank.rank, dtype=6)
        rank.collective(5, 33, 43, op="barrier", dtype=rank.rank)
        rank.collective(0, 34, 44, op="send", aux=1 - rank.rank, bytes=uneven)
        rank.collective(6, 35, 45, bytes=uneven, dtype=6, flags=FLAG_SPARSE)
    assert mismatches(*made) == ([], 0)


def test_unknown_operations_without_a_sequence_number_are_no_mismatch() -> None:
    made = ranks(2)
    for rank in made:
        for call in range(2):
            size = 8 * (1 + call + rank.rank)
            rank.collective(NO_SEQ, 30 + call, 40 + call, op="other", bytes=size, dtype=6)
    assert mismatches(*made) == ([], 0)


SMALL, LARGE = (Issued("all_reduce", "Float", "sum", size, -1) for size in (8, 16))


def test_the_live_finder_compares_each_collective_with_one_other_rank_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Issued] = []
    equal = Issued.__eq__

    def counted(one: Issued, other: object) -> bool:
        compared.append(one)
        return equal(one, other)

    monkeypatch.setattr(Issued, "__eq__", counted)
    finder = MismatchFinder()
    for rank in range(100):
        finder.add(rank, "0", 100, 0, LARGE if rank == 50 else SMALL, rank)
    assert len(compared) <= 100
    (told,) = finder.poll()
    assert told.odd_ranks == (50,)


def test_the_live_finder_reports_each_group_once_and_bounds_its_memory() -> None:
    finder = MismatchFinder()
    for rank in (0, 1):
        finder.add(rank, "0", 2, 0, SMALL, 1 + rank)
    assert finder.poll() == []
    finder.add(0, "0", 2, 1, SMALL, 3)
    finder.add(1, "0", 2, 1, LARGE, 4)
    (told,) = finder.poll()
    assert told.issue_ns == ((0, 3), (1, 4))
    assert told.odd_ranks == (0, 1)
    finder.add(0, "0", 2, 2, SMALL, 5)
    finder.add(1, "0", 2, 2, LARGE, 6)
    assert finder.poll() == []
    assert finder.count == 2
    for seq in range(10_000):
        finder.add(0, "1", 2, seq, SMALL, seq)
    assert len(finder._open) <= 4097


def test_the_live_finder_waits_for_all_ranks_before_it_names_the_odd_one() -> None:
    finder = MismatchFinder()
    finder.add(0, "0", 3, 0, SMALL, 1)
    finder.add(1, "0", 3, 0, LARGE, 2)
    assert finder.poll() == []
    finder.add(2, "0", 3, 0, SMALL, 3)
    assert [one.odd_ranks for one in finder.poll()] == [(1,)]
    assert finder.poll(last=True) == []


def test_the_live_finder_does_not_wait_for_a_rank_that_never_comes() -> None:
    finder = MismatchFinder()
    finder.add(0, "0", 3, 0, SMALL, 1)
    finder.add(1, "0", 3, 0, LARGE, 2)
    assert finder.poll() == []
    assert [one.odd_ranks for one in finder.poll()] == [(0, 1)]
    finder.add(2, "0", 3, 0, SMALL, 3)
    assert finder.poll(last=True) == []
    assert finder.count == 1


OTHER = Issued("barrier", "", "", -1, -1)


@pytest.mark.parametrize(
    ("earlier", "usual"),
    [
        ([], None),
        ([SMALL, LARGE], None),
        ([SMALL, LARGE] * 2, None),
        ([SMALL, LARGE] * 3, SMALL),
        ([SMALL] * 20, SMALL),
        ([SMALL, SMALL, SMALL, OTHER] * 4, SMALL),
        ([*[SMALL, SMALL, SMALL, OTHER] * 4, SMALL, SMALL, SMALL], OTHER),
        ([SMALL, LARGE, SMALL, OTHER, SMALL, LARGE, SMALL, OTHER, OTHER, SMALL], None),
    ],
)
def test_what_is_usual_at_a_place_is_what_followed_there_each_time(
    earlier: list[Issued], usual: Issued | None
) -> None:
    assert usual_after(earlier) == usual


def test_two_ranks_are_told_apart_by_what_they_issued_in_earlier_steps() -> None:
    made = [Rank(rank, 2, dtypes=DTYPES) for rank in range(2)]
    for rank in made:
        sizes = [8, 8, 16] * 4 + ([8, 16] if rank.rank == 1 else [8, 8])
        for seq, size in enumerate(sizes):
            rank.collective(seq, 10 * seq + 1, 10 * seq + 5, bytes=size, dtype=6)
    # The helper asserts that the live finder finds the same.
    mismatches(*made)
    traces = [rank.trace() for rank in made]
    (first,), _ = mismatches_by_group(traces, [columns.collectives(trace) for trace in traces])
    assert (first.seq, first.told_ranks, first.odd_ranks) == (13, (1,), (1,))
    assert first.difference == (
        "rank 1 issued an all_reduce(sum) of 16 bytes as Float where rank 0 issued an "
        "all_reduce(sum) of 8 bytes as Float; rank 1 differs from its own earlier steps"
    )


def test_ranks_of_which_no_majority_and_no_earlier_step_tells_are_not_told() -> None:
    made = ranks(4)
    for rank in made:
        rank.collective(2, 30, 40, bytes=8 * (1 + rank.rank // 2), dtype=6)
    traces = [rank.trace() for rank in made]
    (first,), _ = mismatches_by_group(traces, [columns.collectives(trace) for trace in traces])
    assert (first.told_ranks, first.odd_ranks) == ((), (0, 1, 2, 3))
    assert first.difference.endswith("; which rank is wrong cannot be told")


def test_lines_are_said_if_all_ranks_of_a_collective_share_one() -> None:
    lines = {0: "a.py:1", 1: "a.py:2", 2: "a.py:1", 3: "b.py:1"}
    issued = {0: SMALL, 1: OTHER, 2: SMALL, 3: SMALL}
    differing = mismatch_of("0", 5, {r: (one, r) for r, one in issued.items()})
    found = with_lines(differing, {5: lines})
    assert found.difference == (
        "rank 1 issued a barrier (a.py:2) where ranks 0, 2, 3 issued an all_reduce(sum) of 8 bytes "
        "as Float; rank 1 differs from the majority"
    )


def test_a_job_in_which_every_collective_differs_costs_the_watchdog_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[int] = []

    def counted(earlier: list[Issued]) -> Issued | None:
        looked_up.append(len(earlier))
        return None

    monkeypatch.setattr(module, "usual_after", counted)
    finder = MismatchFinder()
    for seq in range(1000):
        for rank in range(2):
            finder.add(rank, "0", 2, seq, (SMALL, LARGE)[rank], seq)
        finder.poll()
    assert (finder.count, len(looked_up)) == (1000, 1)
    assert [one.seq for one in finder.known()] == [999]
    assert [finder.agree_since("0", seq) for seq in (0, 999, 1002)] == [0, 999, 1000]
    assert finder.agree_since("1", 5) == 0
    assert len(looked_up) == 2
