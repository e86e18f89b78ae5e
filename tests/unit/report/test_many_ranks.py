from __future__ import annotations

from dataclasses import replace

from commprof.analysis.late.costs import WaitCost
from commprof.analysis.world import WorldResult
from commprof.report.sections.waiting_causes import causes_grid
from tests.support.builders import results


def _world(ranks: int, hosts: int) -> WorldResult:
    costs = tuple(
        WaitCost(rank, cause, (1 + rank % 50) / 2, 0.0)
        for rank in range(ranks)
        for cause in ("forward", "backward")
    )
    made = results.world(ranks, wait_costs=costs)
    placed = tuple(replace(rank, host=f"host{rank.rank * hosts // ranks}") for rank in made.ranks)
    return replace(made, ranks=placed)


def test_ten_ranks_are_shown_host_by_host_and_the_rest_as_a_distribution() -> None:
    grid = causes_grid([_world(200, 4)])
    assert grid is not None
    names = [row[0] for row in grid.rows]
    assert names == [
        *("rank 47 (host0)", "rank 48 (host0)", "rank 49 (host0)"),
        *("rank 97 (host1)", "rank 98 (host1)", "rank 99 (host1)"),
        *("rank 148 (host2)", "rank 149 (host2)"),
        *("rank 198 (host3)", "rank 199 (host3)"),
        "190 others (median 24, at most 48 each)",
        "all",
    ]
    forward, backward, total = ([float(row[column]) for row in grid.rows] for column in (1, 2, 3))
    assert forward[:3] == backward[:3] == [24, 24.5, 25]
    assert total[-1] == 4 * sum(range(1, 51)) == 5100
    assert total[-2] == 5100 - (4 * 50 + 4 * 49 + 2 * 48)


def test_ranks_of_one_host_have_no_host_and_few_ranks_are_all_shown() -> None:
    one_host = causes_grid([_world(40, 1)])
    assert one_host is not None
    assert [row[0] for row in one_host.rows][:2] == ["rank 30", "rank 31"]
    few = causes_grid([_world(32, 4)])
    assert few is not None
    assert [row[0] for row in few.rows] == [*(f"rank {rank}" for rank in range(32)), "all"]
