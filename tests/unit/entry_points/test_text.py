"""Counts and lists in sentences."""

from __future__ import annotations

import pytest

from commprof.text import counted, listed, named_ranks, plural, printable


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (1, "1 step"),
        (0, "0 steps"),
        (7, "7 steps"),
        ([1], "1 step"),
        ([1, 2, 4], "1, 2 and 4 steps"),
    ],
)
def test_counts(numbers: int | list[int], said: str) -> None:
    assert counted(numbers, "step") == said


def test_lists() -> None:
    assert listed(["a"]) == "a"
    assert listed((1, 2)) == "1 and 2"
    assert named_ranks([3]) == "rank 3"
    assert named_ranks([0, 2]) == "ranks 0, 2"
    assert named_ranks([]) == "no rank"
    assert plural(2, "core") == "cores"


def test_nothing_that_a_terminal_obeys() -> None:
    assert printable("a\nb\x1b[2J\x00") == "a b\\x1b[2J\\x00"
