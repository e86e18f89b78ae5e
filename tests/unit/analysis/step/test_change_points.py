"""Lasting changes: found soon where there are some, and hardly ever where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.step.change_points import (
    CUT,
    LIMIT,
    REFERENCE,
    SLACK,
    Change,
    ChangeDetector,
)

#: Series and their length for the false alarms: 50,000 values of each kind.
_SERIES, _LENGTH = 25, 2_000


def changes(values: list[float]) -> list[Change]:
    """All of them in a whole series; each as it is found in time."""
    detector = ChangeDetector()
    return [change for value in values if (change := detector.add(value)) is not None]


def noise(kind: str, generator: np.random.Generator, length: int) -> np.ndarray:
    """Around 100, with a spread of some percent."""
    if kind == "normal":
        return 100 + 3 * generator.standard_normal(length)
    if kind == "student t, 2 degrees":  # no variance: tails as of a busy host
        return 100 + 3 * np.abs(generator.standard_t(2, length))
    if kind == "lognormal":
        return 100 * np.exp(0.1 * generator.standard_normal(length))
    # One step in ten takes three times as long, as with an evaluation.
    return (100 + generator.standard_normal(length)) * np.where(np.arange(length) % 10, 1, 3)


@pytest.mark.parametrize("kind", ["normal", "student t, 2 degrees", "lognormal", "every tenth"])
def test_false_alarms_are_rare(kind: str) -> None:
    generator = np.random.default_rng(7)
    alarms = sum(len(changes(noise(kind, generator, _LENGTH).tolist())) for _ in range(_SERIES))
    # At most one in 50,000 values.
    assert alarms <= 1


@pytest.mark.parametrize("kind", ["normal", "student t, 2 degrees", "lognormal"])
@pytest.mark.parametrize("factor", [1.5, 0.6])
def test_a_lasting_change_is_found_at_its_place(kind: str, factor: float) -> None:
    generator = np.random.default_rng(11)
    for begin in (60, 150, 333):
        values = noise(kind, generator, 500)
        values[begin:] *= factor
        (found,) = changes(values.tolist())
        assert abs(found.begin - begin) <= 5
        # Beyond the cut each value adds CUT - SLACK.
        assert found.found - begin <= LIMIT / (CUT - SLACK) + 3
        assert found.ratio == pytest.approx(factor, rel=0.15)


def test_a_change_and_the_way_back_are_two() -> None:
    values = [100.0 + i % 3 for i in range(100)]
    slow = [130.0 + i % 3 for i in range(100)]
    up, down = changes(values + slow + values)
    assert (up.begin, up.before, up.after) == (100, 101, 131)
    assert (down.begin, down.before, down.after) == (200, 131, 101)
    assert up.found == 100 + int(LIMIT / (CUT - SLACK))


def test_single_slow_steps_and_small_changes_are_none() -> None:
    values = [100.0 + i % 3 for i in range(200)]
    values[80] = values[81] = values[120] = 60_000.0
    assert changes(values) == []
    assert changes([100.0 + i % 3 for i in range(100)] + [103.0 + i % 3 for i in range(900)]) == []


def test_nothing_is_said_before_the_level_is_known() -> None:
    assert changes([1.0] * (REFERENCE // 2) + [9.0] * (REFERENCE // 2)) == []
    assert changes([5.0] * 500) == []
    assert changes([0.0] * 500) == []
