from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from commprof.commands import main
from commprof.forecast.replay.recorded import read_recorded
from commprof.trace import columns
from commprof.trace.run.run_directory import read_world
from tests.support.builders.profiler_traces import (
    Event,
    all_reduce,
    annotation,
    document,
    kernel,
    write,
)

STEPS = 6


def launch(at_us: float, correlation: int, tid: int) -> Event:
    event = {**annotation("cudaLaunchKernel", at_us, at_us + 1, tid), "cat": "cuda_runtime"}
    return {**event, "args": {"correlation": correlation}}


def step_of_ddp(base: float, number: int) -> list[Event]:
    id_of = 100 * number
    reduced = [
        all_reduce(base + 300, base + 600, 2 * number, 3000),
        all_reduce(base + 600, base + 700, 2 * number + 1, 1000),
    ]
    for place, event in enumerate(reduced):
        event["args"]["correlation"] = id_of + 20 + place
    backward = annotation("autograd::engine::evaluate_function: X", base + 30, base + 100, 2)
    return [
        annotation(f"ProfilerStep#{number}", base, base + 1000),
        annotation("DistributedDataParallel.forward", base + 5, base + 20),
        {**backward, "cat": "cpu_op"},
        *(launch(base + 10, id_of, 1), kernel("f", base + 20, base + 200, correlation=id_of)),
        launch(base + 35, id_of + 1, 2),
        kernel("b", base + 200, base + 300, correlation=id_of + 1),
        launch(base + 40, id_of + 20, 2),
        launch(base + 50, id_of + 2, 2),
        kernel("b", base + 300, base + 400, correlation=id_of + 2),
        launch(base + 60, id_of + 21, 2),
        *reduced,
        annotation("Optimizer.step#SGD.step", base + 110, base + 150),
        launch(base + 120, id_of + 3, 1),
        kernel("o", base + 700, base + 800, correlation=id_of + 3),
    ]


def job(folder: Path) -> Path:
    events = [event for step in range(STEPS) for event in step_of_ddp(5e9 + 1000.0 * step, step)]
    return write(folder, [document(events, rank) for rank in (0, 1)])


def test_a_shorter_recording_of_one_rank_is_no_lack_of_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def steps(number: int) -> list[Event]:
        return [event for step in range(number) for event in step_of_ddp(5e9 + 1e3 * step, step)]

    folder = write(tmp_path / "job", [document(steps(STEPS), 0), document(steps(STEPS - 2), 1)])
    assert main(["report", str(folder), "--format", "json"]) == 0
    (world,) = json.loads(capsys.readouterr().out)["runs"]
    assert world["num_processes"] == 2
    assert world["aggregated_metrics"]["causes"] == []


def test_the_ddp_schedule_is_read_from_device_traces(tmp_path: Path) -> None:
    """Times count from 700 µs of the previous step, when the last bucket was reduced."""
    (recorded,), refused = read_recorded(job(tmp_path / "job"))
    schedule = recorded.schedule
    assert not refused
    assert (schedule.world_size, schedule.bucket_bytes.tolist()) == (2, [12_000, 4_000])
    assert schedule.ready_s.shape == (STEPS - 1, 2, 2)
    assert schedule.ready_s[0, 1] * 1e6 == pytest.approx([600, 700])
    assert schedule.end_s[0] * 1e6 == pytest.approx([900, 1000])
    assert np.unique(np.rint(schedule.backward_end_s * 1e6)) == pytest.approx([700])
    assert np.unique(np.rint(schedule.period_s * 1e6)) == pytest.approx([1000])
    assert schedule.other_calls == ()
    assert schedule.placement.crowding() == 1


def test_implied_backward_passes_do_not_enter_reports(tmp_path: Path) -> None:
    for trace in read_world(job(tmp_path / "job"), 2).traces.values():
        assert trace.passes is not None
        assert len(columns.buckets(trace)) == len(columns.finalizations(trace).span.key) == 0


@pytest.mark.parametrize(("bucket_cap", "step_ms"), [([], 1.0), (["--bucket-cap-mb", "25"], 1.1)])
def test_a_profiler_recording_can_be_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bucket_cap: list[str], step_ms: float
) -> None:
    """A bucket of both gradients is ready at 700 µs, and its transfer takes 400 µs."""
    assert main(["predict", str(job(tmp_path / "job")), *bucket_cap, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    step = found["answers"][0]["prediction"]["step_s"]["value"]
    assert 1000 * step == pytest.approx(step_ms, rel=0.002)
    assert found["checks"][0]["error"] == pytest.approx(0, abs=0.002)


def test_an_archive_of_a_profiler_recording_can_be_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = shutil.make_archive(str(tmp_path / "traces"), "gztar", job(tmp_path / "job"))
    assert main(["predict", archive, "--bucket-cap-mb", "25"]) == 0
    assert capsys.readouterr().err == ""


def test_all_reduces_outside_backward_passes_are_not_counted_as_buckets(tmp_path: Path) -> None:
    events = []
    for step in range(STEPS):
        base = 5e9 + 1000.0 * step
        loss = all_reduce(base + 850, base + 900, 1000 + step, 1)
        loss["args"]["correlation"] = 100 * step + 50
        events += [*step_of_ddp(base, step), launch(base + 200, 100 * step + 50, 2), loss]
    folder = write(tmp_path / "job", [document(events, rank) for rank in (0, 1)])
    (recorded,), _ = read_recorded(folder)
    assert recorded.schedule.bucket_bytes.tolist() == [12_000, 4_000]
