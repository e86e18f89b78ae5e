"""Demands: what counts as met, what is printed, and the exit code."""

from __future__ import annotations

import math

import pytest

from benchmarks.judging.demands import Demand, at_least, at_most, judged, of_all
from benchmarks.judging.medians import median_interval, ratio_interval, ratio_of


def test_a_limit_itself_meets_and_nan_does_not() -> None:
    assert at_least("x", 3.0, 3).met
    assert not at_least("x", 2.999, 3).met
    assert at_most("x", 3.0, 3).met
    assert not at_most("x", 3.001, 3).met
    assert not at_least("x", math.nan, 3).met
    assert not at_most("x", math.nan, 3).met


def test_figures_carry_unit_and_interval() -> None:
    one = at_least("gain", 3.14159, 3, "x", (2.9, 3.3))
    assert (one.figure, one.asked) == ("3.14x [2.90, 3.30]", "at least 3x")
    assert at_most("error", 0.00123, 0.01, form=".1e").figure == "1.2e-03"


@pytest.mark.parametrize(
    ("found", "tried", "met"),
    [(20, 20, True), (19, 20, False), (19, 19, False), (40, 40, True), (39, 40, False)],
)
def test_all_of_so_many(found: int, tried: int, met: bool) -> None:
    assert of_all("x", found, tried, 20).met is met


@pytest.mark.parametrize(
    ("found", "tried", "met"),
    [(48, 50, True), (47, 50, False), (96, 100, True), (95, 100, False), (49, 49, False)],
)
def test_a_share_of_so_many(found: int, tried: int, met: bool) -> None:
    one = of_all("x", found, tried, 50, 48)
    assert one.met is met
    assert one.asked == "48 of 50"


def test_one_that_is_not_met_decides_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Demand("a", "1", "at most 2", True), Demand("b", "3", "at most 2", False)
    assert judged([good]) == 0
    assert judged([good, bad]) == 1
    assert "met: a: 1 (demand: at most 2)\nNOT met: b: 3 (demand: at most 2)" in (
        capsys.readouterr().out
    )


def test_nothing_measured_is_not_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert judged([]) == 1
    assert "NOT met: nothing was measured" in capsys.readouterr().out


def test_nothing_left_below_is_infinitely_better() -> None:
    assert ratio_of(2, 4) == 0.5
    assert ratio_of(2, 0) == ratio_of(2, -1) == math.inf
    assert ratio_interval([2.0] * 9, [4.0] * 9) == (0.5, 0.5)
    low, high = ratio_interval([2.0] * 9, [-1.0] * 5 + [1.0] * 4)
    assert (low, high) == (2.0, math.inf)


def test_the_interval_of_a_median_holds_it() -> None:
    low, high = median_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert 1 <= low <= 3 <= high <= 100
