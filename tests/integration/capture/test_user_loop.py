"""Anyone's loop: phases are found by themselves, and the directory of traces is a report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commprof.trace.reader import read_trace
from tests.support.analysed import analyse_run, problems_of
from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.user_loop import DATA_MS, LOSS_MS


@pytest.mark.measures
def test_phases_are_found_and_reported(tmp_path: Path) -> None:
    run_module("tests.support.ranks.capture.user_loop", [str(tmp_path)], 2)
    (world,) = analyse_run(tmp_path).worlds
    assert (world.world_size, world.steps) == (2, 12)
    assert problems_of(world) == []
    assert read_trace(tmp_path / "rank_1.trace").metadata["hooks"] == ["mean all-reduce"]
    parts = world.parts
    assert DATA_MS <= parts.data_ms < DATA_MS + 2
    assert LOSS_MS <= parts.other_ms < LOSS_MS + 2
    assert parts.forward_ms > 0
    assert parts.backward_ms > 0
    assert parts.optimizer_ms > 0
    assert parts.exposed_ms == pytest.approx(parts.wait_ms + parts.wire_ms)
    total = parts.data_ms + parts.forward_ms + parts.backward_ms + parts.exposed_ms
    assert total + parts.optimizer_ms + parts.other_ms == pytest.approx(parts.step_ms)

    shown = subprocess.run(
        [sys.executable, "-m", "commprof", "report", str(tmp_path), "--all"],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert "Recorded by commprof: " in shown.stdout
    assert "nan" not in shown.stdout
