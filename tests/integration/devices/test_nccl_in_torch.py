from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from commprof.analysis.collectives.nccl import nccl_world
from commprof.trace import columns
from commprof.trace.nccl import nccl_ops
from commprof.trace.reader import read_trace
from commprof.trace.schema import OPS

ROOT = Path(__file__).parents[3]


def test_operations_belong_to_the_call_of_c10d_that_they_are_made_in(tmp_path: Path) -> None:
    script = ROOT / "tests/support/scripts/nccl_calls.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path],
        env={**os.environ, "COMMPROF_NCCL": "kernels", "RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stderr.count("NCCL's own operations are recorded too") == 1
    trace = read_trace(tmp_path / "rank_0.trace")
    calls, ops = columns.collectives(trace), nccl_ops(trace)
    reduced = calls.op_id[calls.op == OPS.index("all_reduce")].tolist()
    assert len(reduced) == 2
    assert ops.op_id[:2].tolist() == reduced
    assert ops.op_id[2] not in calls.op_id  # the script calls NCCL without c10d
    assert (ops.size_bytes == 4096).all()
    assert ops.timed.all()
    found = nccl_world(1, [trace], [trace], True)
    assert found is not None
    (row,) = found.rows
    assert (row.operations, row.phases, row.kind.communicator) == (3, (("backward", 2),), "dp0")
    assert {group.backend for group in trace.groups.values()} == {"gloo"}
