from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale.runs import write_run
from commprof.analysis.step import windows
from commprof.forecast.replay.recorded import read_recorded


def test_predictions_are_made_from_a_sample_of_a_long_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", ranks=2, steps=60, calls=4, per_host=1)
    ((whole,), _) = read_recorded(tmp_path / "run")
    assert whole.sampled_steps == ""
    monkeypatch.setattr(windows, "LONG_CALLS", 300)
    monkeypatch.setattr(windows, "SAMPLE_CALLS", 160)
    ((cut,), _) = read_recorded(tmp_path / "run")
    assert cut.sampled_steps == "a sample of a long run: steps 11-20, 40-49"
    assert cut.name.endswith(f"2 ranks ({cut.sampled_steps})")
    medians = [np.median(job.schedule.ready_s, axis=0) for job in (cut, whole)]
    assert medians[0] == pytest.approx(medians[1], rel=0.2)
