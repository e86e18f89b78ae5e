"""What a try of a fault is judged by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.machines.faults.faults import Ended, Fault, Verdict, first_error

FAULT = Fault("SIGKILL", cause=r"process \d+ is gone")
ENDED = [Ended(1, "RuntimeError: gloo N", "", 20), Ended(-9, "", "", 20)]
GOOD = Verdict(
    name=FAULT.name,
    plain=ENDED,
    recorded=ENDED,
    kept=[20, 20],
    report="rank 1: its process 7\n  is gone",
    fault=FAULT,
    must_keep=[],
)


def judged(verdict: Verdict) -> tuple[bool, bool, bool]:
    return verdict.unharmed, verdict.records_kept, verdict.cause_named


def test_a_good_one() -> None:
    assert judged(GOOD) == (True, True, True)


def test_a_watcher_that_stays_behind_is_harm() -> None:
    assert judged(replace(GOOD, left=[7])) == (False, True, True)


def test_what_may_be_lost_is_a_count_of_steps_or_what_came_after_a_moment() -> None:
    less = replace(GOOD, kept=[20, 15])
    assert judged(less) == (True, False, True)
    assert judged(replace(less, fault=replace(FAULT, may_lose=5))) == (True, True, True)
    assert judged(replace(less, must_keep=[15, 15])) == (True, True, True)
    assert judged(replace(less, must_keep=[15, 16])) == (True, False, True)


@pytest.mark.parametrize("said", ["", "commprof: watchdog: rank 1 is gone\n"])
def test_the_first_error_is_the_scripts_whatever_watches(said: str) -> None:
    stderr = f"Traceback (most recent call last):\n  File x\n{said}RuntimeError: gloo 7\n"
    assert first_error(said + stderr) == "RuntimeError: gloo N"
