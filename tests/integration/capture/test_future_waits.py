from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from commprof import _native
from commprof.analysis.step.exposure import exposures_of
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import OPS
from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.future_waits_rank import LATE_S, TIMEOUT_S, WAYS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason=_native.native_error or ""),
]

MS = 1_000_000
#: With this way to wait, rank 0 comes last and waits for nothing.
HIDDEN = "hidden"


@cache
def run(mode: str) -> tuple[list[dict[str, Any]], list[Trace]]:
    with TemporaryDirectory() as directory:
        said = run_module("tests.support.ranks.capture.future_waits_rank", [directory, mode], 2)
        traces = [read_trace(Path(directory) / f"rank_{rank}.trace") for rank in (0, 1)]
    return [json.loads(text.strip().splitlines()[-1]) for text in said], traces


def exposed_ms(trace: Trace) -> dict[str, float]:
    steps, table = columns.steps(trace), columns.collectives(trace)
    found = exposures_of(trace)
    result = {}
    for i, way in enumerate(WAYS, start=1):
        inside = (found.begin_ns >= steps.begin_ns[2 * i - 1]) & (
            found.begin_ns < steps.end_ns[2 * i - 1]
        )
        assert {OPS[table.op[row]] for row in found.collective[inside]} <= {"all_reduce"}
        result[way] = float(found.waited_ns[inside].sum()) / MS
    return result


def bounds_ms(said: list[dict[str, Any]], way: str) -> tuple[float, float]:
    """Returns the shortest and the longest possible wait of rank 0.

    Rank 0 waits at least until rank 1 issues or gloo times out. The upper bound contains the issue,
    which may block.
    """
    mine = said[0][way]
    until_ns = said[1][way]["issued_ns"] if way in said[1] else mine["issued_ns"] + TIMEOUT_S * 1e9
    return (until_ns - mine["begin_ns"]) / MS, (mine["end_ns"] - mine["issued_ns"]) / MS


def test_time_blocked_in_a_future_is_exposed() -> None:
    said, (trace, _) = run("full")
    exposed = exposed_ms(trace)
    for way in WAYS:
        least, most = bounds_ms(said, way)
        if way == HIDDEN:
            assert least < 0
            assert exposed[way] < 0.25 * LATE_S * 1e3
        else:
            assert 0 < least <= exposed[way] <= most, way


def test_always_on_mode_counts_waits_for_futures() -> None:
    said, (trace, _) = run("always-on")
    assert len(trace.records) == 0
    summary = trace.summary
    assert summary is not None
    waits = [one.wait for one in summary.operations if OPS[one.op] == "all_reduce"]
    bounds = [bounds_ms(said, way) for way in WAYS if way != HIDDEN]
    # wait_all of two futures may count as one wait. Waits for collectives that are already complete
    # may count too.
    assert len(bounds) <= sum(wait.count for wait in waits) <= len(bounds) + 2
    total_ms = sum(wait.sum_ns for wait in waits) / MS
    least, most = (sum(column) for column in zip(*bounds, strict=True))
    assert 0 < least <= total_ms <= most + 0.25 * LATE_S * 1e3


def test_recording_does_not_change_results_or_errors_of_futures() -> None:
    for mode in ("full", "always-on"):
        said, _ = run(mode)
        for rank, ways in enumerate(said):
            assert {way: one["came_of_it"] for way, one in ways.items()} == {
                "wait": [[2.0, 2.0]],
                "then": 4.0,
                "wait_all": [[2.0, 2.0]] * 2,
                HIDDEN: [[2.0, 2.0]],
                # The wait and torch's own method must raise errors with the same text.
                "callback_error": [ways["callback_error"]["came_of_it"][1]] * 2,
                **({"failed": [ways["failed"]["came_of_it"][1]] * 2} if rank == 0 else {}),
            }
        assert "of the script's own" in said[0]["callback_error"]["came_of_it"][0]
        assert "timed out" in said[0]["failed"]["came_of_it"][0].lower()
