from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from commprof.analysis.replay import program
from commprof.analysis.replay.gains import Gains, gains, recorded_replays, saved_by
from commprof.analysis.step.measured import measured_world
from tests.support.builders.exact.drawn import drawn
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.traces import world_run

_STEPS = 120
_SAMPLE = 3000


def test_savings_of_causes_are_as_wide_as_those_of_the_gains() -> None:
    job = drawn("ddp", 0, size=4, steps=_STEPS, cause="forward", times_backward=0.4).job
    seen = measured_world(world_run(recorded(job, simulate(job))))
    assert seen is not None
    for most_events, is_sample in ((_SAMPLE, True), (10**6, False)):
        with patch.object(program, "_MOST_EVENTS", most_events):
            replays = recorded_replays(seen)
        assert replays is not None
        base = np.linspace(1e7, 2e7, len(replays.counted))
        expected = saved_by(base[replays.counted], 1e7 * np.ones(replays.counted.sum()), is_sample)
        assert replays.saved(base, np.full(len(base), 1e7)) == expected


def _gains(seed: int, most_events: int) -> Gains:
    job = drawn("ddp", seed, size=4, steps=_STEPS, cause="forward", times_backward=0.4).job
    seen = measured_world(world_run(recorded(job, simulate(job))))
    assert seen is not None
    with patch.object(program, "_MOST_EVENTS", most_events):
        found = gains(seen)
    assert found is not None
    return found


def test_gains_of_a_sample_hold_those_of_all_steps_in_their_intervals() -> None:
    inside = tried = 0
    for seed in range(6):
        sample, whole = _gains(seed, _SAMPLE), _gains(seed, 10**6)
        assert 10 < sample.steps < 0.75 * whole.steps
        assert sample.measured_steps == whole.measured_steps == _STEPS - 1
        by_change = {(gain.change, gain.rank): gain.saved.value for gain in whole.gains}
        for gain in sample.gains:
            value = by_change.get((gain.change, gain.rank))
            if value is not None and abs(value) > 0.01:
                tried += 1
                inside += gain.saved.low <= value <= gain.saved.high
            if value is not None:
                assert gain.saved.value == pytest.approx(value, abs=0.02)
    assert tried >= 12
    # Some of the 95 % intervals may miss the value.
    assert inside >= 0.85 * tried


@pytest.mark.parametrize(("steps", "alike"), [(12, 0.0), (24, 0.5), (40, 0.7)])
def test_intervals_of_few_steps_that_are_alike_hold_the_saving(steps: int, alike: float) -> None:
    """``alike`` is the correlation between the savings of neighbouring steps."""
    random = np.random.default_rng(steps)
    inside = {True: 0, False: 0}
    runs = 300
    for _ in range(runs):
        drawn, part = random.standard_normal(steps), np.empty(steps)
        part[0] = drawn[0]
        for step in range(1, steps):
            part[step] = alike * part[step - 1] + np.sqrt(1 - alike**2) * drawn[step]
        base = 1e7 * (1 + 0.05 * random.standard_normal(steps))
        changed = base * (0.9 + 0.03 * part)
        for is_sample in inside:
            saved = saved_by(base, changed, is_sample)
            inside[is_sample] += saved.low <= 0.1 <= saved.high
    assert inside[True] >= 0.92 * runs
    assert inside[False] < 0.92 * runs
