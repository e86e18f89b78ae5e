"""Stretches of time, and the pauses of a rank's process outside of its waiting."""

from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.pauses import HOST_PAUSE, ORIGINS, pauses
from commprof.trace.schema import PHASES
from commprof.trace.stretches import Stretches, outside, stretches, within
from tests.support.builders.traces import Rank


def of(*pairs: tuple[int, int]) -> Stretches:
    begin, end = zip(*pairs, strict=True) if pairs else ((), ())
    return stretches(np.array(begin, dtype=np.int64), np.array(end, dtype=np.int64))


def pairs(some: Stretches) -> list[tuple[int, int]]:
    return list(zip(some.begin_ns.tolist(), some.end_ns.tolist(), strict=True))


def moments(some: Stretches) -> set[int]:
    return {at for begin, end in pairs(some) for at in range(begin, end)}


def test_each_moment_counts_once() -> None:
    assert pairs(of()) == []
    assert pairs(of((5, 9), (1, 3), (2, 6), (9, 9), (8, 4))) == [(1, 3), (3, 6), (6, 9)]


@pytest.mark.parametrize("seed", range(30))
def test_within_and_outside_against_single_moments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    some, others = (
        stretches(begin, begin + rng.integers(0, 15, len(begin)))
        for begin in (rng.integers(0, 200, count) for count in rng.integers(0, 12, 2))
    )
    assert moments(within(some, others)) == moments(some) & moments(others)
    assert moments(outside(some, others)) == moments(some) - moments(others)
    assert (np.diff(within(some, others).begin_ns) > 0).all()


def test_a_pause_in_waiting_is_waiting() -> None:
    rank = Rank()
    rank.step(0, 1000)
    rank.wait(rank.collective(0, 190, 300), 200, 300)
    rank.pause(150, 250)
    rank.pause(280, 400)
    rank.pause(500, 500)
    trace = rank.trace()
    exposed = exposures_of(trace)
    assert pairs(pauses(trace, exposed)) == [(150, 200), (300, 400)]


def test_origins_are_the_phases_and_pauses() -> None:
    assert (*PHASES, HOST_PAUSE) == ORIGINS
