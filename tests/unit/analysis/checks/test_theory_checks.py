"""Bytes exchanged against the strategy's theory, on steps made by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.trace.schema import Phase
from tests.support.analysed import analyse_world
from tests.support.builders.traces import MS, Rank, world_run

STEPS = 8
MB = 1_000_000


def ranks_of(count: int, **metadata: Any) -> list[Rank]:
    """Steps of 100 ms: two all-gathers, of 3 MB and 1 MB, and a reduce-scatter of 2 MB."""
    ranks = [Rank(rank, count, **metadata) for rank in range(count)]
    for step in range(STEPS):
        at = 100 * MS * step
        for rank in ranks:
            rank.step(at, at + 100 * MS)
            rank.phase(Phase.FORWARD, at, at + 50 * MS)
            for part, (op, sent, received) in enumerate(
                [
                    ("all_gather_into_tensor", 3 * MB // count, 3 * MB),
                    ("all_gather_into_tensor", MB // count, MB),
                    ("reduce_scatter_tensor", 2 * MB, 2 * MB // count),
                ]
            ):
                begin = at + (10 + 10 * part) * MS
                sizes = {"bytes_in": sent, "bytes_out": received}
                rank.collective(3 * step + part, begin, begin + 5 * MS, op=op, **sizes)
    return ranks


def row(op: str, size_bytes: int) -> dict[str, Any]:
    return {"op": op, "size_bytes": size_bytes, "formula": "on paper"}


def checks(ranks: list[Rank], expected: list[dict[str, Any]] | None) -> dict[str, CrossCheck]:
    result = analyse_world(world_run(ranks, expected=expected))
    assert result is not None
    return {check.name: check for check in result.cross_checks if check.name.startswith("theory")}


def test_bytes_that_agree_and_bytes_that_do_not() -> None:
    expected = [row("all_gather_into_tensor", 4 * MB), row("reduce_scatter_tensor", 3 * MB)]
    found = checks(ranks_of(2), expected)

    gathered = found["theory_all_gather_into_tensor"]
    assert (gathered.ours, gathered.other, gathered.agrees) == (4.0, 4.0, True)
    assert (gathered.what, gathered.unit, gathered.note) == (
        "all_gather_into_tensor per step by theory", "MB", "on paper",
    )  # fmt: skip
    scattered = found["theory_reduce_scatter_tensor"]
    assert (scattered.ours, scattered.other, scattered.agrees) == (2.0, 3.0, False)


def test_an_operation_that_was_never_issued_disagrees() -> None:
    found = checks(ranks_of(2), [row("all_reduce", MB)])["theory_all_reduce"]

    assert (found.ours, found.other, found.agrees) == (0.0, 1.0, False)


def test_the_worst_rank_speaks() -> None:
    ranks = ranks_of(2)
    ranks[1].collective(99, 705 * MS, 706 * MS, bytes=MB, op="all_reduce")  # in one step of many
    for step in range(STEPS):
        ranks[1].collective(200 + step, (100 * step + 5) * MS, (100 * step + 6) * MS, bytes=MB)
    found = checks(ranks, [row("all_reduce", 0)])["theory_all_reduce"]

    assert (found.ours, found.other, found.agrees) == (1.0, 0.0, False)


@pytest.mark.parametrize("expected", [None, []])
def test_without_a_theory_there_is_no_check(expected: list[dict[str, Any]] | None) -> None:
    assert checks(ranks_of(2), expected) == {}


def test_python_capture_cannot_tell() -> None:
    found = checks(ranks_of(2, capture="python"), [row("all_reduce", MB)])["theory_all_reduce"]

    assert found.agrees is None
    assert math.isnan(found.ours)
    assert "Python capture" in found.note
