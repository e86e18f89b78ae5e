from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from commprof.errors import CommprofError
from commprof.forecast.fit.held_out import check
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.what_if.answers import answer
from tests.support.builders.sharded_job import MB, fsdp_steps, replay
from tests.support.builders.traces import MS


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_each_accumulated_pass_gathers_again_but_gradients_are_reduced_once(passes: int) -> None:
    found = replay().predict(Scenario(2, accumulate=passes))
    # A further pass adds 62 ms of data, forward and backward, and two all-gathers of 5 ms each.
    assert found.step_s.value * 1e3 == pytest.approx(96 + (passes - 1) * 72)
    assert found.buckets == 4 * passes + 2
    assert found.sent_bytes == pytest.approx((4 * passes * 0.5 + 2 * 1.0) * MB)


def test_an_early_start_of_a_rank_counts_once_per_step_with_accumulation() -> None:
    steps = fsdp_steps()
    early = np.zeros((1, 2, 1))
    early[0, 1] = 5 * MS
    steps = dataclasses.replace(steps, own_ns=steps.own_ns - early)
    made = replay(steps)
    of_passes = [made.predict(Scenario(2, accumulate=n)).step_s.value * 1e3 for n in (1, 2, 3)]
    assert np.diff(of_passes) == pytest.approx([72, 72])


def test_the_best_number_of_passes_has_the_least_time_per_sample() -> None:
    asked = [Scenario(2, accumulate=passes) for passes in (1, 4)]
    found = answer(replay(), asked, [], [], None, math.nan).best
    assert found is not None
    assert found.candidate.prediction.scenario.accumulate == 4
    assert found.candidate.gain == pytest.approx(1 - (96 + 3 * 72) / 4 / 96)


def test_a_check_uses_the_checked_run_s_number_of_passes() -> None:
    once = fsdp_steps()
    several = dataclasses.replace(once, passes=4, period_s=4 * once.period_s)
    assert check(replay(several), several, "itself", True).as_is_s == pytest.approx(4 * 0.096)
    assert check(replay(), several, "another", False).as_is_s == pytest.approx(4 * 0.096)
    assert check(replay(), several, "another", False).predicted_s == pytest.approx(0.312)


def test_changing_the_passes_of_an_accumulated_recording_is_refused() -> None:
    steps = dataclasses.replace(fsdp_steps(), passes=4)
    made = replay(steps)
    assert made.predict(Scenario(2, accumulate=4)).step_s.value * 1e3 == pytest.approx(96)
    with pytest.raises(CommprofError, match=r"--accumulate 2: a recorded step has 4 .*allowed: 4"):
        made.predict(Scenario(2, accumulate=2))
    assert fsdp_steps().passes == 1
