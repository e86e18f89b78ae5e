from __future__ import annotations

import pytest

from commprof.workloads.optimizing import LearningRate, cosine, step_decay


def test_schedules_at_their_ends_and_corners() -> None:
    assert [cosine(x) for x in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    assert [step_decay(x) for x in (0, 0.49, 0.5, 0.74, 0.75, 1)] == [1, 1, 0.1, 0.1, 0.01, 0.01]


def test_a_rate_is_scaled_warmed_up_and_then_falls() -> None:
    rate = LearningRate(base=0.1, schedule=cosine, steps=8, scale=4, warmup_steps=4)

    # Quarters of 0.4, then a cosine over the four steps behind them.
    expected = [0.1, 0.2, 0.3, 0.4, 0.4, 0.4 * 0.853553, 0.2, 0.4 * 0.146447, 0]
    assert [rate.at(step) for step in range(9)] == pytest.approx(expected, abs=1e-6)
    assert rate.at(100) == pytest.approx(0)


def test_without_warm_up_the_first_step_has_the_whole_rate() -> None:
    assert LearningRate(0.1, step_decay, steps=4).at(0) == 0.1


def test_a_warm_up_longer_than_the_run_only_grows() -> None:
    rate = LearningRate(1.0, cosine, steps=2, warmup_steps=4)

    assert [rate.at(step) for step in range(2)] == [0.25, 0.5]
