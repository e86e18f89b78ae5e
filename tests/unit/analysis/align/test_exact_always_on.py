from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.summaries import late_rank
from tests.support.builders.exact.always_on import summarised
from tests.support.builders.exact.drawn import LATE_IN, PAUSE, SHAPES, Drawn, chain, drawn
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.exact.truth import truth_of
from tests.support.builders.traces import MS
from tests.support.machines.core_tests import build

pytestmark = pytest.mark.timeout(1800)  # the first test builds the core's tests
STEPS = 12
#: In jobs of these shapes, each rank waits directly for the rank at which the waiting begins.
DIRECT = ("ddp", "handles", "fsdp2")


def named(of: Drawn, directory: Path) -> tuple[int, str] | None:
    times = simulate(of.job)
    true = truth_of(of.job, times)
    program = build("") / "test_recorded_ranks"
    traces, summaries = summarised(program, recorded(of.job, times), directory)
    step_ns = float(times.wall_ns.mean())
    for rank, summary in enumerate(summaries):
        steps = summary.steps.count
        assert steps == of.job.steps - 1
        for found, known in (
            (summary.exposed_wait, true.wait_ns),
            (summary.exposed_transfer, true.transfer_ns),
        ):
            mean_ns = float(known[-steps:, rank].mean())
            assert found.sum_ns / steps == pytest.approx(mean_ns, abs=0.01 * step_ns)
    late = late_rank(traces, summaries)
    return None if late is None else (late.rank, late.phase)


@pytest.mark.parametrize("cause", [*LATE_IN, PAUSE])
@pytest.mark.parametrize("shape", DIRECT)
def test_the_late_rank_its_phase_and_all_waiting_are_right(
    shape: str, cause: str, tmp_path: Path
) -> None:
    of = drawn(shape, len(cause), 2 + len(cause), STEPS, cause=cause)
    assert named(of, tmp_path) == (of.late[0].rank, cause)


@pytest.mark.parametrize("seed", range(5, 9))
@pytest.mark.parametrize("shape", ["groups", "pipeline"])
def test_where_waiting_is_passed_on_the_rank_at_which_it_begins_is_named(
    shape: str, seed: int, tmp_path: Path
) -> None:
    """A pipeline's stages always wait for each other, so for some seeds no rank is named."""
    of = drawn(shape, seed, 8, STEPS, cause="forward")
    late = named(of, tmp_path)
    assert late == (of.late[0].rank, "forward") or (late is None and shape == "pipeline")


@pytest.mark.parametrize("shape", SHAPES)
def test_no_rank_is_named_in_jobs_without_a_late_rank(shape: str, tmp_path: Path) -> None:
    assert named(drawn(shape, 4, 8, STEPS, late=0), tmp_path) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_waited_itself_is_not_named_but_the_one_it_waited_for(
    seed: int, tmp_path: Path
) -> None:
    job = chain(seed, 8, STEPS)
    job.lengthen(0, LATE_IN["forward"], np.full(STEPS, 6.0 * MS))
    assert named(Drawn(job, job), tmp_path) == (0, "forward")
