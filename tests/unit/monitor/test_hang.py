from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commprof.analysis.late.standstill import reasons
from commprof.errors import UsageError
from commprof.monitor.rank_state import FollowedRank, common_names
from commprof.monitor.watchdog import hang as hangs
from commprof.monitor.watchdog.hang import DEAD, Hang, HungProcess, find_hang
from commprof.monitor.watchdog.tasks import HangTask, Log
from commprof.monitor.watchdog.thresholds import FLOOR_S, START_S, Threshold, parse_threshold
from commprof.trace.documents import Group
from commprof.trace.schema import Phase
from tests.support.builders.traces import MS, Rank
from tests.unit.analysis.align.test_device_timeline import DeviceRank

SECOND = 1_000_000_000
WORLD = 3


def group(number: int, name: str, rank: int, size: int) -> Group:
    return Group(number, name, "", "gloo", rank, size)


def state(rank: Rank, *groups: Group) -> FollowedRank:
    result = FollowedRank(rank.rank, rank.world_size)
    result.take(rank.records(), groups or (group(1, "0", rank.rank, rank.world_size),))
    return result


def rank_in_backward(rank: int, buckets: int, ended: int = 0) -> Rank:
    made = Rank(rank, WORLD)
    made.step(0, 100 * MS)
    made.phase(Phase.FORWARD, 100 * MS, 110 * MS)
    for bucket in range(buckets):
        end = 130 * MS if bucket < ended else 0
        made.collective(bucket, 120 * MS + bucket, end, bytes=4_000_000, graph_task=5)
    return made


def found(
    *states: FollowedRank, now_s: float = 10, limit_s: float = 5, **processes: str
) -> Hang | None:
    """``processes`` maps names such as "rank_1" to states; the other ranks run."""
    watched = {
        one.rank: HungProcess(1000 + one.rank, processes.get(f"rank_{one.rank}", "running"))
        for one in states
    }
    return find_hang(states, watched, int(limit_s * SECOND), int(now_s * SECOND))


def test_no_hang_is_reported_before_the_threshold() -> None:
    states = [state(rank_in_backward(rank, 2)) for rank in range(WORLD)]
    assert found(*states, now_s=5) is None
    assert found(*states, now_s=5.2) is not None


def test_ranks_are_compared_with_each_other_only_after_the_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hangs, "waits_of", lambda *_: pytest.fail("compared"))
    states = [state(rank_in_backward(rank, 2)) for rank in range(WORLD)]
    assert found(*states, now_s=5) is None


def test_the_rank_that_did_not_issue_is_accused() -> None:
    states = [state(rank_in_backward(0, 2)), state(rank_in_backward(1, 2))]
    late = state(rank_in_backward(2, 1))
    hang = found(*states, late)
    assert hang is not None
    assert (hang.kind, [one.rank for one in hang.accused]) == ("absent", [2])
    assert hang.waiting == (0, 1)
    assert hang.operation is not None
    assert (hang.operation.op, hang.operation.seq, hang.operation.bucket) == ("all_reduce", 1, 1)
    assert (hang.step, hang.phase) == (1, "backward")
    assert hang.waited_s == pytest.approx(9.9, abs=0.01)
    assert hang.sentence == (
        "rank 2 did not arrive at all_reduce number 1 of group '0', bucket 1 (step 1, pending for "
        "9.9 s); last seen: backward; ranks 0, 1 wait"
    )


def test_a_wait_that_only_made_a_device_s_stream_wait_leaves_the_collective_pending() -> None:
    """With NCCL, ``wait()`` returns before the collective has ended."""
    made = [DeviceRank(rank, 2) for rank in range(2)]
    for rank in made:
        done = rank.device_collective(0, 20 * MS, (21 * MS, 40 * MS))
        rank.device_wait(done, 25 * MS, (30 * MS, 40 * MS))
        rank.step(0, 100 * MS)
    made[0].wait(made[0].device_collective(1, 110 * MS, (0, 0)), 111 * MS, 111 * MS + 5_000)
    hang = found(*map(state, made))
    assert hang is not None
    assert (hang.kind, [one.rank for one in hang.accused]) == ("absent", [1])
    assert hang.waiting == (0,)
    assert hang.operation is not None
    assert hang.operation.seq == 1


@pytest.mark.parametrize(
    ("op", "root", "arrived", "accused"),
    [
        ("gather", 1, [0], [1]),  # A sender waits for the root alone.
        ("gather", 1, [1], [0, 2]),
        ("broadcast", 1, [0], [1]),  # Ranks 0 and 2 are leaves of the broadcast's tree.
        ("all_reduce", 1, [0], [1, 2]),
    ],
)
def test_only_ranks_that_the_waiting_ranks_need_are_accused(
    op: str, root: int, arrived: list[int], accused: list[int]
) -> None:
    ranks = [rank_in_backward(rank, 0) for rank in range(WORLD)]
    for rank in arrived:
        ranks[rank].collective(0, 120 * MS, 0, op=op, aux=root)
    hang = found(*map(state, ranks))
    assert hang is not None
    assert [one.rank for one in hang.accused] == accused
    assert hang.waiting == tuple(arrived)


@pytest.mark.parametrize(
    ("op", "sizes", "words"),
    [
        (
            "all_to_all_single",
            [(64, 64), (64, 64), (64, 80)],
            ": its ranks send 192 bytes in total, but expect 208 bytes, so the ranks gave sizes "
            "that do not match",
        ),
        (
            "all_to_all_single",
            [(64, 64), (64, 80), (80, 64)],
            ", but the network or backend does not complete it, or sizes that ranks send to each "
            "other do not fit",
        ),
        ("all_reduce", [(64, 64)] * 3, ", but the network or backend does not complete it"),
    ],
)
def test_an_exchange_whose_sizes_do_not_fit_is_not_called_a_stuck_network(
    op: str, sizes: list[tuple[int, int]], words: str
) -> None:
    ranks = [rank_in_backward(rank, 0) for rank in range(WORLD)]
    for rank, (bytes_in, bytes_out) in zip(ranks, sizes, strict=True):
        rank.collective(0, 120 * MS, 0, op=op, bytes_in=bytes_in, bytes_out=bytes_out)
    hang = found(*map(state, ranks))
    assert hang is not None
    assert (hang.kind, hang.accused) == ("transfer", ())
    assert hang.sentence.endswith(words)


@pytest.mark.parametrize(
    ("backend", "or_else"),
    [
        ("gloo", ", or its send and recv have different tags"),
        ("nccl", ", or ranks that send to each other do so before they receive"),
        ("ucc", ""),
    ],
)
def test_a_message_at_which_both_ranks_arrived_may_hang_by_the_script(
    backend: str, or_else: str
) -> None:
    states = []
    for rank, op in enumerate(("send", "recv")):
        made = rank_in_backward(rank, 0)
        made.collective(0, 120 * MS, 0, op=op, aux=1 - rank)
        states.append(state(made, Group(1, "0", "", backend, rank, 2)))
    hang = found(*states)
    assert hang is not None
    assert (hang.kind, hang.accused) == ("transfer", ())
    assert hang.sentence.endswith(f"but the network or backend does not complete it{or_else}")


def test_a_rank_that_lacks_a_message_s_other_part_is_not_said_to_miss_its_own() -> None:
    ranks = [rank_in_backward(rank, 0) for rank in range(WORLD)]
    ranks[0].collective(0, 120 * MS, 0, op="send", aux=1)
    hang = found(*map(state, ranks))
    assert hang is not None
    assert [one.rank for one in hang.accused] == [1]
    assert hang.sentence.startswith(
        "rank 1 did not issue the recv for send number 0 of group '0', to its rank 1 (step 1, "
    )


def test_sequence_numbers_of_operations_wrap_at_32_bits() -> None:
    largest = 2**32 - 1

    def issued(rank: int, *numbers: int) -> FollowedRank:
        made = Rank(rank, 2)
        made.step(0, 100 * MS)
        for place, seq in enumerate(numbers):
            made.collective(seq, (120 + place) * MS, 0)
        return state(made)

    ahead = issued(0, largest - 1, largest, 0, 1)
    assert ahead.next_seq["0"] == 2
    hang = found(ahead, issued(1, largest - 1, largest, 0))
    assert hang is not None
    assert [one.rank for one in hang.accused] == [1]
    assert hang.operation is not None
    assert hang.operation.seq == 1
    assert issued(0, 1, largest).next_seq["0"] == 2


def test_a_rank_that_never_recorded_anything_is_accused() -> None:
    states = [state(rank_in_backward(rank, 1)) for rank in (0, 1)]
    hang = found(*states, FollowedRank(2, WORLD))
    assert hang is not None
    assert [one.why for one in hang.accused] == ["rank 2 has recorded nothing"]


def test_many_accused_ranks_are_named_by_ranges() -> None:
    waits, late = Rank(0, 300), [Rank(rank, 300) for rank in range(1, 129)]
    waits.step(0, 100 * MS)
    waits.collective(0, 120 * MS, 0)
    for each in late:
        each.step(0, 100 * MS)
    states = [*map(state, (waits, *late)), *(FollowedRank(rank, 300) for rank in range(129, 300))]
    hang = found(*states)
    assert hang is not None
    assert hang.sentence == (
        "ranks 1-299 did not arrive at all_reduce number 0 of group '0' (step 1, pending for "
        "9.9 s); last seen: begin of the step; rank 0 waits"
    )
    assert reasons(hang.accused) == [
        "ranks 1-128 were last seen in step 1, begin of the step",
        "ranks 129-299 have recorded nothing",
    ]
    stopped = found(*states, **{f"rank_{rank}": "stopped" for rank in range(1, 300)})
    assert stopped is not None
    assert stopped.sentence.startswith("ranks 1-299 are stopped; last seen: ")


def test_a_stopped_process_is_accused_before_an_absent_rank() -> None:
    states = [state(rank_in_backward(0, 1)), state(rank_in_backward(1, 1))]
    late = state(rank_in_backward(2, 0))
    hang = found(*states, late, rank_1="stopped")
    assert hang is not None
    assert (hang.kind, [one.rank for one in hang.accused]) == ("held up", [1])
    assert hang.accused[0].why == "rank 1 is stopped"
    assert hang.sentence == (
        "rank 1 is stopped; last seen: backward; rank 0 waits in all_reduce number 0 of group '0', "
        "bucket 0 (step 1, pending for 9.9 s)"
    )


def test_a_stopped_process_is_reported_without_a_pending_collective() -> None:
    alone = Rank(0, 1)
    alone.step(0, 100 * MS)
    hang = found(state(alone), rank_0="stopped")
    assert hang is not None
    assert (hang.kind, hang.operation) == ("held up", None)
    assert hang.sentence == (
        "rank 0 is stopped; no collective is pending (step 1, stuck for 9.9 s)"
    )


def test_a_hang_before_the_first_step_is_reported_as_such() -> None:
    arrived = Rank(0, 2)
    arrived.collective(0, 100 * MS, 0)
    hang = found(state(arrived), state(Rank(1, 2)))
    assert hang is not None
    assert hang.step == -1
    assert "(before the first step, pending for 9.9 s)" in hang.sentence
    hang = found(state(arrived), state(Rank(1, 2)), rank_1="stopped")
    assert hang is not None
    assert hang.sentence == (
        "rank 1 is stopped; last seen: before the first step; rank 0 waits in all_reduce number 0 "
        "of group '0' (before the first step, pending for 9.9 s)"
    )


def test_a_dead_rank_is_accused_only_if_others_wait_for_it() -> None:
    dead = state(rank_in_backward(1, 0))
    assert found(dead, rank_1=DEAD) is None
    hang = found(state(rank_in_backward(0, 1)), dead, state(rank_in_backward(2, 1)), rank_1=DEAD)
    assert hang is not None
    assert ([one.rank for one in hang.accused], hang.waiting) == ([1], (0, 2))


def test_an_accused_rank_that_closed_its_trace_is_reported_as_such() -> None:
    gone = state(rank_in_backward(1, 0))
    gone.closed = True
    hang = found(state(rank_in_backward(0, 1)), gone, state(rank_in_backward(2, 1)), rank_1=DEAD)
    assert hang is not None
    assert hang.kind == "absent"
    assert "has closed its trace" in hang.accused[0].why


def test_chains_of_waiting_ranks_are_followed_to_the_one_that_does_not_wait() -> None:
    pair = {1: ("0", WORLD), 2: ("pair", 2)}
    first = Rank(0, WORLD, groups=pair)
    first.collective(0, 10 * MS, 0)
    second = Rank(1, WORLD, groups=pair)
    second.collective(0, 20 * MS, 0, group=2)
    third = Rank(2, WORLD, groups=pair)
    third.collective(0, 5 * MS, 6 * MS, group=1, op="barrier")
    hang = found(
        state(first),
        state(second, group(1, "0", 1, WORLD), group(2, "pair", 0, 2)),
        state(third, group(1, "0", 2, WORLD), group(2, "pair", 1, 2)),
    )
    assert hang is not None
    assert [one.rank for one in hang.accused] == [2]
    assert hang.operation is not None
    assert hang.operation.group == "pair"
    assert hang.waiting == (1,)


def test_ranks_that_wait_for_each_other_are_reported_as_a_circle() -> None:
    def one(rank: int, first: int) -> FollowedRank:
        made = Rank(rank, 2)
        made.collective(0, 10 * MS, 0, group=first)
        return state(made, group(1, "a", rank, 2), group(2, "b", rank, 2))

    hang = found(one(0, 1), one(1, 2))
    assert hang is not None
    assert (hang.kind, [one.rank for one in hang.accused]) == ("circle", [0, 1])
    assert "wait for each other" in hang.sentence


def test_of_a_circle_s_ranks_the_accused_are_looked_at_first() -> None:
    """In the last step, ranks 0 and 3 reverse the order of their two groups."""
    groups = {0: (1, 3), 1: (1, 4), 2: (2, 3), 3: (2, 4)}

    def issued(rank: int) -> FollowedRank:
        made = Rank(rank, 4)
        order = groups[rank]
        for step in range(3):
            for place, number in enumerate(order):
                made.collective(
                    step, (100 * step + place) * MS, (100 * step + 50) * MS, 4, -1, number
                )
            made.step(100 * step * MS, 100 * (step + 1) * MS)
        turned = order[::-1] if rank in (0, 3) else order
        made.collective(3, 310 * MS, 0, 4, -1, turned[0])
        pairs = {n: rank % 2 if n < 3 else rank // 2 for n in order}
        return state(made, *(group(n, f"g{n}", place, 2) for n, place in pairs.items()))

    hang = found(*map(issued, range(4)))
    assert hang is not None
    assert (hang.kind, [accused.rank for accused in hang.accused]) == ("circle", [0, 3])
    assert hang.to_compare(range(4)) == [0, 3, 1, 2]


def test_a_hang_in_which_all_ranks_arrived_is_a_stuck_transfer() -> None:
    states = [state(rank_in_backward(rank, 1)) for rank in range(WORLD)]
    hang = found(*states)
    assert hang is not None
    assert (hang.kind, hang.accused, hang.waiting) == ("transfer", (), (0, 1, 2))
    watched = {0: HungProcess(1, "running")}
    partly = find_hang(states[:1], watched, 5 * SECOND, 10 * SECOND, unseen=(1, 2))
    assert partly is not None
    assert partly.kind == "unseen"
    assert "the records of ranks 1, 2 are not visible" in partly.sentence


def test_times_of_other_hosts_are_not_compared_with_this_host_s_clock() -> None:
    here, late = Rank(0, WORLD), state(rank_in_backward(2, 0))
    here.step(0, 100 * MS)
    here.collective(0, 4 * SECOND, 0, bytes=4_000_000, graph_task=5)
    there = state(rank_in_backward(1, 1))
    running = {rank: HungProcess(1000 + rank, "running") for rank in (0, 2)}
    hang = find_hang([state(here), there, late], running, 5 * SECOND, 10 * SECOND)
    assert hang is not None
    assert (hang.kind, hang.waiting, hang.pending_s) == ("absent", (0, 1), 6.0)
    states = [state(rank_in_backward(0, 1)), there, late]
    hang = find_hang(states, {2: running[2]}, 5 * SECOND, 10 * SECOND)
    assert hang is not None
    assert hang.pending_s is None
    assert hang.sentence == (
        "rank 2 did not arrive at all_reduce number 0 of group '0', bucket 0 (step 1, stuck for "
        "9.9 s); last seen: after forward; ranks 0, 1 wait"
    )


def test_a_long_step_without_communication_is_reported() -> None:
    alone = Rank(0, 1)
    alone.step(0, 100 * MS)
    alone.phase(Phase.DATA, 100 * MS, 120 * MS)
    hang = found(state(alone))
    assert hang is not None
    assert (hang.kind, hang.phase) == ("step", "after data")
    assert hang.sentence == (
        "rank 0: no collective is pending (step 1, stuck for 9.9 s); last seen: after data"
    )
    never = Rank(0, 1)  # A rank without an ended step is in setup or marks no steps.
    assert found(state(never)) is None


def test_a_receive_waits_for_its_sender() -> None:
    receiver, sender = Rank(0, 2), Rank(1, 2)
    receiver.collective(0, 10 * MS, 0, op="recv", aux=1)
    both = state(receiver), state(sender)
    hang = found(*both)
    assert hang is not None
    assert [one.rank for one in hang.accused] == [1]
    sender.collective(0, 20 * MS, 0, op="send", aux=0)
    # Both ranks have arrived, but gloo reports no completion here, so a hang is not certain.
    assert found(both[0], state(sender)) is None


def test_an_operation_without_reported_completion_is_no_hang_by_itself() -> None:
    def scattering(rank: int) -> FollowedRank:
        made = Rank(rank, 2)
        made.collective(0, 10 * MS, 0, op="reduce_scatter")
        return state(made)

    assert found(scattering(0), scattering(1)) is None
    hang = found(scattering(0), state(Rank(1, 2)))
    assert hang is not None
    assert [one.rank for one in hang.accused] == [1]


def test_a_rank_state_drops_completed_operations() -> None:
    rank = rank_in_backward(0, 3, ended=2)
    now = state(rank)
    assert [one.bucket for one in now.pending.values()] == [2]
    assert now.next_seq == {"0": 3}
    assert (now.step, now.steps_ended, now.new_step_ns) == (1, 1, [])
    # The rings of a rank's threads are read in turn, so an end may be read before its issue.
    late = Rank(0, WORLD)
    late.collective(3, 150 * MS, 160 * MS)
    records: Any = late.records()
    now.take(records[1:], (group(1, "0", 0, WORLD),))
    now.take(records[:1], (group(1, "0", 0, WORLD),))
    assert len(now.pending) == 1


def test_pending_operations_two_steps_old_count_as_complete() -> None:
    rank = Rank(0, WORLD)
    rank.step(0, 10 * MS)
    rank.collective(0, 11 * MS, 0)
    for begin in (10, 20, 30):
        rank.step(begin * MS, (begin + 10) * MS)
    assert state(rank).pending == {}
    assert state(rank).new_step_ns == [10 * MS] * 3


def test_groups_that_reuse_a_name_are_distinguished() -> None:
    named = common_names([group(3, "0", 0, 2), group(1, "0", 0, 2), group(2, "b", 0, 2)])
    assert {number: one.name for number, one in named.items()} == {1: "0", 2: "b", 3: "0 (2)"}


def test_a_rank_that_has_not_completed_what_others_have_is_accused() -> None:
    states = [state(rank_in_backward(rank, 2, ended=2)) for rank in (0, 2)]
    behind = state(rank_in_backward(1, 2, ended=0))
    hang = found(states[0], behind, states[1])
    assert hang is not None
    assert (hang.kind, [one.rank for one in hang.accused]) == ("behind", [1])
    assert hang.sentence.startswith("rank 1 has not completed all_reduce number 0 of group '0'")


def learnt(*steps_s: float) -> float:
    threshold = Threshold(None)
    for step_s in steps_s:
        threshold.learn(int(step_s * SECOND))
    return threshold.limit_ns / SECOND


def test_hang_threshold_texts_are_parsed_or_refused() -> None:
    assert parse_threshold("auto") is None
    assert parse_threshold("2.5") == 2.5
    for text in ("0", "-1", "soon", "nan", "inf", ""):
        with pytest.raises(UsageError, match="allowed: auto, or a number of seconds"):
            parse_threshold(text)


def test_a_fixed_hang_threshold_does_not_change_with_step_times() -> None:
    threshold = Threshold(2.5)
    threshold.learn(100 * SECOND)
    assert threshold.limit_ns == 2.5 * SECOND
    assert threshold.text == "2.5 s, as asked for"


def test_the_auto_hang_threshold_says_where_it_comes_from() -> None:
    threshold = Threshold(None)
    assert threshold.text == "300 s, the limit until 10 steps have ended"
    for _ in range(10):
        threshold.learn(SECOND)
    assert threshold.text == "10 s, learnt from the run"


def test_the_auto_hang_threshold_follows_step_times() -> None:
    assert learnt() == learnt(*[1.0] * 9) == START_S
    assert learnt(*[0.1] * 20) == FLOOR_S
    # The threshold is 10 times the median step.
    assert learnt(*[3.0] * 20) == pytest.approx(30)
    # Half of the steps take 4 s, and half 6 s: the median is 5 s, and the deviation is 1 s.
    assert learnt(*[4.0, 6.0] * 10) == pytest.approx(max(50, 5 + 20 * 1.4826))
    # After a checkpoint of 40 s, the threshold is three times as long.
    assert learnt(*[1.0] * 20, 40.0, *[1.0] * 20) == pytest.approx(120)


def test_a_step_of_many_ranks_counts_once_for_the_auto_hang_threshold(tmp_path: Path) -> None:
    def after(steps: int) -> float:
        ranks = [Rank(number, 8) for number in range(8)]
        for rank in ranks:
            for step in range(steps):
                rank.step(step * SECOND, (step + 1) * SECOND)
        feeds: Any = [
            SimpleNamespace(state=state(rank), is_seen=True, process=None) for rank in ranks
        ]
        threshold = Threshold(None)
        HangTask(tmp_path, threshold, Log(tmp_path, quiet=True)).poll(feeds, 0)
        return threshold.limit_ns / SECOND

    assert after(steps=10) == START_S  # The first step does not count.
    assert after(steps=11) == FLOOR_S
    threshold = Threshold(None)
    for _ in range(10):
        threshold.learn(SECOND, rank=3)
    threshold.learn(40 * SECOND, rank=5)
    assert threshold.limit_ns == 120 * SECOND


def test_a_group_whose_ranks_are_not_all_known_is_not_called_a_stuck_network() -> None:
    states = []
    for rank in range(4):
        made = Rank(rank, 4)
        made.collective(0, 10 * MS, 20 * MS)
        groups = [group(1, "0", rank, 4)]
        if rank < 2:
            made.collective(0, 30 * MS, 0 if rank else 40 * MS, group=2)
            groups.append(group(2, "5" if rank else "4", 0, 2 if rank else 1))
        states.append(state(made, *groups))
    hang = found(*states)
    assert hang is not None
    assert (hang.kind, hang.accused, hang.idle) == ("members", (), (0, 2, 3))
    assert hang.to_compare(range(4)) == [0, 2, 1]
    assert hang.sentence == (
        "rank 1 waits in all_reduce number 0 of group '5' (before the first step, pending for 10.0 "
        "s); 1 rank of the group has issued no call in the group, and it is not known which; ranks "
        "0, 2, 3 wait in no operation"
    )


def test_a_rank_is_not_said_to_miss_an_operation_of_others() -> None:
    states = []
    for rank in range(4):
        made = Rank(rank, 4)
        made.collective(0, 10 * MS, 20 * MS, group=2)
        if rank < 2:
            made.collective(1, (30 + rank) * MS, 0, group=2)
        states.append(state(made, group(2, f"pair {rank % 2}", rank // 2, 2)))
    hang = found(*states)
    assert hang is not None
    assert (hang.kind, [one.rank for one in hang.accused]) == ("absent", [2, 3])
    assert hang.sentence == (
        "rank 2 did not arrive at all_reduce number 1 of group 'pair 0' (before the first step, "
        "pending for 10.0 s); last seen: before the first step; rank 0 waits; rank 3 is waited for "
        "in other operations"
    )
