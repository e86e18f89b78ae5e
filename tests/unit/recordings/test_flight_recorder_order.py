from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.late.dumped_diagnosis import Diagnosis
from commprof.analysis.late.dumped_hang import diagnosis
from tests.support.builders.flight_dumps import dump, entry, write_dumps

PAIR = {"0": [0, 1]}


def numbered(groups: dict[str, list[int]], *entries: dict[str, Any]) -> dict[str, Any]:
    made = [
        {
            **one,
            "record_id": number,
            "time_created_ns": number + 1,
            "frames": [{"name": "step", "filename": "/home/me/train.py", "line": 10 + number}],
        }
        for number, one in enumerate(entries)
    ]
    return dump(groups, *made)


def batch(group: str, number: int, *ops: str, state: str = "scheduled") -> list[dict[str, Any]]:
    parts = [entry(group, number, op) for op in ops]
    whole = entry(group, number, "send 0->1", state)
    return [*parts, whole | {"profiling_name": "nccl:coalesced"}]


def culprits(found: Diagnosis) -> tuple[str, list[int]]:
    return found.kind, [one.rank for one in found.culprits]


def messages(*ops: str) -> list[dict[str, Any]]:
    return [entry("0", number, op) for number, op in enumerate(ops)]


@pytest.mark.parametrize(
    ("ops", "order"),
    [
        (("send", "recv"), "every rank sends before it receives, so let one rank receive first"),
        (("recv", "send"), "every rank receives before it sends, so let one rank send first"),
    ],
)
def test_ranks_that_both_send_first_wait_for_each_other(
    tmp_path: Path, ops: Sequence[str], order: str
) -> None:
    """NCCL runs a rank's messages in the order in which the rank issued them."""
    arrows = {"send": "->", "recv": "<-"}
    made = [[f"{op} {rank}{arrows[op]}{1 - rank}" for op in ops] for rank in (0, 1)]
    found = diagnosis(write_dumps(tmp_path, *(numbered(PAIR, *messages(*one)) for one in made)))
    assert culprits(found) == ("circle", [0, 1])
    first, direction = ops[0], "to" if ops[0] == "send" else "from"
    assert found.sentence.startswith(
        f"ranks 0, 1 wait for each other: rank 1 waits in {first} {direction} rank 0 in group '0' "
        f"(GROUP_0) (train.py:10) where rank 0 waits in {first} {direction} rank 1"
    )
    assert order in found.sentence


def test_ranks_of_which_one_receives_first_do_not_wait_for_each_other(tmp_path: Path) -> None:
    first = numbered(PAIR, *messages("send 0->1", "recv 0<-1"))
    found = diagnosis(write_dumps(tmp_path, first, numbered(PAIR, *messages("recv 1<-0"))))
    assert culprits(found) == ("absent", [1])
    assert found.culprits[0].why.startswith(
        "rank 1 did not issue the send for recv from rank 1 in group '0' (GROUP_0) (train.py:11); "
        "it has 1 pending operation, at which all ranks arrived: recv from rank 0 in group '0'"
    )
    healthy = numbered(PAIR, *messages("recv 1<-0", "send 1->0"))
    assert culprits(diagnosis(write_dumps(tmp_path, first, healthy))) == ("arrived", [])


def test_messages_of_other_backends_run_in_any_order(tmp_path: Path) -> None:
    made = [
        [one | {"profiling_name": f"ucc:{op}"} for one, op in zip(messages(*ops), ops, strict=True)]
        for ops in (("send 0->1", "recv 0<-1"), ("send 1->0", "recv 1<-0"))
    ]
    found = diagnosis(write_dumps(tmp_path, *(numbered(PAIR, *one) for one in made)))
    assert culprits(found) == ("arrived", [])


@pytest.mark.parametrize("whole", [True, False])
def test_a_message_that_completed_in_a_pending_batch_accuses_nobody(
    tmp_path: Path, whole: bool
) -> None:
    ring = {"0": [0, 1, 2, 3]}
    dumps = []
    for rank in range(4):
        after, before = (rank + 1) % 4, (rank - 1) % 4
        ops = [f"send {rank}->{after}", f"recv {rank}<-{before}"]
        issued = []
        for step in range(4):
            issued += batch("0", step + 1, *ops, state="completed")
            issued.append(entry("0", step, state="completed"))
        last = batch(
            "0", 5, *ops[: 1 + (rank != 2)], state="scheduled" if rank == 1 else "completed"
        )
        made = numbered(ring, *issued, *last, entry("0", 4))
        if not whole:
            made["entries"] = [one | {"record_id": one["record_id"] + 7} for one in made["entries"]]
        dumps.append(made)
    found = diagnosis(write_dumps(tmp_path, *dumps))
    if whole:
        assert culprits(found) == ("circle", [2])
        assert found.sentence == (
            "ranks 1, 2 wait for each other: rank 2 waits in all_reduce number 4 of group '0' "
            "(GROUP_0) (train.py:28) where rank 1 waits in send to rank 2 in group '0' (GROUP_0) "
            "(train.py:26); rank 2 differs from its own earlier steps"
        )
        return
    assert culprits(found) == ("absent", [1])
    assert found.sentence == (
        "3 other ranks wait for rank 1; it is not known whether rank 1 waits for another rank in a "
        "message, because full buffers have dropped earlier records"
    )
    assert found.culprits[0].why == (
        "rank 1 has not begun all_reduce number 4 of group '0' (GROUP_0) (train.py:29); it has 3 "
        "pending operations, whose counterparts on other ranks may be missing in the dumps, the "
        "oldest: send to rank 2 in group '0' (GROUP_0) (train.py:26); the last call was all_reduce "
        "at train.py:29"
    )


@pytest.mark.parametrize("starts", [True, False])
def test_ranks_that_issue_two_groups_in_different_orders_are_told_from_a_stuck_network(
    tmp_path: Path, starts: bool
) -> None:
    groups = {"0": [0, 1, 2], "1": [0, 1, 2]}

    def rank(*order: str) -> dict[str, Any]:
        done = [entry(group, 1, state="completed") for group in "01" * 3]
        states = ("started" if starts else "scheduled", "scheduled")
        last = [entry(group, 2, state=state) for group, state in zip(order, states, strict=True)]
        for one in [*done, *(last[:1] if starts else [])]:
            one["time_discovered_started_ns"] = 5 if starts else None
        return numbered(groups, *done, *last)

    found = diagnosis(write_dumps(tmp_path, rank("0", "1"), rank("0", "1"), rank("1", "0")))
    assert culprits(found) == ("circle", [2])
    assert found.sentence == (
        "ranks 0-2 issued their common calls in different orders: rank 2 first issued all_reduce "
        "number 2 of group '1' (GROUP_1) (train.py:16) where ranks 0, 1 first issued all_reduce "
        "number 2 of group '0' (GROUP_0) (train.py:16); rank 2 differs from the majority"
    )
    assert found.culprits[0].why == (
        "rank 2 issued all_reduce number 2 of group '1' (GROUP_1) before the operation that the "
        "others issued first"
    )
    alike = diagnosis(write_dumps(tmp_path, *[rank("0", "1")] * 3))
    assert culprits(alike) == ("arrived", [])


def test_an_operation_at_which_the_culprits_wait_is_named(tmp_path: Path) -> None:
    groups = {"0": [0, 1, 2, 3], "1": [2, 3]}
    done = entry("0", 1, state="completed")
    stuck = numbered(groups, done, entry("1", 1, "broadcast"))
    waits = numbered({"0": [0, 1, 2, 3]}, done, entry("0", 2))
    found = diagnosis(write_dumps(tmp_path, waits, waits, stuck, stuck))
    assert culprits(found) == ("absent", [2, 3])
    assert found.culprits[0].why == (
        "rank 2 did not arrive at all_reduce number 2 of group '0' (GROUP_0) (train.py:11); it has "
        "1 pending operation, at which all ranks arrived: broadcast number 1 of group '1' "
        "(GROUP_1) (train.py:11), whose root is not in the dumps; the last call was broadcast "
        "at train.py:11"
    )


def test_roots_and_parts_that_dumps_lack_are_not_called_a_stuck_network_alone(
    tmp_path: Path,
) -> None:
    def said(op: str, *counts: tuple[int, int]) -> str:
        made = [
            numbered(PAIR, entry("0", 1, op) | {"input_sizes": [[sent]], "output_sizes": [[got]]})
            for sent, got in counts
        ]
        found = diagnosis(write_dumps(tmp_path, *made))
        assert culprits(found) == ("arrived", [])
        return found.sentence

    assert said("broadcast", (8, 8), (8, 8)).endswith(
        ": the network, the backend or a device is stuck, or the ranks name different roots, which "
        "dumps do not hold"
    )
    assert said("all_reduce", (8, 8), (8, 8)).endswith("a device is stuck")
    assert said("all_to_all", (8, 6), (8, 10)).endswith(
        ": the network, the backend or a device is stuck, or sizes that ranks send to each other "
        "do not fit"
    )
    assert said("all_to_all", (8, 8), (8, 10)) == (
        "All ranks arrived at all_to_all number 1 of group '0' (GROUP_0) (train.py:10): its ranks "
        "send 64 bytes in total, but expect 72 bytes, so the ranks gave sizes that do not match"
    )


def called(by: int, one: dict[str, Any], helper: int = 3) -> dict[str, Any]:
    frames = [
        {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/c.py", "line": 1},
        {"name": "__exit__", "filename": "/usr/lib/python3.12/contextlib.py", "line": 144},
        {"name": "reduced", "filename": "/home/me/helper.py", "line": helper},
        {"name": "main", "filename": "/home/me/train.py", "line": by},
    ]
    return one | {"frames": frames}


def test_calls_of_one_helper_are_told_apart_by_the_lines_that_call_it(tmp_path: Path) -> None:
    ranks = {"0": [0, 1, 2]}
    last = [
        called(20, entry("0", 2)),
        called(30, entry("0", 2, count=9)),
        called(20, entry("0", 2)),
    ]
    found = diagnosis(write_dumps(tmp_path, *(dump(ranks, one) for one in last)))
    assert culprits(found) == ("mismatch", [1])
    assert found.sentence == (
        "The ranks issued different collectives as number 2 of group '0': rank 1 issued an "
        "all_reduce of 36 bytes as Float (helper.py:3, called at train.py:30) where ranks 0, 2 "
        "issued an all_reduce of 32 bytes as Float (helper.py:3, called at train.py:20); rank 1 "
        "differs from the majority"
    )


def test_ranks_that_agree_are_not_told_apart_by_the_lines_that_call_a_helper(
    tmp_path: Path,
) -> None:
    ranks = {"0": [0, 1, 2]}
    last = [
        called(20, entry("0", 2)),
        called(30, entry("0", 2, count=9)),
        called(40, entry("0", 2)),
    ]
    found = diagnosis(write_dumps(tmp_path, *(dump(ranks, one) for one in last)))
    assert (
        "issued an all_reduce of 36 bytes as Float (helper.py:3) where ranks 0, 2 issued an "
        in (found.sentence)
    )
    assert "called at" not in found.sentence


def test_a_call_that_a_rank_left_out_is_told_by_the_line_that_calls_a_helper(
    tmp_path: Path,
) -> None:
    both = {0: (20, 25, 26), 1: (20, 26, 40)}
    dumps = []
    for lines in both.values():
        issued = [called(by, entry("0", seq)) for seq, by in enumerate(lines)]
        if lines[2] == 40:
            issued[2] = called(40, entry("0", 2, "barrier"))
        dumps.append(dump(PAIR, *issued))
    found = diagnosis(write_dumps(tmp_path, *dumps))
    assert (
        "before that, collective 1 agrees only in operation and size: rank 1 issued it at "
        "helper.py:3, called at train.py:26, rank 0 issued it at helper.py:3, called at train.py:25"
    ) in found.sentence


def test_branches_before_a_difference_are_not_said_to_leave_out_a_call(tmp_path: Path) -> None:
    dumps = []
    for root, last in ((20, "all_reduce"), (25, "barrier")):
        issued = [entry("0", 0), entry("0", 1, "broadcast"), entry("0", 2, last)]
        lines = (10, root, 30 if last == "barrier" else 35)
        dumps.append(dump(PAIR, *map(called, lines, issued)))
    (differing,) = diagnosis(write_dumps(tmp_path, *dumps)).mismatches
    assert (
        "before that, collective 1 agrees only in operation and size: rank 1 issued it at "
        "helper.py:3, called at train.py:25, rank 0 issued it at helper.py:3, called at "
        "train.py:20, so a call may have been left out or added there"
    ) in differing.sentence
    assert differing.remedy == (
        "Make all ranks issue the same calls in the same order: rank 1 at helper.py:3, called at "
        "train.py:30 and rank 0 at helper.py:3, called at train.py:35."
    )


def test_calls_behind_an_earlier_difference_are_not_said_to_agree(tmp_path: Path) -> None:
    first = [entry("0", 1, "barrier", "completed"), entry("0", 2)]
    second = [entry("0", 1, state="completed"), entry("0", 2, "barrier")]
    same = called(10, entry("0", 0, state="completed"))
    made = [dump(PAIR, same, called(20, one[0]), called(30, one[1])) for one in (first, second)]
    made[1]["entries"][1:] = [called(30, second[0]), called(20, second[1])]
    found = diagnosis(write_dumps(tmp_path, *made))
    assert [mismatch.seq for mismatch in found.mismatches] == [1, 2]
    assert [mismatch.shifted for mismatch in found.mismatches] == [None, None]


def test_a_circle_of_one_helper_is_told_by_the_lines_that_call_it(tmp_path: Path) -> None:
    groups = {"1": [0, 1], "2": [0, 1]}
    first, second = called(20, entry("1", 1)), called(30, entry("2", 1))
    found = diagnosis(write_dumps(tmp_path, dump(groups, first), dump(groups, second)))
    assert culprits(found) == ("circle", [0, 1])
    assert (
        "rank 1 waits in all_reduce number 1 of group '2' (GROUP_2) (helper.py:3, called at "
        in (found.sentence)
    )


def test_ranks_are_not_said_to_wait_in_calls_after_those_that_differ(tmp_path: Path) -> None:
    groups = {"0": [0, 1, 2], "1": [0, 3]}
    ahead = dump(groups, entry("0", 2), entry("0", 3))
    alone = dump(groups, entry("1", 5))
    differs = dump(groups, entry("0", 2, "barrier"))
    found = diagnosis(write_dumps(tmp_path, ahead, differs, ahead, alone))
    assert (culprits(found), found.victims) == (("mismatch", [1]), (0, 2, 3))
    assert [chain.sentence for chain in found.chains] == [
        "rank 3 waits in all_reduce number 5 of group '1' (GROUP_1) for rank 0"
    ]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("backends", [("nccl",), ("gloo",), ("nccl", "gloo")])
def test_dumps_without_a_pending_operation_tell_what_they_do_not_hold(
    tmp_path: Path, backends: Sequence[str], ranks: int
) -> None:
    entries = [entry("0", 1, state="completed", backend=backend) for backend in backends]
    found = diagnosis(write_dumps(tmp_path, *[dump(PAIR, *entries)] * ranks))
    assert culprits(found) == ("none", [])
    places = [
        *["in a send or recv, which gloo's dumps do not hold"] * ("gloo" in backends),
        *["in an operation of rank 1, which left no readable dump"] * (ranks == 1),
        "in an operation of another backend, or outside of operations",
    ]
    assert found.sentence == (
        f"No operation is pending in these dumps: if the job hangs, it hangs {', '.join(places)}"
    )


def test_a_message_that_a_receive_from_any_rank_took_hides_no_missing_send(tmp_path: Path) -> None:
    sent = entry("0", 0, "send 0->1", "completed", backend="ucc")
    taken = entry("0", 0, "send 0->1", "completed") | {"profiling_name": "ucc:recv 1<-?"}
    made = [numbered(PAIR, sent), numbered(PAIR, taken, entry("0", 1, "recv 1<-0", backend="ucc"))]
    assert culprits(diagnosis(write_dumps(tmp_path, *made))) == ("absent", [0])


def test_ranks_of_which_each_lacks_a_call_are_not_said_to_issue_the_same(tmp_path: Path) -> None:
    groups = {"1": [0, 1], "2": [0, 2], "3": [1, 2]}
    orders = ("1", "2"), ("3", "1"), ("2", "3")
    made = [numbered(groups, entry(first, 1), entry(second, 1)) for first, second in orders]
    found = diagnosis(write_dumps(tmp_path, *made))
    assert culprits(found) == ("circle", [0, 1, 2])
    assert found.sentence.startswith("ranks 0-2 issued their common calls in different orders: ")


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_group_that_was_made_again_is_not_mixed_with_the_one_before(
    tmp_path: Path, backend: str
) -> None:
    """c10d gives the new group the old name and numbers its calls from 0 again."""

    def rank(*numbers: int) -> dict[str, Any]:
        before = [
            entry("0", 0, state="completed", backend=backend),
            entry("0", 1, "barrier", "scheduled", backend=backend),
            entry("0", 2, state="completed", backend=backend),
        ]
        again = [
            entry("0", seq, state=state, backend=backend) | {"pg_id": 2}
            for seq, state in zip(numbers, ("completed", "scheduled"), strict=False)
        ]
        return numbered(PAIR, *before, *again)

    found = diagnosis(write_dumps(tmp_path, rank(0, 1), rank(0)))
    assert culprits(found) == ("absent", [1])
    assert [(one.scheduled, one.completed) for one in found.groups] == [
        ({0: 1, 1: 0}, {0: 0, 1: 0}),
    ]


def test_ranks_that_issued_all_operations_are_not_blamed_alone(tmp_path: Path) -> None:
    ranks = {"0": [0, 1, 2]}
    made = [
        numbered(ranks, *messages_of_rank, entry("0", 3))
        for messages_of_rank in (
            [],
            batch("0", 1, "send 1->2", "recv 1<-2"),
            batch("0", 1, "recv 2<-1", "send 2->1"),
        )
    ]
    found = diagnosis(write_dumps(tmp_path, *made))
    assert culprits(found) == ("absent", [1, 2])
    assert found.culprits[0].why == (
        "rank 1 has not begun all_reduce number 3 of group '0' (GROUP_0) (train.py:13); it has 3 "
        "pending operations, at which all ranks arrived, the oldest: send to rank 2 in group '0' "
        "(GROUP_0) (train.py:10), which the network, the backend or a device may be unable to "
        "complete; the last call was all_reduce at train.py:13"
    )
