from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof import _native
from commprof.trace import columns
from commprof.trace.lookup import look_up
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import FLAG_IN_ISSUE, Kind
from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.late_callbacks import STEPS

#: Before returns of waits were recorded, 17 ends of rank 0 were late.
MOST_LATE = 2

pytestmark = pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")


def returned_waits(trace: Trace) -> Any:
    """Leaves out blocked issues, because the return of an issue does not show completion."""
    waits = columns.of_kind(trace.records, Kind.WAIT)
    return waits[waits["flags"] & FLAG_IN_ISSUE == 0]


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs Linux's SCHED_IDLE")
@pytest.mark.parametrize("hooked", ["observed", "hooked"])
def test_a_collective_ends_no_later_than_the_wait_for_it(tmp_path: Path, hooked: str) -> None:
    run_module("tests.support.ranks.capture.late_callbacks", [str(tmp_path), hooked], 2)
    for rank in (0, 1):
        trace = read_trace(tmp_path / f"rank_{rank}.trace")
        table = columns.collectives(trace)
        waits, passes = returned_waits(trace), columns.finalizations(trace).span
        left_ns = look_up(table.op_id, columns.ints(waits["op_id"]), columns.ints(waits["value"]))
        finalized_ns = look_up(table.graph_task, passes.key, passes.end_ns)
        assert (left_ns > 0).sum() > STEPS
        assert (finalized_ns > 0).sum() > 3 * STEPS
        until_ns = np.where(left_ns > 0, left_ns, finalized_ns)
        known = (until_ns > 0) & (table.end_ns > 0)
        # An end is late if its callback runs between a wait's return and the record of this return.
        assert (table.end_ns[known] > until_ns[known]).sum() <= MOST_LATE
        if hooked == "hooked":
            buckets = columns.buckets(trace)
            assert (buckets.end_ns > 0).sum() > 3 * STEPS
            following = np.searchsorted(passes.begin_ns, buckets.launch_ns)
            assert (buckets.end_ns > passes.end_ns[following]).sum() <= MOST_LATE
