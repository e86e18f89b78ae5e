from __future__ import annotations

import numpy as np
import pytest

from tests.support.builders.exact import truth
from tests.support.builders.exact.drawn import LATE_IN, PAUSE, SHAPES, Drawn, any_job, drawn
from tests.support.builders.exact.outcome import outcome
from tests.support.builders.exact.simulation import simulate

#: An error may be at most this fraction of the step's length.
MOST_OF_STEP = 0.01


def check(of: Drawn) -> None:
    found = outcome(of)
    expected = (of.late[0].rank, of.late[0].cause) if of.late else (None, None)
    assert (found.rank, found.cause) == expected
    errors = found.cost_error, found.wait_error, found.transfer_error
    assert max(errors) <= MOST_OF_STEP, errors


@pytest.mark.parametrize("cause", [*LATE_IN, PAUSE])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_late_rank_its_cause_and_all_costs_of_waiting_are_right(shape: str, cause: str) -> None:
    seed = 10 * list(SHAPES).index(shape) + [*LATE_IN, PAUSE].index(cause)
    size = (2, 4, 8, 10, 12)[seed % 5]
    # Most of a pipeline's waiting is its bubble, so a late rank shows only over more steps.
    steps = 16 if shape == "pipeline" else 12
    check(drawn(shape, seed, size, steps, cause=cause, hosts=1 + seed % 3 if size >= 8 else 1))


@pytest.mark.parametrize("times_backward", [0.2, 0.35, 1.0, 3.0])
@pytest.mark.parametrize("size", [4, 16, 32])
def test_a_rank_that_is_late_in_forward_is_never_late_in_backward(
    size: int, times_backward: float
) -> None:
    check(drawn("ddp", size, size, 12, cause="forward", times_backward=times_backward))


@pytest.mark.parametrize("shape", SHAPES)
def test_of_jobs_without_a_late_rank_no_rank_is_accused(shape: str) -> None:
    check(drawn(shape, 3, 8, 12, late=0))


@pytest.mark.parametrize("shape", ["ddp", "handles", "fsdp2"])
def test_of_two_late_ranks_the_later_is_named_and_two_in_turn_are_not(shape: str) -> None:
    check(drawn(shape, 5, 8, 12, late=2))
    in_turn = drawn(shape, 6, 8, 12, late=2, in_turn=True)
    found = outcome(in_turn)
    assert found.rank is None
    assert found.cost_error <= MOST_OF_STEP


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("seed", range(60))
def test_many_more_drawn_schedules(seed: int, late: int) -> None:
    check(any_job(seed, late, most_ranks=256))


def test_waiting_of_a_schedule_that_is_computed_by_hand() -> None:
    of = drawn("ddp", 0, 3, 6, late=0)
    for times in of.job.work_ns.values():
        times[:] = 1_000_000
    for wire in of.job.wire_ns.values():
        wire[:] = 100_000
    for seen in of.job.seen_after_ns.values():
        seen[:] = 1000
    of.job.copy_ns = 0
    of.job.begin_ns = np.zeros(3, dtype=np.int64)
    of.job.lengthen(1, LATE_IN["forward"], np.full(6, 5_000_000.0))
    found = truth.truth_of(of.job, simulate(of.job))
    # Rank 1 never waits. Each other rank spends 5 ms in its finalisation, of which 101 us are
    # transfer.
    assert found.transfer_ns[1:, 0].tolist() == pytest.approx([101_000] * 5)
    assert found.wait_ns[1:, 0].tolist() == pytest.approx([4_899_000] * 5)
    assert found.wait_ns[:, 1].tolist() == [0] * 6
    forward = truth.CAUSES.index("forward")
    caused = found.caused_ns[1:]
    assert caused[:, 1, forward].tolist() == pytest.approx([2 * 4_899_000] * 5)
    assert caused.sum() == pytest.approx(caused[:, 1, forward].sum())
