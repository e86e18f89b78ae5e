from __future__ import annotations

import errno
import io
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.elastic.metrics import api as metrics_api
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from commprof.analysis.rank_summary import RankSummary
from commprof.analysis.world import WorldResult
from commprof.errors import CommprofError, RankFailedError, UsageError
from commprof.invocation import quoted
from commprof.launch import backends, elastic, rendezvous, worker
from commprof.launch.elastic import kill_lost_ranks
from commprof.launch.job import Job, per_rank_batch
from commprof.launch.progress import ProgressFile, ProgressLine
from commprof.launch.rendezvous import Rendezvous
from commprof.launch.worker import PeakMemory
from commprof.report.sections import memory as memory_table
from tests.support.builders.results import PARTS, run_result, world
from tests.support.machines.ranks import free_port
from tests.support.section_text import tables_text

HERE = Path("run/w2")


def test_a_job_is_unchanged_by_saving_and_loading(tmp_path: Path) -> None:
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
        ({"nodes": 3}, r"unknown keys: \['nodes'\]"),
    ],
)
def test_a_job_file_with_wrong_keys_or_types_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "job.json"
    Job("timed", 2, HERE).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(UsageError, match=message):
        Job.load(path)


def test_a_job_file_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, reason in ((file / "job.json", "File exists"), (tmp_path, "Is a directory")):
        with pytest.raises(CommprofError) as caught:
            Job("timed", 2, HERE).save(path)
        assert str(caught.value) == f"cannot write {quoted(path)}: {reason}"


def test_a_system_error_of_the_launcher_is_an_error_in_one_line(tmp_path: Path) -> None:
    def refused() -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with pytest.raises(CommprofError, match=r"the launcher of the ranks failed: .*unavailable"):
        elastic._run_ranks(refused, tmp_path, 0)
    (tmp_path / "logs").touch()
    with pytest.raises(CommprofError, match=r"cannot write to .*logs: File exists"):
        elastic.launch_script(["-c", "pass"], 1, tmp_path / "logs", {})


def test_a_signal_to_the_launcher_is_raised_as_keyboard_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> float:
        raise SignalException("", signal.SIGINT)

    monkeypatch.setattr(metrics_api, "time", SimpleNamespace(time=interrupted))
    with pytest.raises(KeyboardInterrupt):
        elastic._run_ranks(metrics_api.prof(lambda: None), tmp_path, 0)


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_missing_or_malformed_job_file_is_refused(tmp_path: Path, text: str) -> None:
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
def test_job_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Job(**{"workload": "timed", "world_size": 1, "directory": HERE, **options})


@pytest.mark.parametrize(
    ("batch_size", "world_size", "scaling", "per_rank"),
    [(16, 4, "weak", 16), (16, 3, "weak", 16), (16, 4, "strong", 4), (16, 16, "strong", 1)],
)
def test_the_batch_per_rank_is_divided_only_in_strong_scaling(
    batch_size: int, world_size: int, scaling: str, per_rank: int
) -> None:
    assert per_rank_batch(batch_size, world_size, scaling) == per_rank


def test_an_indivisible_global_batch_is_refused_with_allowed_sizes() -> None:
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
def test_the_plan_of_a_transformer_job_has_batch_and_steps(
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
    monkeypatch.setattr(backends.dist, "is_backend_available", lambda name: True)
    job = Job("timed", 8, HERE, backend="nccl")
    two_machines = Rendezvous("first:29500", nodes=2, node_rank=1)
    if refused:
        with pytest.raises(UsageError, match="for each of the 4 ranks, and this machine has 3"):
            elastic.check(job, two_machines)
    else:
        assert elastic.check(job, two_machines).steps > 0
    with pytest.raises(UsageError, match=f"for each of the 8 ranks, and this machine has {gpus}"):
        elastic.check(job)


def test_a_rendezvous_without_the_first_machine_fails_and_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_TIMEOUT_S", 1)
    second = Rendezvous(f"127.0.0.1:{free_port()}", nodes=2, node_rank=1)
    with pytest.raises(CommprofError, match=r"rendezvous of the ranks failed.*--rdzv-endpoint"):
        elastic.launch_script(["-c", "pass"], 2, tmp_path, {}, second)


@pytest.mark.parametrize(
    ("exit_code", "reason", "message"),
    [
        (1, "ValueError: boom", "rank 3 failed: ValueError: boom; see logs/rank_3.err"),
        (7, "", "rank 3 failed: its process ended with exit code 7; see logs/rank_3.err"),
        (-11, "", "rank 3 failed: its process was ended by SIGSEGV; see logs/rank_3.err"),
    ],
)
def test_a_failed_rank_is_described_in_one_line(exit_code: int, reason: str, message: str) -> None:
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


def test_progress_on_a_terminal_is_one_line_that_is_erased_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with ProgressLine(tmp_path, 2, 12, stream):
        wait_for(stream, "2 ranks: starting")
        progress = ProgressFile(tmp_path)
        progress.update(5)
        wait_for(stream, "2 ranks: step 5/12")
        progress.close()

    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\n\x1b[?25h\r\x1b[1A\x1b[2K")
    assert list(tmp_path.iterdir()) == []


def test_a_dumb_terminal_gets_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressLine(tmp_path, 2, 12, stream) as line:
        assert line._live is not None
        line._live.refresh()
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().strip() == ""


def test_progress_without_a_terminal_is_at_most_one_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    with ProgressLine(tmp_path, 2, 12, stream):
        pass

    assert stream.getvalue() == ""
    with ProgressLine(tmp_path, 2, 12, stream, announced="12 steps to train"):
        pass
    assert stream.getvalue() == "2 ranks: 12 steps to train\n"


def test_progress_is_written_at_most_every_fifth_of_a_second(tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path)
    for step in range(1, 100):
        progress.update(step)
    progress.close()

    assert int((tmp_path / "progress").read_text()) < 99


def sleeper(**environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_kill_lost_ranks_ends_ranks_and_no_other_children() -> None:
    rank, other = sleeper(TORCHELASTIC_RUN_ID="none", RANK="0"), sleeper(RANK="0")
    try:
        kill_lost_ranks()
        assert rank.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        kill_lost_ranks()
    finally:
        for process in (rank, other):
            process.kill()
            process.communicate()


MIB = 1 << 20


def take(size_bytes: int) -> mmap.mmap:
    """Closing the returned memory gives it back to the kernel."""
    memory = mmap.mmap(-1, size_bytes)
    memory.write(b"\1" * size_bytes)
    return memory


def test_the_rank_that_failed_first_comes_first_in_the_exit_codes(tmp_path: Path) -> None:
    failures = {}
    for number, second in ((0, 7), (1, 5), (2, 9)):
        file = tmp_path / f"{number}.json"
        said = {"message": f"error {number}", "extraInfo": {"timestamp": str(second)}}
        file.write_text(json.dumps({"message": said}))
        failures[number] = ProcessFailure(number, 100 + number, 1 + number, str(file))
    failed = elastic._rank_failed(ChildFailedError("ranks", failures), tmp_path, 0)
    assert (failed.rank, failed.reason) == (1, "error 1")
    assert list(failed.exit_codes.items()) == [(1, 2), (0, 1), (2, 3)]


def test_peak_memory_is_measured_from_its_start() -> None:
    memory = PeakMemory("cpu")
    take(200 * MIB).close()
    memory.start()
    before = memory.use()
    take(64 * MIB).close()
    after = memory.use()

    assert before.before_bytes == after.before_bytes > 10 * MIB
    assert before.peak_bytes < before.before_bytes + 100 * MIB
    assert 60 * MIB < after.peak_bytes - before.peak_bytes < 160 * MIB
    assert after.device_peak_bytes is None


def test_a_kernel_without_vmhwm_gives_the_peak_of_the_whole_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t   20480 kB\n")
    monkeypatch.setattr(worker, "_STATUS", tmp_path / "status")
    used = PeakMemory("cpu").use()
    assert used.before_bytes == 20 * MIB
    assert used.peak_bytes == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rank(**values: float) -> RankSummary:
    measured = {"rank": 0, "samples": 1, "duration_s": 1, "samples_per_s": 1}
    measured |= {"host": "host", "machine": "boot"}
    return RankSummary(parts=PARTS, average_loss=1.0, final_loss=1.0, **{**measured, **values})  # type: ignore[arg-type]


def test_training_memory_is_that_of_the_gpu_if_there_is_one() -> None:
    assert rank(before_rss_bytes=300, peak_rss_bytes=800).training_bytes == 500
    both = rank(before_rss_bytes=300, peak_rss_bytes=800, device_peak_bytes=70)
    assert both.training_bytes == 70
    assert rank().training_bytes != rank().training_bytes  # NaN differs from itself.


def memory_text(found: WorldResult) -> str:
    return tables_text(memory_table.sections, run_result(found))


def test_the_memory_table_shows_the_highest_and_lowest_use_of_any_rank() -> None:
    ranks = (
        rank(before_rss_bytes=300e6, peak_rss_bytes=800e6),
        rank(before_rss_bytes=310e6, peak_rss_bytes=700e6),
    )
    assert memory_text(world(2, ranks=ranks)).splitlines()[-1].split() == [
        "2", "800", "700", "310",
    ]  # fmt: skip
    on_gpu = (*ranks, rank(before_rss_bytes=1e6, peak_rss_bytes=2e6, device_peak_bytes=5e6))
    row = (
        tables_text(memory_table.sections, run_result(world(3, ranks=on_gpu)))
        .splitlines()[-1]
        .split()
    )
    assert row == ["3", "800", "2", "310", "5", "5"]
    assert memory_text(world(1, ranks=(rank(),))) == ""
