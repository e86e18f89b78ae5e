from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.collectives.traffic import summarised_sent_bytes
from commprof.analysis.summaries import analyse_summaries
from commprof.trace.reader import read_trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import OPS
from tests.support.builders import trace_bytes as made
from tests.support.builders.traces import MS, document, operation, summary
from tests.unit.analysis.checks.test_cross_checks import LOG, counted, sources

MB = 1_000_000


def all_reduces(megabytes: int, count: int = 3) -> dict[str, Any]:
    return operation(op=OPS.index("all_reduce"), count=count, bytes=megabytes * MB)


def run_of(directory: Path, ranks: int = 1, **changes: Any) -> WorldRun:
    parts = changes.pop("summary", {"operations": [all_reduces(24)]})
    traces = {}
    for rank in range(ranks):
        path = directory / f"rank_{rank}.trace"
        block = made.block(7, json.dumps(summary(**parts)).encode())
        groups = made.document(made.GROUP_BLOCK, made.group(1, name="dp", size=ranks))
        metadata = {"rank": rank, "world_size": ranks, "ops": list(OPS), **changes}
        path.write_bytes(made.trace(groups, block, made.end(), **metadata))
        traces[rank] = read_trace(path)
    return WorldRun(ranks, directory, results={}, traces=traces, problems=())


def checks(run: WorldRun) -> dict[str, CrossCheck]:
    found = analyse_summaries(run)
    assert found is not None
    return {check.name: check for check in found.cross_checks}


def test_summary_phases_agree_only_if_their_sum_equals_the_step_time(tmp_path: Path) -> None:
    found = checks(run_of(tmp_path))["phases"]
    assert (found.ours, found.other, found.agrees) == (10.0, 10.0, True)
    twice = {"exposed": document([6 * MS] * 2)}
    found = checks(run_of(tmp_path, summary=twice))["phases"]
    assert (found.ours, found.other, found.agrees) == (10.0, 13.0, False)


def test_summary_step_time_is_compared_with_the_loop_s_clock(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert checks(run)["loop_clock"].note == "there are no step times from the built-in loop"
    run.results[0] = {"step_ns": [50 * MS, 10 * MS, 11 * MS]}
    found = checks(run)["loop_clock"]
    assert (found.ours, found.other, found.agrees) == (0.02, pytest.approx(0.021), False)
    run.results[0] = {"step_ns": [50 * MS, 10 * MS]}
    assert (
        checks(run)["loop_clock"].note
        == "rank 0's summary covers 2 steps, but the loop timed 1, not counting the first step"
    )


def test_summary_bytes_and_times_are_compared_with_ddp_s_log(tmp_path: Path) -> None:
    found = checks(run_of(tmp_path, cross_check_sources=sources(ddp_logs=[LOG])))
    bytes_ = found["ddp_bytes"]
    assert (bytes_.ours, bytes_.other, bytes_.agrees) == (8.0, 8.0, None)
    assert "all-reduces that DDP did not issue" in bytes_.note
    assert (found["ddp_backward"].ours, found["ddp_backward"].other) == (3.0, 42.0)
    assert (found["ddp_exposed"].ours, found["ddp_exposed"].other) == (3.0, 25.0)


def test_bytes_per_step_are_unknown_if_steps_end_with_backward(tmp_path: Path) -> None:
    parts = {"steps_end": "backward", "operations": [all_reduces(24)]}
    run = run_of(tmp_path, summary=parts, cross_check_sources=sources(ddp_logs=[LOG]))
    assert math.isnan(checks(run)["ddp_bytes"].ours)


def test_summary_bytes_disagree_if_the_interface_counted_fewer(tmp_path: Path) -> None:
    shared = sources(interfaces=counted(lo=49 * MB))
    found = checks(run_of(tmp_path, 2, cross_check_sources=shared))["network"]
    assert (found.ours, found.other, found.agrees) == (48.0, 49.0, True)
    less = sources(interfaces=counted(lo=24 * MB))
    assert checks(run_of(tmp_path, 2, cross_check_sources=less))["network"].agrees is False


@pytest.mark.parametrize(
    ("op", "larger_mb", "sent_mb"),
    [
        ("all_reduce", 8, 12),
        ("broadcast", 8, 6),
        ("all_gather", 32, 24),
        ("reduce_scatter_tensor", 8, 6),
        ("send", 8, 8),
        ("recv", 8, 0),
        ("gather", 8, math.nan),
        ("scatter", 8, math.nan),
        ("other", 8, math.nan),
        ("barrier", 0, 0),
    ],
)
def test_bytes_sent_according_to_a_summary_by_one_of_four_ranks(
    tmp_path: Path, op: str, larger_mb: float, sent_mb: float
) -> None:
    one = operation(op=OPS.index(op), count=2, bytes=larger_mb * MB)
    trace = run_of(tmp_path, 4, summary={"operations": [one]}).traces[0]
    assert trace.summary is not None
    sent = summarised_sent_bytes(trace, trace.summary)
    assert sent == pytest.approx(sent_mb * MB, nan_ok=True)
