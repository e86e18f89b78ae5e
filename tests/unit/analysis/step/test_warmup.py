from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.step.measured import count_warmup, step_signatures
from commprof.trace import columns
from tests.support.builders.traces import Rank


def warmup(wall: list[float], signatures: list[int] | None = None) -> int:
    codes = [1] * len(wall) if signatures is None else signatures
    return count_warmup(np.array(wall, dtype=np.float64), np.array(codes, dtype=np.uint64))


@pytest.mark.parametrize(("steps", "expected"), [(0, 0), (1, 0), (2, 1), (3, 1), (20, 1)])
def test_the_first_step_is_warmup_if_there_is_another_step(steps: int, expected: int) -> None:
    assert warmup([100.0] * steps) == expected


def test_a_fast_first_step_is_warmup_too() -> None:
    assert warmup([50.0] + [100.0] * 9) == 1


def test_leading_steps_with_other_collectives_are_warmup() -> None:
    # DDP regroups its buckets after the first step.
    assert warmup([100.0] * 10, [1, 2, 3, 3, 3, 3, 3, 3, 3, 3]) == 2


def test_leading_slow_steps_are_warmup_until_the_first_step_of_usual_length() -> None:
    # The second half has the median 100 and no deviation, so the limit is 110.
    assert warmup([300, 200, 111, 110, 400, 100, 100, 100, 100, 100]) == 3


def test_leading_slow_steps_within_the_noise_of_later_steps_are_not_warmup() -> None:
    # The second half has the median 100 and a robust deviation of 7.4, so the limit is 137.
    later = [90, 95, 100, 105, 110]
    assert warmup([300, 136, 100, 100, 100, *later]) == 1
    assert warmup([300, 138, 100, 100, 100, *later]) == 2


def test_at_most_half_of_the_steps_are_warmup() -> None:
    assert warmup([900, 800, 700, 600, 500, 100, 100, 100, 100, 100]) == 5
    assert warmup([900, 800, 700, 600, 500], [1, 2, 3, 4, 5]) == 2
    assert warmup([100.0] * 9, list(range(9))) == 4


@pytest.mark.parametrize("period", [2, 3, 4])
def test_gradient_accumulation_is_not_warmup(period: int) -> None:
    signatures = [int(step % period == period - 1) for step in range(24)]
    assert warmup([100.0] * 24, signatures) == 1


def test_slow_steps_after_the_first_usual_one_are_not_warmup() -> None:
    assert warmup([300, 100, 100, 900, 100, 100, 900, 100]) == 1


def test_step_signatures_depend_only_on_the_order_of_operations_and_sizes() -> None:
    rank = Rank()
    for step in range(5):
        rank.step(100 * step, 100 * step + 100)
    rank.collective(0, 10, 20, bytes=8)
    rank.collective(1, 30, 40, bytes=16)
    rank.collective(2, 115, 170, bytes=8)
    rank.collective(3, 120, 190, bytes=16)
    rank.collective(4, 210, 220, bytes=16)
    rank.collective(5, 230, 240, bytes=8)
    rank.collective(6, 310, 320, bytes=8)
    rank.collective(7, 330, 340, bytes=16, op="broadcast")
    trace = rank.trace()
    found = step_signatures(columns.steps(trace), columns.collectives(trace)).tolist()
    assert found[0] == found[1]
    assert len(set(found)) == 4


def test_step_signatures_are_equal_if_there_are_no_collectives() -> None:
    rank = Rank()
    for step in range(3):
        rank.step(100 * step, 100 * step + 100)
    trace = rank.trace()
    found = step_signatures(columns.steps(trace), columns.collectives(trace))
    assert len(set(found.tolist())) == 1
    assert len(step_signatures(columns.steps(Rank().trace()), columns.collectives(trace))) == 0
