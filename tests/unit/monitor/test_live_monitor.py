from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commprof.commands import main
from commprof.errors import UsageError
from commprof.monitor import monitor as monitors
from commprof.monitor.metrics.metrics import flat, samples
from commprof.monitor.metrics.outputs import exposition
from commprof.monitor.monitor import Monitor, address_file
from commprof.monitor.observer import Observer, newest, this_host
from commprof.monitor.settings import Settings, parse, settings_of_variable
from commprof.monitor.start import start_in_rank, start_monitor
from commprof.monitor.state import GradientState
from commprof.monitor.watchdog import watchdog as watchdogs
from commprof.monitor.watchdog.start import watched
from commprof.monitor.watchdog.tasks import AnomalyTask, HangTask, Log, MismatchTask, WatchTask
from commprof.monitor.watchdog.thresholds import Threshold
from commprof.monitor.watchdog.watchdog import WatchedJob
from commprof.report.live_frame import frame
from commprof.trace.run.processes import Here, State, identity
from tests.support.builders.hostile import damage, little_memory, sound_run
from tests.support.builders.run_directories import ranks_of
from tests.support.builders.trace_bytes import metadata
from tests.support.builders.traces import MS, GrowingRun


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitors, "_ALERT_S", 0.02)


def running(monitor: Monitor) -> threading.Thread:
    thread = threading.Thread(target=monitor.run)
    thread.start()
    return thread


def fetch(run: Path) -> str:
    url = json.loads(address_file(run).read_text())["url"]
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read()).decode()


def until(seen: Any, timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < end, "never came"
        time.sleep(0.02)


def test_monitor_settings_are_unchanged_by_their_command_line() -> None:
    given = Settings("127.0.0.1:0", Path("/a b"), Path("/c"), Path("/d"), Path("/e"), 0.5)
    assert parse(given.arguments()) == given
    assert parse(["--metrics"]).address == "127.0.0.1:9470"
    assert not parse([]).wanted


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--metrics-address", "nowhere"], "HOST:PORT"),
        (["--metrics-interval", "0"], "out of range"),
        (["--metrics-intervall", "2"], "unrecognized"),
        (["--metrics-interval", "x"], "invalid float"),
    ],
)
def test_unusable_monitor_settings_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse(words)


def test_monitor_settings_are_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not settings_of_variable("").wanted
    found = settings_of_variable("--metrics-jsonl '/a b/c' --metrics-interval 5")
    assert found == Settings(jsonl=Path("/a b/c"), interval_s=5.0)
    assert "no live metrics" in start_in_rank(tmp_path, "--what")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert start_in_rank(tmp_path, "--what") == ""


def test_the_env_command_exports_the_metrics_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["env", "--output", "out", "--metrics-jsonl", "m.jsonl"]) == 0
    assert f"--metrics-jsonl {tmp_path}/m.jsonl --metrics-interval 2" in capsys.readouterr().out


def test_a_monitor_exposes_a_job_until_the_job_ends(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "world_2", ranks_of(2, 40, late_ms=20))
    job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    of = f"{job.pid}:{identity(job.pid)}"
    settings = Settings("127.0.0.1:0", tmp_path / "m.prom", tmp_path / "m.jsonl", interval_s=0.2)
    monitor = Monitor(tmp_path, settings, of)
    thread = running(monitor)
    try:
        assert fetch(tmp_path) == ""
        run.begin()
        run.until(2_000 * MS)
        until(lambda: 'commprof_steps_total{rank="0"}' in fetch(tmp_path))
        run.end()
    finally:
        job.kill()
        job.wait()
    thread.join(timeout=10)
    assert not thread.is_alive()
    monitor.close()
    assert 'commprof_steps_total{rank="1"} 40.0\n' in (tmp_path / "m.prom").read_text()
    assert 'commprof_late_rank{rank="1"} 1.0\n' in (tmp_path / "m.prom").read_text()
    assert json.loads((tmp_path / "m.jsonl").read_text().splitlines()[-1])["step"] == 39
    assert not address_file(tmp_path).exists()


def test_a_monitor_looks_at_the_given_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "_ALERT_S", 60)
    looks: list[float] = []
    monkeypatch.setattr(Observer, "poll", lambda _: looks.append(time.monotonic()))
    monitor = Monitor(tmp_path, Settings(interval_s=0.2))
    thread = running(monitor)
    try:
        until(lambda: len(looks) > 2)
    finally:
        monitor.end()
        thread.join()
        monitor.close()


def test_a_monitor_does_not_remove_the_address_file_of_another(tmp_path: Path) -> None:
    first, second = (Monitor(tmp_path, Settings("127.0.0.1:0")) for _ in range(2))
    for without in (first, Monitor(tmp_path, Settings(jsonl=tmp_path / "m.jsonl"))):
        without.close()
        assert fetch(tmp_path) == ""
    second.close()
    assert not address_file(tmp_path).exists()


def test_a_monitor_continues_after_its_run_directory_is_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    run = GrowingRun(directory / "world_2", ranks_of(2, 40))
    run.begin()
    run.until(1_000 * MS)
    files = {rank: path.open("ab") for rank, path in run.paths.items()}
    monitor = Monitor(directory, Settings(textfile=directory / "m.prom", interval_s=0.2))
    thread = running(monitor)
    until((directory / "m.prom").exists)
    shutil.rmtree(directory)
    until(lambda: "m.prom" in capsys.readouterr().err)
    assert thread.is_alive()
    monitor.end()
    thread.join(timeout=10)
    monitor.close()
    for file in files.values():
        file.close()


def test_a_started_monitor_is_no_child_of_the_job_and_ends_with_it(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from commprof.monitor.settings import Settings\n"
        "from commprof.monitor.start import start_monitor\n"
        "run = Path(sys.argv[1])\n"
        "assert start_monitor(run, Settings('127.0.0.1:0', interval_s=0.2)) == ''\n"
        "try:\n    os.wait()\nexcept ChildProcessError:\n    print('none', flush=True)\n"
        "sys.stdin.read()\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert job.stdout is not None
    assert job.stdout.readline() == b"none\n"
    until(address_file(tmp_path).exists)
    job.kill()
    job.communicate()
    until(lambda: not address_file(tmp_path).exists())
    assert (tmp_path / "monitor.log").read_text() == ""


def pid_of(run: Path, module: bytes = b"commprof.monitor") -> int:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = place.read_bytes().split(b"\0")
            if module in words and os.fsencode(run) in words:
                return int(place.parent.name)
    return 0


def test_a_stopped_monitor_does_not_delay_the_job_and_catches_up(tmp_path: Path) -> None:
    run, lines = tmp_path / "run", tmp_path / "m.jsonl"
    growing = GrowingRun(run / "world_2", ranks_of(2, 40))
    growing.begin()
    growing.until(1_000 * MS)
    script = (
        "import sys; from pathlib import Path\n"
        "from commprof.monitor.settings import Settings\n"
        "from commprof.monitor.start import start_monitor\n"
        "settings = Settings(jsonl=Path(sys.argv[2]), interval_s=0.2)\n"
        "assert start_monitor(Path(sys.argv[1]), settings) == ''\n"
        "sys.stdin.read()\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", script, str(run), str(lines)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    until(lambda: lines.exists() and lines.read_text().count("\n") > 0)
    pid = pid_of(run)
    os.kill(pid, signal.SIGSTOP)
    try:
        growing.end()
        job.communicate(timeout=5)
        assert job.returncode == 0
        assert json.loads(lines.read_text().splitlines()[-1])["step"] < 39
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: pid_of(run) == 0)
    assert json.loads(lines.read_text().splitlines()[-1])["step"] == 39
    assert (run / "monitor.log").read_text() == ""


def hears(pid: int) -> bool:
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_the_end_of_a_job_does_not_wait_for_a_stopped_watchdog(tmp_path: Path) -> None:
    with watched(tmp_path, "60"):
        until(lambda: (pid := pid_of(tmp_path, b"commprof.monitor.watchdog")) and hears(pid))
        os.kill(pid_of(tmp_path, b"commprof.monitor.watchdog"), signal.SIGSTOP)
        begin = time.monotonic()
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watchdog_that_was_started_by_hand_ends_by_signals(tmp_path: Path, number: int) -> None:
    words = [sys.executable, "-m", "commprof.monitor.watchdog", str(tmp_path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as watchdog:
        until(lambda: hears(watchdog.pid))
        watchdog.send_signal(number)
        assert watchdog.communicate(timeout=30)[1] == ""
    assert watchdog.returncode == 0


def test_a_monitor_that_cannot_start_returns_the_problem(tmp_path: Path) -> None:
    problem = start_monitor(tmp_path / "gone", Settings("127.0.0.1:0"))
    assert problem.startswith("no live metrics: ")


def test_looks_become_rarer_by_all_that_the_monitor_does_between_two_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_s, rests_s = 0.0, []

    def poll() -> None:
        nonlocal cpu_s
        cpu_s += 0.125

    def publish(rest_s: float) -> None:
        nonlocal cpu_s
        cpu_s += 0.375
        rests_s.append(rest_s)
        if len(rests_s) == 3:
            monitor.end()

    clock = SimpleNamespace(process_time=lambda: cpu_s, monotonic=iter(range(0, 900, 30)).__next__)
    monkeypatch.setattr(monitors, "time", clock)
    monitor = Monitor(tmp_path, Settings())
    monkeypatch.setattr(monitor, "_poll", poll)
    monkeypatch.setattr(monitor, "_publish", publish)
    monitor.run()
    monitor.close()
    assert rests_s[:3] == [0.125 / 0.02, 0.5 / 0.02, 0.5 / 0.02]


def test_this_host_reports_memory_cpu_time_and_interfaces() -> None:
    host = this_host()
    assert host is not None
    assert 0 < host.memory_available_bytes <= host.memory_bytes
    assert host.cpu_busy_s > 0
    assert "lo" in host.interfaces


def test_without_procfs_host_and_processes_are_unknown(tmp_path: Path) -> None:
    assert this_host(tmp_path) is None
    assert Here(tmp_path).find(metadata(pid=os.getpid())) == (State.UNKNOWN, None)


def test_gradient_figures_of_ranks_are_read_and_malformed_ones_ignored(tmp_path: Path) -> None:
    path, trace = tmp_path / "rank_3.gradients", tmp_path / "rank_3.trace"
    assert newest(trace) is None
    for text in ("", "{", "[]", '{"step": "x"}', '{"step": 1, "norm": []}', "[" * 100_000):
        path.write_text(text)
        assert newest(trace) is None
    path.write_text('{"step": 7, "norm": 1.5, "layer_variance": 0.5, "cost_s": 0.25}   \n')
    assert newest(trace) == GradientState(7, 1.5, 0.5, 0.25)


def test_gradient_figures_are_those_of_the_followed_attempt(tmp_path: Path) -> None:
    GrowingRun(tmp_path, ranks_of(1, 3)).begin()
    (tmp_path / "rank_0.trace").rename(tmp_path / "rank_0.attempt_1.trace")
    for attempt, step in (("", 90), (".attempt_1", 7)):
        figures = {"step": step, "norm": 1.5, "layer_variance": 0.5, "cost_s": 0.25}
        (tmp_path / f"rank_0{attempt}.gradients").write_text(json.dumps(figures))
    observer = Observer(tmp_path, patience_s=0)
    state = observer.poll()
    observer.close()
    assert state is not None
    assert state.ranks[0].gradients == GradientState(7, 1.5, 0.5, 0.25)


def watching(directory: Path, parent: int) -> threading.Thread:
    options = {"parent": parent, "quiet": True}
    thread = threading.Thread(target=watchdogs.watch, args=(directory, 60.0), kwargs=options)
    thread.start()
    return thread


def test_a_watchdog_with_a_parent_ends_with_that_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdogs, "LOOK_S", 0.02)
    looks: list[int] = []
    monkeypatch.setattr(watchdogs, "_search", lambda *_: looks.append(1))
    launcher = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    thread = watching(tmp_path, launcher.pid)
    try:
        until(lambda: len(looks) > 2 or not thread.is_alive())
        assert thread.is_alive()
    finally:
        launcher.kill()
        thread.join(timeout=10)
        launcher.wait()  # A zombie must count as ended, so the test waits only now.
    assert not thread.is_alive()
    with pytest.raises(UsageError, match=f"--parent {launcher.pid}: no running process with"):
        watchdogs.watch(tmp_path, 60.0, parent=launcher.pid)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = sound_run(tmp_path_factory.mktemp("sound") / "run")
    observer = Observer(run, patience_s=0)
    assert observer.poll() is not None
    observer.close()
    return run


def damaged(sound: Path, run: Path, seed: int) -> Path:
    chance = random.Random(seed)
    shutil.copytree(sound, run)
    print([damage(run, chance, "rank_*.trace") for _ in range(3)])
    return run


def watch(run: Path) -> None:
    observer = Observer(run, patience_s=0)
    for _ in range(3):
        state = observer.poll()
        if state is not None:
            assert "\x1b" not in "".join(frame(state, str(run), 80))
            assert b"\x1b" not in exposition(samples(state))
            flat(state)
    observer.close()


def guard(world: Path) -> None:
    def tasks(place: Path) -> list[WatchTask]:
        log = Log(place, quiet=True)
        return [HangTask(place, Threshold(5.0), log), MismatchTask(log), AnomalyTask(log)]

    job = WatchedJob(world, tasks)
    job.search()
    for _ in range(8):
        job.poll(time.monotonic_ns())
    job.end()


@pytest.mark.parametrize("seed", range(60))
def test_monitor_and_watchdog_survive_damaged_traces(
    seed: int, sound: Path, tmp_path: Path
) -> None:
    run = damaged(sound, tmp_path / "run", seed)
    with little_memory(1 << 30):
        watch(run)
        guard(run / "world_2")
