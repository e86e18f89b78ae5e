from __future__ import annotations

import dataclasses

import pytest

from commprof.analysis.align import matching
from commprof.analysis.align.arrivals import Arrivals, clocks_are_shared, match_arrivals
from commprof.trace import columns, schema
from tests.support.builders.traces import Rank


def match(*ranks: Rank) -> list[Arrivals]:
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    return match_arrivals(matching.match(traces, tables), traces, tables)


def test_all_ranks_get_the_last_issue_as_the_last_arrival() -> None:
    ranks = [Rank(rank, 3) for rank in range(3)]
    for rank, issue in zip(ranks, (10, 35, 20), strict=True):
        rank.collective(0, issue, 50)
        rank.collective(1, issue + 100 - 2 * issue, 150)
    for arrivals in match(*ranks):
        assert arrivals.last_arrival_ns.tolist() == [35, 90]
        assert arrivals.late_rank.tolist() == [1, 0]


def test_arrivals_are_matched_when_sequence_numbers_wrap_around_at_32_bits() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank, issue in zip(ranks, (10, 35), strict=True):
        for turn, seq in enumerate((2**32 - 2, 2**32 - 1, 0, 1)):
            rank.collective(seq, issue + 100 * turn, 50 + 100 * turn)
    for arrivals in match(*ranks):
        assert arrivals.last_arrival_ns.tolist() == [35, 135, 235, 335]
        assert arrivals.late_rank.tolist() == [1] * 4


def test_a_missing_rank_leaves_the_arrival_unknown() -> None:
    first, second = Rank(0, 3), Rank(1, 3)
    for rank in (first, second):
        rank.collective(0, 10, 20)
    for arrivals in match(first, second):
        assert arrivals.last_arrival_ns.tolist() == [0]
        assert arrivals.late_rank.tolist() == [-1]


def test_a_lost_record_leaves_only_its_own_collective_unknown() -> None:
    first, second = Rank(0, 2), Rank(1, 2)
    for seq in range(3):
        first.collective(seq, 10 + seq, 90)
    for seq in (0, 2):
        second.collective(seq, 20 + seq, 90)
    of_first, of_second = match(first, second)
    assert of_first.late_rank.tolist() == [1, -1, 1]
    assert of_second.late_rank.tolist() == [1, 1]


def test_different_operations_with_the_same_sequence_number_are_not_matched() -> None:
    first, second = Rank(0, 2), Rank(1, 2)
    first.collective(0, 10, 20)
    second.collective(0, 12, 20, op="broadcast")
    assert [arrivals.late_rank.tolist() for arrivals in match(first, second)] == [[-1], [-1]]


def test_two_calls_of_one_rank_with_the_same_number_are_not_matched() -> None:
    first, second = Rank(0, 2), Rank(1, 2)
    first.collective(0, 10, 20)
    first.collective(0, 30, 40)
    assert match(first, second)[0].late_rank.tolist() == [-1, -1]


def message(rank: Rank, peer: int, seq: int, issue: int, op: str, bytes: int = 8) -> None:
    sizes = {"bytes_in": bytes} if op == "send" else {"bytes_out": bytes}
    rank.collective(seq, issue, 0, op=op, aux=peer, **{"bytes_in": 0, "bytes_out": 0, **sizes})


def test_messages_are_matched_by_sender_receiver_and_sequence_number() -> None:
    first, second = Rank(0, 3), Rank(1, 3)
    message(first, 1, 0, 10, "send")
    message(first, 2, 0, 12, "send")
    message(first, 1, 1, 14, "send")
    message(first, 1, 0, 16, "recv")  # each direction has its own sequence numbers
    message(second, 0, 0, 11, "recv")
    message(second, 0, 1, 13, "recv")
    message(second, 0, 0, 30, "send")
    of_first, of_second = match(first, second, Rank(2, 3))[:2]
    assert of_first.late_rank.tolist() == [1, -1, 0, 1]
    assert of_first.last_arrival_ns.tolist() == [11, 0, 14, 30]
    assert of_second.late_rank.tolist() == [1, 0, 1]


def test_two_sends_are_not_matched_as_a_message() -> None:
    first, second = Rank(0, 2), Rank(1, 2)
    for rank in (first, second):
        message(rank, 1 - rank.rank, 0, 10, "send")
    assert [arrivals.late_rank.tolist() for arrivals in match(first, second)] == [[-1], [-1]]


def test_a_send_and_a_receive_of_different_size_are_not_matched() -> None:
    # With tags, a rank can receive messages in another order than that of the sends.
    first, second = Rank(0, 2), Rank(1, 2)
    for seq, size in enumerate((8, 16, 4)):
        message(first, 1, seq, 10 + seq, "send", size)
    for seq, size in enumerate((16, 8, 4)):
        message(second, 0, seq, 20 + seq, "recv", size)
    assert match(first, second)[0].late_rank.tolist() == [-1, -1, 1]


def test_a_receive_from_any_source_and_later_messages_are_not_matched() -> None:
    first, second = Rank(0, 2), Rank(1, 2)
    for seq in range(3):
        message(first, 1, seq, 10 + seq, "send")
    message(second, 0, 0, 20, "recv")
    message(second, 0, schema.NO_SEQ, 21, "recv_any_source")
    message(second, 0, schema.NO_SEQ, 22, "recv")
    of_first, of_second = match(first, second)
    assert of_first.late_rank.tolist() == [1, -1, -1]
    assert of_second.late_rank.tolist() == [1, -1, -1]


def test_message_peers_are_ranks_within_the_group() -> None:
    # Ranks 1 and 3 of the job are ranks 0 and 1 of this group.
    ranks = [Rank(rank, 4, groups={1: ("pair", 2)}) for rank in (1, 3)]
    message(ranks[0], 1, 0, 10, "send")
    message(ranks[1], 0, 0, 20, "recv")
    traces = [rank.trace() for rank in ranks]
    for own_rank, trace in enumerate(traces):
        trace.groups[1] = dataclasses.replace(trace.groups[1], rank=own_rank)
    tables = [columns.collectives(trace) for trace in traces]
    arrivals = match_arrivals(matching.match(traces, tables), traces, tables)
    assert [found.late_rank.tolist() for found in arrivals] == [[3], [3]]


def test_groups_are_matched_by_name_not_by_local_number() -> None:
    ranks = [
        Rank(0, 4, groups={1: ("0", 4), 2: ("even", 2)}),
        Rank(1, 4, groups={1: ("odd", 2), 2: ("0", 4)}),
        Rank(2, 4, groups={1: ("even", 2), 2: ("0", 4)}),
        Rank(3, 4, groups={1: ("0", 4), 2: ("odd", 2)}),
    ]
    world = {0: 1, 1: 2, 2: 2, 3: 1}
    for rank in ranks:
        rank.collective(0, 10 + rank.rank, 50, group=world[rank.rank])
        rank.collective(0, 30 - rank.rank, 50, group=3 - world[rank.rank])
    for rank, arrivals in zip(ranks, match(*ranks), strict=True):
        pair_last, pair_late = (30, 0) if rank.rank % 2 == 0 else (29, 1)
        assert arrivals.last_arrival_ns.tolist() == [13, pair_last]
        assert arrivals.late_rank.tolist() == [3, pair_late]


def test_a_group_created_again_with_the_same_name_is_matched_separately() -> None:
    ranks = [Rank(rank, 2, groups={1: ("0", 2), 2: ("0", 2)}) for rank in range(2)]
    for rank in ranks:
        rank.collective(0, 10 + rank.rank, 20, group=1)
        rank.collective(0, 40 - rank.rank, 50, group=2)
    for arrivals in match(*ranks):
        assert arrivals.late_rank.tolist() == [1, 0]
        assert arrivals.last_arrival_ns.tolist() == [11, 40]


def test_collectives_of_a_group_without_description_are_not_matched() -> None:
    ranks = [Rank(rank, 2, groups={}) for rank in range(2)]
    for rank in ranks:
        rank.collective(0, 10, 20)
    assert [arrivals.late_rank.tolist() for arrivals in match(*ranks)] == [[-1], [-1]]


def test_a_rank_alone_in_its_group_arrives_last() -> None:
    rank = Rank()
    rank.collective(0, 10, 20)
    (arrivals,) = match(rank)
    assert (arrivals.last_arrival_ns.tolist(), arrivals.late_rank.tolist()) == ([10], [0])


def test_traces_without_collectives_have_no_arrivals() -> None:
    assert [len(arrivals.late_rank) for arrivals in match(Rank(0, 2), Rank(1, 2))] == [0, 0]


@pytest.mark.parametrize(
    ("boots", "shared"),
    [(("a", "a"), True), (("a", "b"), False), (("", ""), True), (("a",), True), (("",), True)],
)
def test_clocks_are_shared_only_if_the_boot_ids_are_equal(
    boots: tuple[str, ...], shared: bool
) -> None:
    traces = [Rank(rank, len(boots), boot_id=boot).trace() for rank, boot in enumerate(boots)]
    assert clocks_are_shared(traces) is shared


def test_clocks_are_not_shared_without_boot_id_and_time_namespace() -> None:
    traces = [Rank(rank, 2).trace() for rank in range(2)]
    for trace in traces:
        trace.metadata["machine"].update(boot_id="", time_namespace="")
    assert not clocks_are_shared(traces)
