from __future__ import annotations

import numpy as np
import pytest

from commprof.trace.schema import Phase
from tests.support.analysed import analyse_world
from tests.support.builders.exact.drawn import SHAPES, Drawn, drawn
from tests.support.builders.exact.outcome import outcome
from tests.support.builders.traces import MS, Rank, world_run


def job_of_few_steps(seed: int, late: int) -> Drawn:
    random = np.random.default_rng([seed, 77])
    size, shape = round(2 ** random.uniform(1, 4)), str(random.choice(list(SHAPES)))
    size += size % 2 if shape == "pipeline" else 0
    return drawn(shape, seed, size, int(random.integers(3, 6)), late, hosts=1)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 6])
def test_the_late_rank_of_an_own_run_of_few_steps_is_named_with_its_cause(seed: int) -> None:
    job = job_of_few_steps(seed, late=1)
    assert outcome(job).cause_is_right(job)


# A limit of 1 % instead of 0.1 % on the probability would name a rank in these jobs.
@pytest.mark.parametrize("seed", [124, 294])
def test_a_clean_own_run_of_few_steps_names_nobody(seed: int) -> None:
    assert outcome(job_of_few_steps(seed, late=0)).rank is None


def test_waiting_for_a_lack_of_cores_is_a_part_of_all_waiting() -> None:
    ranks = [Rank(rank, 4) for rank in range(4)]
    for rank in ranks:
        for begin in range(0, 800 * MS, 200 * MS):
            arrived, end = begin + (160 if rank.rank == 2 else 60) * MS, begin + 165 * MS
            rank.step(begin, begin + 200 * MS)
            rank.phase(Phase.BACKWARD, begin + 10 * MS, end)
            op = rank.collective(begin // (200 * MS), arrived, end)
            rank.wait(op, arrived, end)
            if rank.rank == 2:
                rank.no_core(begin + 10 * MS, arrived, 90 * MS)
    world = analyse_world(world_run(ranks))
    assert world is not None
    late = world.lateness.late_rank
    assert late is not None
    assert (late.rank, late.share) == (2, pytest.approx(0.1))
