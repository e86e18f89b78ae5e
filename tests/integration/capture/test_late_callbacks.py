"""A collective ends no later than the wait for it, however late its callback runs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from commprof import _native
from commprof.trace import columns
from commprof.trace.lookup import look_up
from commprof.trace.reader import read_trace
from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.late_callbacks import STEPS

MOST_LATE = 2

pytestmark = pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs Linux's SCHED_IDLE")
@pytest.mark.parametrize("hooked", ["observed", "hooked"])
def test_a_collective_ends_no_later_than_the_wait_for_it(tmp_path: Path, hooked: str) -> None:
    run_module("tests.support.ranks.capture.late_callbacks", [str(tmp_path), hooked], 2)
    for rank in (0, 1):
        trace = read_trace(tmp_path / f"rank_{rank}.trace")
        table = columns.collectives(trace)
        waits, passes = columns.waits(trace), columns.finalizations(trace).span
        left_ns = look_up(table.op_id, waits.key, waits.end_ns)
        finalized_ns = look_up(table.graph_task, passes.key, passes.end_ns)
        assert (left_ns > 0).sum() > STEPS
        assert (finalized_ns > 0).sum() > 3 * STEPS
        until_ns = np.where(left_ns > 0, left_ns, finalized_ns)
        known = (until_ns > 0) & (table.end_ns > 0)
        # Before returns of waits were recorded, 17 ends of rank 0 were late. An end is still late
        # if its callback runs between a return and the record of it.
        assert (table.end_ns[known] > until_ns[known]).sum() <= MOST_LATE
        if hooked == "hooked":
            buckets = columns.buckets(trace)
            assert (buckets.end_ns > 0).sum() > 3 * STEPS
            following = np.searchsorted(passes.begin_ns, buckets.launch_ns)
            assert (buckets.end_ns > passes.end_ns[following]).sum() <= MOST_LATE
