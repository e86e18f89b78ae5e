from __future__ import annotations

import pytest

from commprof.analysis.late.circles import Circle
from commprof.analysis.late.standing import PendingOperation, Words
from commprof.analysis.late.standstill import Cause, find_cause, waits_of
from commprof.monitor.rank_state import FollowedRank
from commprof.trace.documents import Group
from tests.support.builders.traces import MS, Rank

_NAMES = {1: "0", 2: "1"}


def job(orders: dict[int, list[int]], members: dict[int, list[int]], steps: int = 3) -> Cause:
    """Each rank hangs in the first group of its ``orders``; ``members`` lists the ranks of a group.

    In the earlier steps each rank calls its groups in order of their numbers.
    """
    states = []
    for rank, order in orders.items():
        own = [number for number, ranks in members.items() if rank in ranks]
        made = Rank(rank, len(orders), groups={n: (_NAMES[n], len(members[n])) for n in own})
        for step in range(steps):
            for number in own:
                at = (step * 100 + 10 * number) * MS
                made.collective(step, at, at + MS, group=number, bytes=64 * number)
        made.collective(steps, 400 * MS, 0, group=order[0], bytes=64 * order[0])
        groups = [
            Group(n, _NAMES[n], "", "gloo", members[n].index(rank), len(members[n])) for n in own
        ]
        state = FollowedRank(rank, len(orders))
        state.take(made.records(), groups)
        states.append(state)
    return find_cause(states, waits_of(states))


def circle(cause: Cause) -> Circle:
    assert cause.kind == "circle"
    assert cause.circle is not None
    return cause.circle


def test_the_rank_outside_of_the_majority_is_the_culprit_of_a_circle() -> None:
    everyone = {1: [0, 1, 2], 2: [0, 1, 2]}
    cause = job({0: [1], 1: [2], 2: [1]}, everyone, steps=0)
    assert cause.ranks == (1,)
    assert circle(cause).difference(Words(), {0: "a.py:4", 1: "a.py:9"}) == (
        "wait for each other: rank 1 waits in all_reduce number 0 of group '1' (a.py:9) where "
        "ranks 0, 2 wait in all_reduce number 0 of group '0' (a.py:4); rank 1 differs from the "
        "majority"
    )


def test_the_rank_that_differs_from_its_earlier_steps_is_the_culprit_of_a_circle() -> None:
    cause = job({0: [1], 1: [2]}, {1: [0, 1], 2: [0, 1]})
    assert (cause.ranks, circle(cause).by_majority) == ((1,), False)
    assert "rank 1 differs from its own earlier steps" in circle(cause).difference(Words(), {})


@pytest.mark.parametrize("steps", [0, 1])
def test_a_circle_of_two_ranks_without_earlier_steps_tells_no_culprit(steps: int) -> None:
    cause = job({0: [1], 1: [2]}, {1: [0, 1], 2: [0, 1]}, steps)
    assert (cause.ranks, circle(cause).told_ranks) == ((0, 1), ())
    assert circle(cause).difference(Words(), {}).endswith("which rank is wrong cannot be told")


def test_a_majority_counts_only_among_ranks_that_could_have_issued_the_same() -> None:
    cause = job({0: [1], 1: [2], 2: [1]}, {1: [0, 1, 2], 2: [0, 1]}, steps=0)
    assert circle(cause).told_ranks == ()


def of_messages(*ops: str) -> str:
    waiting = tuple(
        (PendingOperation(op, "0", 0, 1 - rank, 8, 8, 0, -1, in_backward=False), (rank,))
        for rank, op in enumerate(ops)
    )
    return Circle(waiting, (), by_majority=False).difference(Words(), {})


def test_ranks_that_all_send_first_are_told_the_order_that_ends_the_circle() -> None:
    assert of_messages("send", "send").endswith(
        "; every rank sends before it receives, so let one rank receive first, or use "
        "batch_isend_irecv"
    )
    assert of_messages("recv", "recv").endswith(
        "every rank receives before it sends, so let one rank send first"
    )
    assert of_messages("send", "recv").endswith("; which rank is wrong cannot be told")


def after_messages(first: list[str], second: list[str], steps: int) -> Cause:
    """Rank 0 hangs in the last message of ``first``, and rank 1 in the last of ``second``.

    In the completed ``steps`` rank 0 sends before it receives.
    """
    states = []
    for rank, last in enumerate((first, second)):
        order = ["send", "recv"] if rank == 0 else ["recv", "send"]
        made = Rank(rank, 2, groups={1: ("0", 2)})
        counts = {"send": 0, "recv": 0}
        for step, ops in enumerate([order] * steps + [last]):
            for number, op in enumerate(ops):
                at = (step * 100 + 10 * number) * MS
                waits = step == steps and number == len(ops) - 1
                end = 0 if waits else at + MS
                made.collective(counts[op], at, end, op=op, aux=1 - rank, group=1)
                counts[op] += 1
        state = FollowedRank(rank, 2)
        state.take(made.records(), [Group(1, "0", "", "gloo", rank, 2)])
        states.append(state)
    return find_cause(states, waits_of(states))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["send", "recv"], ["recv", "recv"]),
        (["send"], ["send"]),
    ],
)
def test_a_rank_whose_messages_differ_from_its_steps_is_named_and_no_order(
    first: list[str], second: list[str]
) -> None:
    cause = after_messages(first, second, steps=7)
    assert cause.ranks == (1,)
    assert (
        circle(cause)
        .difference(Words(), {})
        .endswith("; rank 1 differs from its own earlier steps")
    )


def test_ranks_that_have_not_received_equally_often_are_not_said_to_receive_first() -> None:
    cause = after_messages(["send", "recv"], ["recv", "recv"], steps=0)
    assert cause.ranks == (0, 1)
    said = circle(cause).difference(Words(), {})
    assert said.endswith("; which rank is wrong cannot be told")


def test_ranks_that_both_receive_first_in_their_first_step_are_told_so() -> None:
    cause = after_messages(["recv"], ["recv"], steps=0)
    assert "every rank receives before it sends" in circle(cause).difference(Words(), {})
