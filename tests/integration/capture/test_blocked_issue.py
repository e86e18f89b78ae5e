from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from commprof import _native
from commprof.analysis.step.exposure import exposures_of
from commprof.commands import main
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.blocked_issue_rank import (
    CALLS,
    LATE_S,
    STEP_LATE_S,
    STEPS,
    WORK_S,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason=_native.native_error or ""),
]

MS = 1_000_000
NAMES = (*CALLS, "fsdp2")


@cache
def run(mode: str) -> tuple[list[dict[str, Any]], list[Trace]]:
    with TemporaryDirectory() as directory:
        said = run_module("tests.support.ranks.capture.blocked_issue_rank", [directory, mode], 2)
        traces = [read_trace(Path(directory) / f"rank_{rank}.trace") for rank in (0, 1)]
    return [json.loads(each.strip().splitlines()[-1]) for each in said], traces


def exposed_ms(trace: Trace) -> dict[str, float]:
    steps, found = columns.steps(trace), exposures_of(trace)
    result = {}
    for i, name in enumerate(NAMES):
        begin, end = steps.begin_ns[2 * i + 1], steps.end_ns[2 * i + 1]
        inside = (found.begin_ns >= begin) & (found.begin_ns < end)
        result[name] = float(found.waited_ns[inside].sum()) / MS
    return result


def test_time_blocked_inside_the_issuing_call_is_exposed() -> None:
    said, traces = run("full")
    exposed = exposed_ms(traces[0])
    for name in NAMES:
        # Rank 0 waits at least until rank 1 calls, and at most until rank 0's own call returns.
        least = (said[1][name]["begin_ns"] - said[0][name]["begin_ns"]) / MS
        most = (said[0][name]["end_ns"] - said[0][name]["begin_ns"]) / MS
        assert least > 0.5 * LATE_S * 1e3, name
        assert 0.97 * least <= exposed[name] <= most, name
    least = (said[1]["later"]["begin_ns"] - said[0]["later"]["begin_ns"]) / MS
    assert exposed["later"] < least + 0.8 * WORK_S * 1e3
    assert sum(exposed_ms(traces[1]).values()) < 0.5 * LATE_S * 1e3 * len(NAMES)


def test_a_blocked_call_completes_no_collective_and_waits_do_not_overlap() -> None:
    _, traces = run("full")
    for trace in traces:
        table, waits = columns.collectives(trace), columns.waits(trace)
        assert (table.end_ns[table.end_ns > 0] >= table.issue_ns[table.end_ns > 0]).all()
        order = np.argsort(waits.begin_ns)
        assert (waits.begin_ns[order][1:] >= waits.end_ns[order][:-1]).all()


@pytest.mark.measures
@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
def test_the_report_names_the_rank_for_which_calls_wait(tmp_path: Path, level: str) -> None:
    words = [str(tmp_path), "full", level]
    run_module("tests.support.ranks.capture.blocked_issue_rank", words, 2)
    report = tmp_path / "report.json"
    assert main(["report", str(tmp_path), "--format", "json", "--output", str(report)]) == 0
    figures = json.loads(report.read_text())["runs"][0]["aggregated_metrics"]
    assert figures["late_rank"]["rank"] == 1
    first, second = (read_trace(tmp_path / f"rank_{rank}.trace") for rank in (0, 1))
    issued = (columns.collectives(trace).issue_ns[-STEPS:] for trace in (first, second))
    late_ms = float(np.median(-np.subtract(*issued))) / MS
    assert late_ms > 0.5 * STEP_LATE_S * 1e3
    assert 0.9 * late_ms < wait_per_step_ms(first) < 1.6 * late_ms


def wait_per_step_ms(trace: Trace) -> float:
    steps, found = columns.steps(trace), exposures_of(trace)
    row = np.searchsorted(steps.end_ns, found.begin_ns)
    return float(np.median(np.bincount(row, found.waited_ns, len(steps))[1:])) / MS


def test_always_on_mode_counts_blocked_calls() -> None:
    said, (trace, _) = run("always-on")
    summary = trace.summary
    assert summary is not None
    least, most = (
        sum((said[rank][name][key] - said[0][name]["begin_ns"]) / MS for name in NAMES)
        for rank, key in ((1, "begin_ns"), (0, "end_ns"))
    )
    assert 0.97 * least <= summary.exposed.sum_ns / MS <= 1.5 * most
