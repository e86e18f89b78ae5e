from __future__ import annotations

from unittest.mock import patch

import pytest

from commprof.analysis.replay import engine, program
from commprof.analysis.replay.gains import gains
from commprof.analysis.step.measured import measured_world
from tests.support.builders.exact.drawn import SHAPES, drawn
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.traces import world_run

pytestmark = pytest.mark.skipif(
    engine.NativePlan is None, reason="the module `_reading` was not built"
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_both_replays_give_the_same_gains(shape: str, seed: int) -> None:
    job = drawn(shape, seed, size=4, steps=14).job
    seen = measured_world(world_run(recorded(job, simulate(job))))
    assert seen is not None
    native = gains(seen)
    with (
        patch.object(engine, "NativePlan", None),
        patch.object(program, "moved_events", None),
        patch.object(program, "last_until", None),
    ):
        in_python = gains(seen)
    assert native is not None
    assert native == in_python
    assert native.gains
