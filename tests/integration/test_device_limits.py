"""Recording neither harms a device that has limits, nor is misled by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.device_calls import counted_apart
from commprof import _native
from commprof.trace import columns
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind
from tests.support.device_limits_script import GROUPS, HELD_UP_MS
from tests.support.device_runs import run_on_device

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the native module"),
]

#: The clock's anchors, the drift of a second until the next one, and a busy machine.
ERROR_NS = 2_000_000
#: Of c10's pool.
POOL_STREAMS = 32


def run(directory: Path, scenario: str) -> tuple[Trace, dict[str, Any]]:
    return run_on_device("tests.support.device_limits_script", directory, scenario)


@pytest.mark.parametrize("backend", ["as_nccl", "silent", "unshielded"])
def test_a_group_that_is_held_up_delays_no_other_one(tmp_path: Path, backend: str) -> None:
    trace, truth = run(tmp_path, f"many_groups@{backend}")
    table = columns.collectives(trace)
    ready, _, end = np.array(truth["collectives"]).T
    assert len(table) == len(end) == 2 * GROUPS
    # The stream that issues goes on: no wait of ours blocks its hardware queue.
    assert ready[-1] - ready[GROUPS] < 0.2 * HELD_UP_MS * 1e6
    # Of 32 streams the communication library itself gives one to two groups.
    held_up = np.isin(np.arange(2 * GROUPS), (GROUPS, GROUPS + POOL_STREAMS))
    took_ms = (end - ready) / 1e6
    assert took_ms[held_up].min() > 0.9 * HELD_UP_MS
    assert took_ms[~held_up].max() < 0.2 * HELD_UP_MS
    assert truth["counts"]["new_streams"] - GROUPS == 1  # ours is for the clock
    if backend == "silent":
        assert (table.end_ns == 0).all()
    else:
        assert table.end_ns == pytest.approx(end, abs=ERROR_NS)


def test_no_context_is_made_on_a_device_that_nobody_uses(tmp_path: Path) -> None:
    trace, truth = run(tmp_path, "another_device")
    assert list(truth["contexts"]) == ["1"]
    assert (columns.collectives(trace).end_ns > 0).all()


def test_another_thread_s_capture_is_not_broken(tmp_path: Path) -> None:
    trace, truth = run(tmp_path, "another_capture")
    assert truth["invalidated"] == 0
    assert (columns.collectives(trace).end_ns > 0).all()
    assert (trace.records["kind"] == Kind.DEVICE_WAIT).sum() == 21


def test_a_collective_and_its_wait_cost_few_calls_of_the_runtime() -> None:
    calls = counted_apart(shields=True)
    assert sum(calls.values()) <= 8
    assert calls["capture_status"] == 1
