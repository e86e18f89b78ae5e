from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.late.passed_on import PassedOn, passed_on

STEPS, BLOCKS = 100, 10
MS = 1e6


def of(
    waits_ms: dict[tuple[int, int], float], excess_ms: dict[int, float], ranks: int = 6
) -> PassedOn | None:
    """``waits_ms`` holds the wait in ms per step by waiting rank and rank waited for."""
    by_waiting = np.zeros((ranks, ranks))
    for pair, wait_ms in waits_ms.items():
        by_waiting[pair] = wait_ms * MS * STEPS
    excess = np.array([excess_ms.get(rank, 0.0) for rank in range(ranks)]) * MS
    waited_for = np.tile(by_waiting.sum(axis=0) / BLOCKS, (BLOCKS, 1))
    return passed_on(waited_for, by_waiting, excess, STEPS)


def test_a_chain_of_three_ranks_begins_at_the_first() -> None:
    found = of({(1, 0): 20, (2, 1): 20, (3, 2): 20}, {0: 20})
    assert found is not None
    assert found.through == (1, 2)
    assert found.waited_for_ns.sum(axis=0) / (MS * STEPS) == pytest.approx([60, 0, 0, 0, 0, 0])
    assert found.by_waiting_ns[:, 0] / (MS * STEPS) == pytest.approx([0, 20, 20, 20, 0, 0])


def test_own_work_of_a_rank_that_waited_is_not_passed_on() -> None:
    found = of({(1, 0): 20, (2, 1): 30}, {0: 20, 1: 10})
    assert found is not None
    assert found.waited_for_ns.sum(axis=0)[:2] / (MS * STEPS) == pytest.approx([40, 10])


def test_a_rank_that_is_late_by_its_own_work_passes_nothing_on() -> None:
    assert of({(1, 0): 5, (2, 1): 30}, {0: 5, 1: 30}) is None


def test_a_rank_of_which_nothing_is_known_passes_nothing_on() -> None:
    assert of({(1, 0): 20, (2, 1): 20}, {0: 20, 1: np.nan}) is None


def test_ranks_that_wait_for_each_other_are_no_chain() -> None:
    found = of({(0, 1): 10, (1, 0): 10}, {0: 0, 1: 0}, ranks=2)
    assert found is None or np.isfinite(found.waited_for_ns).all()


def test_no_waiting_is_made_or_lost() -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        ranks = int(random.integers(2, 12))
        by_waiting = random.exponential(size=(ranks, ranks)) * (random.random((ranks, ranks)) < 0.4)
        np.fill_diagonal(by_waiting, 0)
        if not by_waiting.any():
            continue
        waited_for = np.tile(by_waiting.sum(axis=0) / BLOCKS, (BLOCKS, 1))
        excess = random.exponential(size=ranks) * 0.01
        found = passed_on(waited_for, by_waiting, excess, STEPS)
        if found is not None:
            first = int(np.argmax(found.by_waiting_ns.sum(axis=0)))
            total = found.waited_for_ns.sum()
            assert total <= waited_for.sum() * (1 + 1e-9)
            assert (found.waited_for_ns >= 0).all()
            column = found.by_waiting_ns[:, first].sum()
            assert found.waited_for_ns[:, first].sum() == pytest.approx(column, rel=1e-3)
