from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from commprof.errors import CommprofError, RankFailedError, UsageError
from commprof.launch import elastic
from commprof.launch.job import Job, per_rank_batch
from commprof.launch.progress import ProgressFile, ProgressLine
from commprof.launch.rendezvous import Meeting

HERE = Path("run/w2")


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    job = Job("timed:layers=2", 2, HERE, steps=3, batch_size=8, scaling="strong", hook=False)
    job.save(tmp_path / "job.json")

    assert Job.load(tmp_path / "job.json") == job
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "schema_version is 99"),
        ({"world_size": "2"}, "world_size is not a whole number .*: '2'"),
        ({"world_size": True}, "world_size is not a whole number .*: True"),
        ({"hook": 1}, "hook is not true or false: 1"),
        ({"workload": None}, "workload is not a string: None"),
        ({"nodes": 3}, r"keys unknown: \['nodes'\]"),
    ],
)
def test_a_file_of_another_shape_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "job.json"
    Job("timed", 2, HERE).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(UsageError, match=message):
        Job.load(path)


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_what_is_no_job_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)

    with pytest.raises(UsageError, match="not a job file"):
        Job.load(tmp_path / "job.json")
    with pytest.raises(UsageError, match=r"none\.json is not a job file"):
        Job.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 0}, r"--world-size 0 is out of range \(allowed: 1 or more\)"),
        ({"steps": 0}, "--steps 0"),
        ({"epochs": -1}, "--epochs -1"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"overhead_steps": -1}, r"--overhead-steps -1 .*0 or more"),
        ({"threads_per_rank": 0}, "--threads-per-rank 0"),
        ({"scaling": "super"}, r"'super' \(allowed: weak, strong\)"),
        ({"steps": 3, "epochs": 2}, "exclude each other"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Job(**{"workload": "timed", "world_size": 1, "directory": HERE, **options})


@pytest.mark.parametrize(
    ("batch_size", "world_size", "scaling", "per_rank"),
    [(16, 4, "weak", 16), (16, 3, "weak", 16), (16, 4, "strong", 4), (16, 16, "strong", 1)],
)
def test_batch_of_a_rank(batch_size: int, world_size: int, scaling: str, per_rank: int) -> None:
    assert per_rank_batch(batch_size, world_size, scaling) == per_rank


def test_a_global_batch_that_does_not_divide_is_refused_with_what_would() -> None:
    with pytest.raises(UsageError, match=r"allowed world sizes: 1, 2, 4, 8, 16\).* such as 18"):
        per_rank_batch(16, 3, "strong")


@pytest.mark.parametrize(
    ("options", "batch", "per_epoch", "steps"),
    [
        ({}, 16, 10, 20),
        ({"world_size": 8}, 16, 3, 12),
        ({"world_size": 8, "epochs": 2}, 16, 3, 6),
        ({"world_size": 8, "scaling": "strong"}, 2, 20, 40),
        ({"batch_size": 32, "steps": 7}, 32, 5, 7),
    ],
)
def test_plan_of_the_transformer(
    options: dict[str, Any], batch: int, per_epoch: int, steps: int
) -> None:
    values: dict[str, Any] = {"workload": "transformer", "world_size": 2, "directory": HERE}
    plan = Job(**{**values, **options}).plan()

    assert (plan.per_rank_batch, plan.steps_per_epoch, plan.steps) == (batch, per_epoch, steps)


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({"world_size": 1}, 1.0),
        ({"world_size": 8}, 8.0),
        ({"world_size": 8, "scaling": "strong"}, 1.0),
        ({"world_size": 8, "accumulate": 4}, 32.0),
        ({"world_size": 8, "scaling": "strong", "accumulate": 4}, 4.0),
        ({"world_size": 2, "batch_size": 64}, 2.0),
    ],
)
def test_the_learning_rate_grows_with_the_samples_of_an_update(
    options: dict[str, Any], scale: float
) -> None:
    assert Job(**{"workload": "transformer", "directory": HERE, **options}).plan().lr_scale == scale


@pytest.mark.parametrize(("gpus", "refused"), [(4, False), (3, True)])
def test_each_machine_needs_gpus_for_its_own_ranks_only(
    monkeypatch: pytest.MonkeyPatch, gpus: int, refused: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(elastic.dist, "is_backend_available", lambda name: True)
    job = Job("timed", 8, HERE, backend="nccl")
    two_machines = Meeting("first:29500", nodes=2, node_rank=1)
    if refused:
        with pytest.raises(UsageError, match=r"for each of 4 ranks, and here are 3"):
            elastic.check(job, two_machines)
    else:
        assert elastic.check(job, two_machines).steps > 0
    with pytest.raises(UsageError, match=f"for each of 8 ranks, and here are {gpus}"):
        elastic.check(job)


@pytest.mark.parametrize(
    ("exit_code", "reason", "message"),
    [
        (1, "ValueError: boom", "rank 3 failed: ValueError: boom; see logs/rank_3.err"),
        (7, "", "rank 3 failed: its process ended with exit code 7; see logs/rank_3.err"),
        (-11, "", "rank 3 failed: its process was ended by SIGSEGV; see logs/rank_3.err"),
    ],
)
def test_a_failed_rank_in_one_line(exit_code: int, reason: str, message: str) -> None:
    error = RankFailedError(3, exit_code, reason, Path("logs/rank_3.err"))

    assert str(error) == message
    assert isinstance(error, CommprofError)
    assert (error.rank, error.process_exit_code, error.exit_code) == (3, exit_code, 1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(stream: io.StringIO, text: str) -> None:
    limit = time.monotonic() + 10
    while text not in stream.getvalue():
        assert time.monotonic() < limit, stream.getvalue()
        time.sleep(0.02)


def test_progress_on_a_terminal_is_one_line_that_is_erased(tmp_path: Path) -> None:
    stream = Terminal()
    with ProgressLine(tmp_path, 2, 12, stream):
        wait_for(stream, "2 ranks: starting")
        progress = ProgressFile(tmp_path)
        progress.update(5)
        wait_for(stream, "2 ranks: step 5/12")
        progress.close()

    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
    assert list(tmp_path.iterdir()) == []


def test_progress_elsewhere_is_at_most_one_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    with ProgressLine(tmp_path, 2, 12, stream):
        pass

    assert stream.getvalue() == ""
    with ProgressLine(tmp_path, 2, 12, stream, piped=True):
        pass
    assert stream.getvalue() == "2 ranks: 12 steps to train\n"


def test_progress_is_written_at_most_every_fifth_of_a_second(tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path)
    for step in range(1, 100):
        progress.update(step)
    progress.close()

    assert int((tmp_path / "progress").read_text()) < 99
