from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch.nn.parallel import DistributedDataParallel

from commprof import _native
from commprof.analysis.step.exposure import exposures_of
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import OPS
from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.manual_finalization_rank import LATE_S, STEPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(DistributedDataParallel, "finalize_backward"),
        reason="torch before 2.15 finalises each backward pass itself",
    ),
]

MS = 1_000_000


def run(directory: Path, mode: str, how: str) -> tuple[list[list[list[int]]], list[Trace]]:
    module = "tests.support.ranks.capture.manual_finalization_rank"
    said = run_module(module, [str(directory), mode, how], 2)
    traces = [read_trace(directory / f"rank_{rank}.trace") for rank in (0, 1)]
    return [json.loads(text.strip().splitlines()[-1]) for text in said], traces


@pytest.mark.parametrize("how", ["observed", "attached"])
@pytest.mark.parametrize("native", ["1", "0"])
def test_a_pass_that_the_script_finalises_waits_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str, how: str
) -> None:
    if native == "1" and _native.native is None:
        pytest.skip(_native.native_error or "")
    if native == "0" and how == "observed":
        pytest.skip("the Python capture times attached models only")
    monkeypatch.setenv("COMMPROF_NATIVE", native)
    said, (trace, _) = run(tmp_path, "full", how)
    found, table, passes = (
        exposures_of(trace),
        columns.collectives(trace),
        columns.finalizations(trace),
    )
    assert len(passes.span.key) == STEPS
    assert len(set(passes.span.key.tolist())) == STEPS
    for step, (mine, theirs) in enumerate(zip(*said, strict=True)):
        _, begin_ns, end_ns = mine
        # Rank 0 waits at least until rank 1's backward pass, and at most until the end of its own
        # finalisation.
        least, most = (theirs[0] - begin_ns) / MS, (end_ns - begin_ns) / MS
        assert least > 0.5 * LATE_S * 1e3
        inside = (found.begin_ns >= begin_ns) & (found.end_ns <= end_ns)
        waited_ms = found.waited_ns[inside].sum() / MS
        assert 0.95 * least <= waited_ms <= most, step
        rows = found.collective[inside]
        named = {OPS[op] for op in table.op[rows[rows >= 0]]}
        assert named == {"all_reduce"}
        share = found.waited_ns[inside & (found.collective >= 0)].sum() / MS
        assert share > 0.9 * waited_ms
    if how == "attached":
        buckets = columns.buckets(trace)
        assert len(buckets) >= STEPS
        assert np.all(buckets.launch_ns >= buckets.ready_ns)


@pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")
def test_always_on_mode_counts_what_the_script_finalises(tmp_path: Path) -> None:
    said, (trace, _) = run(tmp_path, "always-on", "observed")
    summary = trace.summary
    assert summary is not None
    steps = list(zip(*said, strict=True))[1:]
    least = sum(theirs[0] - mine[1] for mine, theirs in steps) / MS
    most = sum(mine[2] - mine[1] for mine, _ in steps) / MS
    assert 0.95 * least <= summary.exposed.sum_ns / MS <= 1.2 * most + 20
