from __future__ import annotations

import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commprof.trace.reader import read_trace
from tests.support.machines.commands import RUN, call, finish, start

TIMED = "timed:layers=1,data_ms=0,forward_ms=1,backward_ms=1,gradient_mb=0.001"


def rings_of(run: Path) -> list[str]:
    traces = sorted(run.rglob("rank_*.trace"))
    assert traces
    prefixes = [read_trace(trace).metadata["ring_prefix"] for trace in traces]
    assert all(prefix.startswith("/dev/shm/commprof-") for prefix in prefixes)
    return [name for prefix in prefixes for name in glob.glob(prefix + "*")]


def processes_of(run: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stderr, command = (
                os.readlink(entry / "fd/2"),
                (entry / "cmdline").read_text(errors="replace"),
            )
        except OSError:
            continue
        if entry.name != str(os.getpid()) and (str(run) in stderr or str(run) in command):
            found.append(command)
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    base = tmp_path_factory.mktemp("recorded")
    done = call(
        *RUN, "--nproc", "2", "--steps", "4", "--workload", TIMED, "--overhead-steps", "4",
        "--output", str(base / "run"), "--json", str(base / "deep" / "result.json"), cold=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert rings_of(base / "run") == []
    return base, done


def test_a_run_prints_a_row_per_world_size_and_commands_for_next_steps(recorded: Any) -> None:
    base, done = recorded
    rows = re.findall(r"^ +([12]) +2\+2 ", done.stdout, re.MULTILINE)
    assert rows == ["1", "2"]
    assert done.stdout.splitlines()[-6:] == [
        f"JSON: {base}/deep/result.json",
        f"Run directory: {base}/run",
        f"Run it again: commprof run --config {base}/run/config.yaml",
        f"Page with pictures: commprof report {base}/run --format html",
        "Profile your own script, for example train.py: commprof run --nproc 2 train.py",
        f"See everything: commprof report {base}/run --all",
    ]


def test_no_progress_display_is_printed_without_a_terminal(recorded: Any) -> None:
    _, done = recorded
    steps = "4 steps to train, then 4 to measure commprof's overhead"
    assert done.stderr == f"1 rank: {steps}\n2 ranks: {steps}\n"
    assert all(line.isprintable() for line in done.stdout.split("\n"))


def test_report_repeats_the_json_and_tables_of_the_run(recorded: Any) -> None:
    base, done = recorded
    shown = call("-m", "commprof", "report", str(base / "run"), "--format", "json")
    assert shown.returncode == 0
    assert shown.stdout == (base / "deep" / "result.json").read_text()
    assert shown.stdout == (base / "run" / "result.json").read_text()
    again = call("-m", "commprof", "report", str(base / "run"), "--all")
    tables, _, how = again.stdout.partition("\n\nRun it again:")
    assert tables == done.stdout.partition("\n\nJSON:")[0]
    assert f"--config {base}/run/config.yaml (in {Path.cwd()};" in how
    assert [run["num_processes"] for run in json.loads(shown.stdout)["runs"]] == [1, 2]


def test_report_escapes_characters_that_an_ascii_terminal_lacks(recorded: Any) -> None:
    base, _ = recorded
    shown = call("-m", "commprof", "report", str(base / "run"), "--all", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0, shown.stderr
    assert r"\xb5s" in shown.stdout


@pytest.mark.parametrize("length", [["--all"], []])
def test_report_into_a_closed_pipe_prints_no_error(recorded: Any, length: list[str]) -> None:
    base, _ = recorded
    with start("-m", "commprof", "report", str(base / "run"), *length) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def copy_of(run: Path, to: Path) -> Path:
    for path in run.rglob("*"):
        if path.is_file():
            target = to / path.relative_to(run)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return to


def report_of(run: Path) -> str:
    done = call("-m", "commprof", "report", str(run), "--all")
    assert (done.returncode, done.stderr) == (0, "")
    return re.sub(r"\s+", " ", done.stdout)


def test_a_truncated_trace_is_reported_up_to_its_cut(recorded: Any, tmp_path: Path) -> None:
    run = copy_of(recorded[0] / "run", tmp_path / "run")
    trace = run / "world_2" / "rank_1.trace"
    trace.write_bytes(trace.read_bytes()[:-40])
    text = report_of(run)
    assert "At 2 ranks: rank 1: cut off" in text
    assert "rank 1 never closed its trace" in text
    assert " 2 2+2 " in text


def test_a_missing_rank_is_named_and_the_rest_reported(recorded: Any, tmp_path: Path) -> None:
    run = copy_of(recorded[0] / "run", tmp_path / "run")
    _, of_two = json.loads((run / "result.json").read_text())["runs"]
    # The rank with the longer wait remains, so that the report has waiting to separate.
    missing = min(of_two["rank_results"], key=lambda each: each["parts"]["exposed_ms"])["rank"]
    (run / "world_2" / f"rank_{missing}.trace").unlink()
    (run / "world_2" / f"rank_{missing}.json").unlink()
    text = report_of(run)
    assert f"At 2 ranks no usable trace came from rank {missing}: " in text
    assert "waiting and transfer cannot be separated" in text
    assert " 2 2+2 " in text


PLANT = """
import importlib.abc, importlib.util, os, sys

class Plant(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "commprof.workloads.models.timed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), plant(module._TimedTrainee))
        return spec

def plant(trainee):
    update = trainee._update
    def fail_in_step_3(self):
        update(self)
        if self._step == 3 and os.environ.get("RANK") == "1":
            raise ValueError("planted \\x1b[2J here")
    trainee._update = fail_in_step_3

sys.meta_path.insert(0, Plant())
"""


@pytest.mark.slow
def test_a_rank_that_raises_ends_the_sweep_and_finished_sizes_are_reported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLANT)
    run = tmp_path / "run"
    done = call(
        *RUN, "--world-sizes", "1,2,4", "--steps", "5", "--workload", TIMED,
        "--overhead-steps", "0", "--output", str(run), PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1
    log = run / "world_2/logs/rank_1.err"
    reason = rf"rank 1 failed: ValueError: planted \x1b[2J here; see {log}"
    trained, told = done.stderr.splitlines()[:2], done.stderr.splitlines()[2:]
    assert trained == ["1 rank: 5 steps to train", "2 ranks: 5 steps to train"]
    assert told == [f"commprof: 2 ranks: {reason}"]
    assert "planted" in log.read_text().splitlines()[-1]
    assert "Traceback (most recent call last)" in log.read_text()

    assert re.search(r"^ +1 +\d\+\d ", done.stdout, re.MULTILINE)
    assert f"* 2 ranks: {reason}" in re.sub(r"\n +", " ", done.stdout)
    assert "* 4 ranks: did not run to its end" in done.stdout
    assert not (run / "world_4").exists()
    assert rings_of(run) == []
    assert processes_of(run) == []
    again = call("-m", "commprof", "report", str(run), "--all")
    assert again.returncode == 0
    tables = again.stdout.partition("\n\nRun it again:")[0]
    assert tables == done.stdout.partition("\n\nRun directory:")[0]


def test_an_interrupt_ends_all_processes_and_reports_finished_world_sizes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(
        [
            sys.executable, *RUN, "--world-sizes", "1,2", "--steps", "500", "--workload", TIMED,
            "--output", str(run), "--overhead-steps", "0",
        ],
        env={**os.environ, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    limit = time.monotonic() + 60
    while not (run / "world_2/progress").exists():
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    done = finish(process)

    assert done.returncode == 130
    assert done.stderr.splitlines()[2:] == ["commprof: 2 ranks: interrupted"]
    assert re.search(r"^ +1 +\d+\+\d+ ", done.stdout, re.MULTILINE)
    assert "* 2 ranks: interrupted" in done.stdout
    assert rings_of(run) == []
    assert processes_of(run) == []


@pytest.mark.parametrize("native", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_a_run_directory_need_not_be_utf8(tmp_path: Path, native: str) -> None:
    run = os.fsdecode(os.fsencode(tmp_path) + b"/run\xff")
    options = ["--world-sizes", "1", "--steps", "3", "--overhead-steps", "0", "--workload", TIMED]
    done = call(*RUN, *options, "--output", run, timeout_s=120, COMMPROF_NATIVE=native)
    assert done.returncode == 0, done.stderr
    assert f"$'{tmp_path}/run\\xff'" in done.stdout
    assert f"Run directory: $'{tmp_path}/run\\xff'\n" in done.stdout
    page, timeline = f"{run}/page.html", f"{run}/time.json"
    written = call("-m", "commprof", "report", run, "--format", "html", "-o", page)
    assert written.stdout == f"Written: $'{tmp_path}/run\\xff/page.html'\n"
    shown = call("-m", "commprof", "trace", run, "-o", timeline)
    assert shown.stdout.startswith(f"$'{tmp_path}/run\\xff/time.json': ")
    again = call("-m", "commprof", "trace", run, "-o", timeline)
    assert f"$'{tmp_path}/run\\xff/time.json' exists" in again.stderr
    report = call("-m", "commprof", "report", run, "--format", "json")
    (world,) = json.loads(report.stdout)["runs"]
    assert world["num_processes"] == 1
