"""When the watchdog speaks up."""

from __future__ import annotations

import pytest

from commprof.errors import UsageError
from commprof.monitor.watchdog.thresholds import FLOOR_S, START_S, Threshold, parse_threshold

SECOND = 1_000_000_000


def learnt(*steps_s: float) -> float:
    threshold = Threshold(None)
    for step_s in steps_s:
        threshold.learn(int(step_s * SECOND))
    return threshold.limit_ns / SECOND


def test_the_texts() -> None:
    assert parse_threshold("auto") is None
    assert parse_threshold("2.5") == 2.5
    for text in ("0", "-1", "soon", "nan", "inf", ""):
        with pytest.raises(UsageError, match="allowed: auto, or a number of seconds"):
            parse_threshold(text)


def test_a_fixed_one_learns_nothing() -> None:
    threshold = Threshold(2.5)
    threshold.learn(100 * SECOND)
    assert threshold.limit_ns == 2.5 * SECOND
    assert threshold.text == "2.5 s, as asked for"


def test_auto_learns_from_the_steps() -> None:
    assert learnt() == learnt(*[1.0] * 9) == START_S
    assert learnt(*[0.1] * 20) == FLOOR_S
    assert learnt(*[3.0] * 20) == pytest.approx(30)  # 10 x the median
    # Half of them at 4, half at 6 s: 5 + 20 x 1.4826 x 1.
    assert learnt(*[4.0, 6.0] * 10) == pytest.approx(max(50, 5 + 20 * 1.4826))
    # A checkpoint of 40 s has come to an end: three times that.
    assert learnt(*[1.0] * 20, 40.0, *[1.0] * 20) == pytest.approx(120)
