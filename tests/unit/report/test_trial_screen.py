"""A trial on one screen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commprof.report.trial import screen
from tests.unit.report.test_trial_table import sample

COMMAND = "commprof report RUN --all"


def test_the_verdict_comes_before_the_candidates() -> None:
    lines = screen.render(sample(), "timed: sleeps.", COMMAND, 3).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    order = [
        "Use int8: a step is 50.0 % [49.5, 50.4] shorter",
        "To apply it:",
        "none again",
        COMMAND,
    ]
    assert sorted(order, key=text.index) == order
    assert "0.500 [0.497, 0.504]" in text
    assert lines[-3].startswith("! ")
    assert lines[-1] == f"  {COMMAND}"


@pytest.mark.parametrize("count", [1, 3, 40])
def test_many_candidates_are_counted(count: int) -> None:
    trial = sample()
    one = replace(trial.candidates[-1], label="a candidate with a long name " * 3)
    trial = replace(trial, candidates=(*trial.candidates[:1], *[one] * count))
    lines = screen.render(trial, "word " * 50, COMMAND).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert any("more" in line for line in lines) == (count > 3)
