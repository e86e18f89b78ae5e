from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.align.arrivals import match_arrivals
from commprof.analysis.align.matching import match
from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.meetings import SharedCalls, Stretch, Wait
from commprof.trace import columns
from tests.support.builders.traces import MS, Rank

#: Each item is a time in ms: the stretch begins, the rank stands, leaves, and the stretch ends.
Times = tuple[float, float, float, float]
NEVER = (0, 0, 0)


def compared(ranks: list[Rank], seq: int, stood_ms: float) -> tuple[Times, Times]:
    """Returns the stretches of rank 0 (waiting) and of rank 1 (late for call ``seq``)."""
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    arrivals = match_arrivals(match(traces, tables), traces, tables)
    shared = SharedCalls(traces, tables, arrivals, [exposures_of(trace) for trace in traces])
    at = int(np.flatnonzero(tables[0].seq == seq)[0])
    number = int(arrivals[0].collective[at])
    columns_ = (np.array([value]) for value in (0, 1, number, int(stood_ms * MS)))
    waiting, late = shared.compared(Wait(*columns_))
    return _times(waiting), _times(late)


def _times(found: Stretch) -> Times:
    begin, stood, left, end = (
        float(part[0]) / MS
        for part in (found.begin_ns, found.stood_ns, found.left_ns, found.end_ns)
    )
    return begin, stood, left, end


#: Each item is a time in ms: issue, begin of the wait (None: no wait), and end (0: unknown).
Call = tuple[float, float | None, float]


def recorded(*of_ranks: list[Call]) -> list[Rank]:
    ranks = [Rank(rank, len(of_ranks)) for rank in range(len(of_ranks))]
    for rank, calls in zip(ranks, of_ranks, strict=True):
        for seq, (issue, begin, end) in enumerate(calls):
            op_id = rank.collective(seq, int(issue * MS), int(end * MS))
            if begin is not None:
                until = max(int(end * MS), int(begin * MS) + 500)
                rank.wait(op_id, int(begin * MS), until)
    return ranks


LATER: tuple[Call, Call] = ((90, 95, 120), (110, 110, 120))


@pytest.mark.parametrize(
    ("first", "second", "waiting", "late"),
    [
        # Both ranks stand.
        ((10, 20, 40), (30, 32, 41), (40, 40, 40), (41, 41, 41)),
        # Only one rank stands.
        ((10, 20, 40), (30, 55, 41), (10, 20, 40), (30, 30, 30)),
        ((30, 55, 41), (10, 20, 40), (30, 30, 30), (10, 20, 40)),
        # No rank stands, or one rank does not wait.
        ((10, 50, 40), (30, 55, 41), NEVER, NEVER),
        ((10, 20, 40), (30, None, 41), NEVER, NEVER),
        ((10, 50, 0), (30, 55, 0), NEVER, NEVER),
        # The late rank is still in its first wait when it arrives at the later call.
        ((10, 20, 40), (30, 111, 41), NEVER, NEVER),
        # The first call ends at 96 ms, after rank 0's later wait began.
        ((10, 94, 96), (30, 94, 96), NEVER, NEVER),
    ],
)
def test_two_ranks_meet_where_one_stands_and_both_have_left(
    first: Call, second: Call, waiting: Times, late: Times
) -> None:
    ranks = recorded([first, LATER[0]], [second, LATER[1]])
    ends = (95, 110) if waiting == NEVER else (90, 110)
    found = compared(ranks, 1, 95)
    assert found[0][:3] == waiting
    assert found[1] == (*late, ends[1])
    if waiting != NEVER:
        assert found[0][3] == ends[0]


def test_what_third_ranks_wait_for_makes_no_difference() -> None:
    ranks = [Rank(rank, 3) for rank in range(3)]
    ready_ms = {0: (110, 120, 130), 1: (150, 160, 170), 2: (103, 106, 109)}
    for rank in ranks:
        begin = rank.collective(0, 10 * MS, 20 * MS)
        rank.wait(begin, 10 * MS, 20 * MS)
        for seq, ready in enumerate(ready_ms[rank.rank], 1):
            rank.collective(seq, ready * MS, (150 + 10 * seq - 9) * MS, 8, graph_task=7)
        rank.finalize((ready_ms[rank.rank][-1] + 1) * MS, 172 * MS, cpu=0, graph_task=7)
    for seq in (1, 2, 3):
        end = ready_ms[0][seq - 1]
        assert compared(ranks, seq, 131)[0] == (20, 20, 20, end)
        assert compared(ranks, seq, 131)[1] == (20, 20, 20, 140 + 10 * seq)


def test_a_finalisation_is_one_wait_that_ends_with_its_last_bucket() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        late = 5 * rank.rank
        for seq in (0, 1):
            ready = (10 + 10 * seq + late) * MS
            rank.collective(seq, ready, ready + (6 - late) * MS, 8, graph_task=7)
        rank.finalize((20 + late) * MS, 27 * MS, cpu=0, graph_task=7)
        later = rank.collective(2, (50 + 10 * late) * MS, 110 * MS)
        rank.wait(later, (50 + 10 * late) * MS, 110 * MS)
    assert compared(ranks, 2, 50) == ((26, 26, 26, 50), (26, 26, 26, 100))


def test_handles_that_are_waited_for_in_turn_at_the_end_are_not_compared_with_each_other() -> None:
    first = recorded([(10, 30, 52), (20, 52, 62)], [(50, 70, 52), (60, 71, 62)])
    assert compared(first, 1, 52)[1][:3] == NEVER
    before: Call = (1, 1, 5)
    ranks = recorded([before, (10, 30, 52), (20, 52, 62)], [before, (50, 70, 52), (60, 71, 62)])
    assert compared(ranks, 2, 52) == ((5, 5, 5, 20), (5, 5, 5, 60))


def test_ranks_meet_where_one_waited_for_the_others_message() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        for seq, sent in enumerate((30, 130)):
            if rank.rank == 1:
                rank.collective(seq, sent * MS, 0, op="send", aux=0, bytes_in=8, bytes_out=0)
                continue
            at = (sent - 20) * MS
            call = rank.collective(
                seq, at, (sent + 1) * MS, op="recv", aux=1, bytes_in=0, bytes_out=8
            )
            rank.wait(call, at, (sent + 1) * MS)
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    arrivals = match_arrivals(match(traces, tables), traces, tables)
    shared = SharedCalls(traces, tables, arrivals, [exposures_of(trace) for trace in traces])
    numbers = arrivals[0].collective
    both = Wait(np.zeros(2, int), np.ones(2, int), numbers, np.array([10, 110]) * MS)
    waiting, late = shared.compared(both)
    assert waiting.begin_ns.tolist() == [0, 30 * MS]
    assert waiting.end_ns.tolist() == [10 * MS, 110 * MS]
    assert late.begin_ns.tolist() == [0, 30 * MS]
    assert late.end_ns.tolist() == [30 * MS, 130 * MS]
    for (first, last), at_once in zip(
        zip(*shared.compared_in_parts(both, [slice(0, 1), slice(1, 2)]), strict=True),
        (waiting, late),
        strict=True,
    ):
        in_parts = np.concatenate([first.begin_ns, last.begin_ns])
        assert in_parts.tolist() == at_once.begin_ns.tolist()
