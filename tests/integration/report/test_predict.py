from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from commprof.commands import main
from commprof.forecast.replay.recorded import RecordedJob, read_recorded
from commprof.forecast.replay.setting import parameters_of
from commprof.launch.elastic import stop_fork_server
from commprof.trace.run.run_directory import world_directory
from tests.support.machines.ranks import run_here

MIB = 1 << 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.measures,
]

#: Backward visits the layers in the reverse order of WORKLOAD.
BACKWARD_MS, GRADIENT_MB = (20, 30, 40), (0.4, 0.8, 0.2)
WORKLOAD = (
    "timed:layers=3,data_ms=5,forward_ms=5,backward_ms=40/30/20,gradient_mb=0.2/0.8/0.4,"
    "bucket_cap_mb=0.01"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("predict")
    try:
        run_here(directory, WORKLOAD, world_size=2, steps=10)
    finally:
        stop_fork_server()
    return world_directory(directory, 2)


@pytest.fixture(scope="module")
def recorded(run: Path) -> RecordedJob:
    (found,), refused = read_recorded(run)
    assert refused == []
    return found


def test_the_recorded_schedule_matches_the_workload(recorded: RecordedJob) -> None:
    schedule = recorded.schedule
    assert schedule.bucket_bytes.tolist() == [400_000, 800_000, 200_000]
    # Data takes 5 ms, and so does the forward of each of the three layers.
    ready_ms = 5 + 3 * 5 + np.cumsum(BACKWARD_MS)
    assert np.median(schedule.ready_s, axis=(0, 1)) * 1e3 == pytest.approx(ready_ms, abs=15)
    # The workload sleeps most of the time.
    assert 0 <= schedule.placement.busy < 0.3
    known = parameters_of(schedule)
    assert known.times_known
    assert known.size_bytes == (400_000, 800_000, 200_000)


def test_a_step_predicted_from_a_fitted_profile_matches_the_recorded_step(
    run: Path, recorded: RecordedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile.json"
    assert main(["fit", str(run), "--output", str(profile)]) == 0
    assert f"Machine profile: {profile}" in capsys.readouterr().out
    arguments = ["predict", str(run), "--profile", str(profile), "--format", "json"]
    assert main([*arguments, "--bucket-cap-mb", "0.01,100"]) == 0
    document = json.loads(capsys.readouterr().out)
    fine, one = (answer["prediction"] for answer in document["answers"])
    assert [fine["buckets"], one["buckets"]] == [3, 1]
    own = document["checks"][0]
    assert abs(own["error"]) < 0.1
    assert fine["step_s"]["value"] == pytest.approx(own["predicted_s"])
    assert one["scenario"]["bucket_cap_bytes"] == 100 * MIB
    assert document["error"] is None


def test_predictions_that_need_unmeasured_costs_are_refused_with_a_hint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile.json"
    main(["fit", str(run), "--output", str(profile)])
    arguments = ["predict", str(run), "--profile", str(profile)]
    for more, next_step in (
        (["--world-size", "8"], "--bandwidth and --latency"),
        (["--hook", "int8"], "--hook int8"),
        (["--scaling", "strong", "--world-size", "1"], "--scaling strong"),
    ):
        assert main([*arguments, *more]) == 1
        assert next_step in capsys.readouterr().err


def test_a_run_is_exported_as_one_chakra_trace_per_rank(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chakra", str(run), "--output", str(tmp_path / "et")]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.name for path in written] == ["commprof.0.et", "commprof.1.et"]
    assert all(b"all-reduce of bucket 2" in path.read_bytes() for path in written)
