from __future__ import annotations

import copy

import pytest

from commprof.analysis.replay.gains import gains
from commprof.analysis.step.measured import measured_world
from tests.support.builders.exact.drawn import LATE_IN, PAUSE, SHAPES, Drawn, drawn
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.traces import world_run

#: An error may be at most this fraction of the recorded step.
MOST_OF_STEP = 0.01
#: With 8 ranks a pipeline's stages have replicas that issue the same calls as the late rank.
SIZES = {"ddp": 6, "handles": 5, "fsdp2": 4, "groups": 8, "pipeline": 8}


def errors(of: Drawn) -> tuple[float, float]:
    """Returns the errors of two predicted steps: without the late rank, and with free transfers."""
    times = simulate(of.job)
    seen = measured_world(world_run(recorded(of.job, times)))
    assert seen is not None
    found = gains(seen)
    assert found is not None
    used = seen.measured[0].step[-found.steps :]
    free = copy.deepcopy(of.job)
    for changed in (*free.wire_ns.values(), *free.seen_after_ns.values()):
        changed[:] = 0
    by_change = {(gain.change, gain.rank): gain.step_ms for gain in found.gains}
    step_ms, mended_ms, free_ms = (
        float(simulate(job).wall_ns[used].mean()) / 1e6 for job in (of.job, of.clean, free)
    )
    assert found.step_ms == pytest.approx(step_ms, rel=1e-3)
    return (
        abs(by_change["rank", of.late[0].rank] - mended_ms) / step_ms,
        abs(by_change["communication", -1] - free_ms) / step_ms,
    )


@pytest.mark.parametrize("cause", [*LATE_IN, PAUSE])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_mended_rank_and_free_transfers_give_the_steps_of_the_changed_schedules(
    shape: str, cause: str
) -> None:
    of = drawn(shape, len(cause), SIZES[shape], 12, cause=cause, times_backward=0.8)
    assert max(errors(of)) <= MOST_OF_STEP


def test_a_slow_micro_batch_of_a_pipeline_without_replicas_is_mended() -> None:
    of = drawn("pipeline", 24, 2, 12, cause="backward", times_backward=1.0)
    assert max(errors(of)) <= MOST_OF_STEP
