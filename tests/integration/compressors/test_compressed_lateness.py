"""With a compressor, as without one: who was late, in which phase, and what of it is transfer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines.commands import RUN, call

LATE_MS = 20


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.parametrize(("ranks", "hook"), [(2, "int8"), (3, "fp16"), (3, "topk:ratio=0.01")])
def test_the_late_rank_of_a_compressed_backward_pass(tmp_path: Path, ranks: int, hook: str) -> None:
    # Rank 1 is late in each backward pass: the others, and only they, wait about that long for it.
    run = tmp_path / "run"
    late = f"timed:late_rank=1,late_ms={LATE_MS}"
    ended = call(
        *(*RUN, "--world-sizes", str(ranks), "--workload", late, "--hook", hook),
        *("--steps", "16", "--overhead-steps", "0", "--output", str(run)),
        timeout_s=120,
    )
    assert ended.returncode == 0, ended.stderr
    (found,) = json.loads((run / "result.json").read_text())["runs"]
    metrics = found["aggregated_metrics"]
    parts = metrics["parts"]
    assert metrics["late_rank"]["rank"] == 1
    assert metrics["late_rank"]["phase"] == "backward"
    assert parts["wait_ms"] == pytest.approx(LATE_MS * (ranks - 1) / ranks, abs=2)
    assert parts["wait_ms"] + parts["wire_ms"] == pytest.approx(parts["exposed_ms"])
    assert "Rank 1 comes late" in ended.stdout
    page = call("-m", "commprof", "report", "--format", "html", str(run), timeout_s=60)
    assert page.returncode == 0, page.stderr
    assert "Rank 1 comes late" in (run / "report.html").read_text()
