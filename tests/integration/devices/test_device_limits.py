from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.own_cost.device_calls import counted_apart
from commprof import _native
from commprof.analysis.summaries import late_rank
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import Kind
from commprof.trace.summary import merged_histogram
from tests.support.machines.commands import call
from tests.support.machines.device_runs import run_on_device
from tests.support.machines.ranks import run_module
from tests.support.ranks.devices.device_late_rank import LATE_MS, PER_STEP, STEPS
from tests.support.ranks.devices.device_limits_script import GROUPS, HELD_UP_MS

SEEN_KEYS = """
import sys, torch, torch.distributed, commprof
libraries = []
for key in ("XPU", "HPU"):
    libraries.append(torch.library.Library("c10d", "IMPL", key))
    libraries[-1].impl("allreduce_", lambda *arguments: None)
with commprof.profile(sys.argv[1]):
    print(torch._C._dispatch_dump("c10d::allreduce_"))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the native module"),
]

#: Error of the clock's anchors, and drift in the second until the next anchor.
ERROR_NS = 2_000_000
#: Another process may hold a rank up between an operation and its event. The recorded time then has
#: a larger error.
SHARE_DISTURBED = 0.05
POOL_STREAMS = 32


def run(directory: Path, scenario: str) -> tuple[Trace, dict[str, Any]]:
    return run_on_device("tests.support.ranks.devices.device_limits_script", directory, scenario)


@pytest.mark.parametrize("backend", ["as_nccl", "silent", "unshielded"])
def test_a_delayed_group_does_not_delay_other_groups(tmp_path: Path, backend: str) -> None:
    trace, truth = run(tmp_path, f"many_groups@{backend}")
    table = columns.collectives(trace)
    ready, _, end = np.array(truth["collectives"]).T
    assert len(table) == len(end) == 2 * GROUPS
    assert ready[-1] - ready[GROUPS] < 0.2 * HELD_UP_MS * 1e6
    # Groups 0 and 32 share a stream of the pool, so the delay of group 0 holds up group 32, too.
    held_up = np.isin(np.arange(2 * GROUPS), (GROUPS, GROUPS + POOL_STREAMS))
    took_ms = (end - ready) / 1e6
    assert took_ms[held_up].min() > 0.9 * HELD_UP_MS
    assert took_ms[~held_up].max() < 0.2 * HELD_UP_MS
    assert truth["counts"]["new_streams"] - GROUPS == 1
    if backend == "silent":
        assert (table.end_ns == 0).all()
    else:
        error_ns = np.abs(table.end_ns.astype(np.float64) - end)
        assert np.quantile(error_ns, 1 - SHARE_DISTURBED) < ERROR_NS
        assert error_ns.max() < 0.2 * HELD_UP_MS * 1e6


def test_no_context_is_created_on_an_unused_device(tmp_path: Path) -> None:
    trace, truth = run(tmp_path, "another_device")
    assert list(truth["contexts"]) == ["1"]
    assert (columns.collectives(trace).end_ns > 0).all()


def test_steps_are_marked_on_the_device_of_the_data_if_a_barrier_came_first(
    tmp_path: Path,
) -> None:
    trace, _ = run(tmp_path, "late_device")
    marks = trace.records[trace.records["kind"] == Kind.DEVICE_STEP]
    behind_ns = marks["timestamp_ns"].astype(np.int64) - marks["bytes_in"].astype(np.int64)
    assert len(marks) >= 5
    assert behind_ns.max() < 0.2 * HELD_UP_MS * 1e6


def test_recording_does_not_invalidate_a_graph_capture_in_another_thread(tmp_path: Path) -> None:
    trace, truth = run(tmp_path, "another_capture")
    assert truth["invalidated"] == 0
    assert (columns.collectives(trace).end_ns > 0).all()
    assert (trace.records["kind"] == Kind.DEVICE_WAIT).sum() == 21


def test_a_collective_and_its_wait_cost_at_most_8_runtime_calls() -> None:
    calls = counted_apart(shields=True)
    assert sum(calls.values()) <= 8
    assert calls["capture_status"] == 1


def test_device_events_are_off_with_a_note_where_captures_cannot_be_detected(
    tmp_path: Path,
) -> None:
    trace, _ = run(tmp_path, "another_device@inherits")
    assert "does not say whether a stream is captured" in trace.metadata["no_device_times"]
    assert not (columns.collectives(trace).end_ns > 0).any()
    report = call("-m", "commprof", "report", str(tmp_path), "--all")
    assert "COMMPROF_DEVICE_EVENTS=on" in report.stdout, report.stderr


def test_collectives_of_xpu_and_hpu_are_seen(tmp_path: Path) -> None:
    done = call("-c", SEEN_KEYS, str(tmp_path))
    assert done.returncode == 0, done.stderr
    for key in ("XPU", "HPU"):
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"{key}: "))
        assert "observer.cpp" in line


@pytest.mark.measures
def test_always_on_mode_names_the_rank_whose_device_is_late(tmp_path: Path) -> None:
    run_module("tests.support.ranks.devices.device_late_rank", [str(tmp_path)], 2)
    traces = [read_trace(tmp_path / f"rank_{rank}.trace") for rank in (0, 1)]
    truth = [np.array(json.loads((tmp_path / f"truth_{rank}.json").read_text())) for rank in (0, 1)]
    summaries = [trace.summary for trace in traces if trace.summary is not None]
    assert len(summaries) == 2
    for summary, (ready, start, end) in zip(summaries, (one.T for one in truth), strict=True):
        assert summary.dropped == 0
        until_last = merged_histogram(one.until_last for one in summary.operations)
        transfer = merged_histogram(one.transfer for one in summary.operations)
        assert until_last.count == transfer.count == len(ready)
        assert until_last.sum_ns == pytest.approx((start - ready).sum(), rel=0.05, abs=20e6)
        assert transfer.sum_ns == pytest.approx((end - start).sum(), rel=0.05)
    waited = [one.exposed_wait for one in summaries]
    per_step_ns = sum(LATE_MS.values()) * 1e6
    assert waited[0].count == waited[1].count == STEPS - 1
    assert waited[0].sum_ns / waited[0].count == pytest.approx(per_step_ns, rel=0.1)
    assert waited[1].sum_ns / waited[1].count < 0.1 * per_step_ns
    transfer_ns = summaries[0].exposed_transfer.sum_ns / waited[0].count
    assert transfer_ns == pytest.approx(PER_STEP * 3e6, rel=0.15)
    late = late_rank(traces, summaries)
    assert late is not None
    assert late.rank == 1
    assert late.phase == "forward"
    assert late.wait_ms == pytest.approx(sum(LATE_MS.values()), rel=0.1)
