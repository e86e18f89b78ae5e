from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.late.late_series import late_series
from commprof.analysis.verdict import verdict
from tests.support.builders.caused import Script, facts_of
from tests.support.builders.results import detail, run_result
from tests.support.builders.traces import MS

STEP = 100.0 * MS


def waited_for(late_steps: list[int], steps: int = 20, ms: float = 30.0) -> np.ndarray:  # type: ignore[type-arg]
    """Each of three ranks waits ``ms`` for rank 2 in each of the ``late_steps``."""
    waited = np.random.default_rng(1).uniform(0.0, 0.5 * MS, (steps, 4))
    waited[late_steps, 2] += 3 * ms * MS
    return waited


@pytest.mark.parametrize(
    ("late_steps", "series"),
    [
        (list(range(5, 15)), slice(5, 15)),
        ([5, 6, 7, 9, 10], slice(5, 11)),
        ([15, 16, 17, 18, 19], slice(15, 20)),
        ([5, 6], None),
        ([2, 3, 4, 14, 15, 16], None),
        (list(range(2, 20)), None),
        ([], None),
    ],
)
def test_one_series_of_late_steps_is_found(late_steps: list[int], series: slice | None) -> None:
    assert late_series(waited_for(late_steps), STEP) == series


def test_waits_of_less_than_two_percent_of_the_step_are_no_series() -> None:
    assert late_series(waited_for([5, 6, 7, 8], ms=1.0), STEP) is None


def test_the_report_says_in_which_steps_the_rank_was_late() -> None:
    def body(script: Script, step: int) -> None:
        slowed = 30.0 * (script.rank.rank == 1 and 4 <= step < 8)
        script.forward(10.0 + slowed + 0.1 * ((7 * step + 5 * script.rank.rank) % 4))
        script.backward(20.0)
        script.meet(2.0)

    world = facts_of(body, ranks=4).world
    assert world.lateness.late_rank is None
    said = "nearly all of it from step 4 to step 7"
    assert world.evidence.stands_out.endswith(said)
    found = verdict(run_result(world), [detail(4, backward=40, wait=25, transfer=5)])
    assert found is not None
    start = "First find out what slowed rank 1 from step 4 to step 7: the ranks wait"
    assert found.next_step.advice.startswith(start)
