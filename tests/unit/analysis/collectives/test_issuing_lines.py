from __future__ import annotations

from dataclasses import replace

from commprof.analysis.collectives.issuing_lines import OwnLine, is_shift, own_line, shifted_since
from commprof.analysis.collectives.mismatches import Issued, mismatch_of, with_lines

TRAIN, EVALUATE, END = "train.py:8", "train.py:10", "train.py:11"
BROADCAST = Issued("broadcast", "Float", "", 2048, 0)
BARRIER = Issued("barrier", "", "", -1, -1)


def test_a_rank_that_issues_at_a_line_of_its_own_is_told() -> None:
    lines = {
        number: {0: EVALUATE if number % 10 == 9 else TRAIN, 1: TRAIN, 2: TRAIN}
        for number in range(40)
    }
    at_mismatch = {0: EVALUATE, 1: END, 2: END}
    own = own_line(lines, at_mismatch, 40)
    assert own == OwnLine((0,), EVALUATE, 4)
    members = {0: (BROADCAST, 1), 1: (BARRIER, 2)}
    told = with_lines(mismatch_of("0", 40, members, BROADCAST), {40: {0: EVALUATE, 1: END}})
    told = replace(told, own_line=own)
    assert told.told_ranks == (0,)
    assert told.difference.endswith(
        "where rank 1 issued a barrier (train.py:11); no other rank issued calls at train.py:10, "
        "where rank 0 issued 4 calls before"
    )
    assert told.remedy == (
        "Make all ranks issue the same calls in the same order: rank 1 at train.py:11 and rank 0 "
        "at train.py:10."
    )

    of_all = with_lines(mismatch_of("0", 40, members, BROADCAST), {**lines, 40: at_mismatch})
    assert (of_all.own_line, of_all.told_ranks) == (own, (0,))


def test_a_majority_is_believed_before_a_line_of_a_rank() -> None:
    own = OwnLine((0,), EVALUATE, 4)
    members = {0: (BROADCAST, 1), 1: (BROADCAST, 1), 2: (BARRIER, 2)}
    told = replace(mismatch_of("0", 40, members), own_line=own)
    assert told.told_ranks == (2,)
    assert told.difference.endswith("rank 2 differs from the majority")


def test_branches_for_each_rank_are_no_line_of_one_rank() -> None:
    lines = {
        number: ({0: "a.py:3", 1: "a.py:5"} if number % 2 else {0: TRAIN, 1: TRAIN})
        for number in range(20)
    }
    assert own_line(lines, {0: "a.py:3", 1: END}, 20) is None


def test_a_line_at_which_nobody_was_before_tells_nothing() -> None:
    lines = {number: {0: TRAIN, 1: TRAIN} for number in range(20)}
    assert own_line(lines, {0: EVALUATE, 1: END}, 20) is None
    assert own_line({}, {0: EVALUATE, 1: END}, 20) is None


def test_the_same_line_with_other_calls_is_said_in_the_remedy() -> None:
    members = {0: (BROADCAST, 1), 1: (BARRIER, 2)}
    told = with_lines(mismatch_of("0", 5, members), {5: {0: TRAIN, 1: TRAIN}})
    assert told.remedy == (
        "Make all ranks issue the same calls in the same order: at train.py:8 they issue "
        "different calls."
    )
    of_three = with_lines(
        mismatch_of("0", 5, {**members, 2: (BARRIER, 3)}), {5: {0: TRAIN, 1: TRAIN}}
    )
    assert "train.py" not in of_three.remedy  # the line of rank 2 is not known


def test_ranks_at_lines_of_their_own_from_the_first_known_call_on_are_no_shift() -> None:
    branches = {number: {0: "a.py:3", 1: "a.py:5"} for number in range(100, 120)}
    assert shifted_since(branches, 120) is None
    together = {99: {0: TRAIN, 1: TRAIN}, **branches}
    assert shifted_since(together, 120) == (100, ((0, "a.py:3"), (1, "a.py:5")))


def test_lines_that_other_ranks_use_too_show_that_a_call_was_left_out_or_added() -> None:
    both, left_out = {0: "a.py:1", 1: "a.py:1"}, {0: "a.py:2", 1: "a.py:3"}
    assert not is_shift({0: both, 1: left_out, 2: {0: "a.py:4", 1: "a.py:5"}}, 1)
    # Rank 1 left a call out.
    assert is_shift({0: both, 1: left_out, 2: {0: "a.py:3", 1: "a.py:5"}}, 1)
    # Rank 1 added a call.
    assert is_shift({0: both, 1: left_out, 2: {0: "a.py:4", 1: "a.py:2"}}, 1)
    # The calls are in a loop.
    assert is_shift({0: {0: "a.py:3", 1: "a.py:3"}, 1: left_out}, 1)
