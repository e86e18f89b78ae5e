from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.analysis.summaries import SummaryPart, analyse_hosts, analyse_summaries
from commprof.commands import main
from commprof.files import replace_file
from commprof.monitor import hosts as hosts_module
from commprof.monitor.figures import hosts as figures_module
from commprof.monitor.figures.hosts import WrittenBy, host_content
from commprof.monitor.metrics.metrics import samples
from commprof.monitor.metrics.outputs import step_of
from commprof.monitor.observer import Observer, rank_parts
from commprof.monitor.state import JobState
from commprof.report.live_frame import frame
from commprof.trace import host_summary
from commprof.trace.host_summary import (
    MOST_BYTES,
    HostSummaries,
    encoded,
    read_host_summary,
    read_whole,
    running_hosts,
    summary_paths,
)
from commprof.trace.run import run_directory
from commprof.trace.run.run_directory import read_world
from tests.support.builders.live_states import job_state, rank_state
from tests.support.builders.run_directories import ranks_of
from tests.support.builders.simulated_hosts import SimulatedHost, here_on
from tests.support.builders.traces import GrowingRun

PER_HOST = 4


def simulated(run: Path, hosts: int, sequence: int = 1, next_s: float = 600) -> list[SimulatedHost]:
    run.mkdir(exist_ok=True)
    found = [SimulatedHost(run, host, hosts, PER_HOST) for host in range(hosts)]
    for host in found:
        host.write(sequence)
    for host in found[1:]:
        host.publish(next_s)
    return found


@pytest.fixture
def watching() -> Iterator[list[Observer]]:
    observers: list[Observer] = []
    yield observers
    for observer in observers:
        observer.close()


def looked(observer: Observer, times: int = 2) -> JobState:
    """Polls twice by default, because a monitor finds its own ranks in the first poll."""
    states = [observer.poll() for _ in range(times)]
    assert states[-1] is not None
    return states[-1]


def exposed(state: JobState) -> dict[str, float]:
    return {
        f"{sample.metric.name}{sorted(sample.labels.items())}": sample.value
        for sample in samples(state)
    }


def test_the_first_monitor_knows_the_same_from_other_hosts_summaries_as_from_their_traces(
    tmp_path: Path, watching: list[Observer]
) -> None:
    simulated(tmp_path, 3)
    by_traces, by_hosts = Observer(tmp_path), Observer(tmp_path, is_monitor=True)
    watching += [by_traces, by_hosts]
    for path in summary_paths(tmp_path):
        path.rename(path.with_suffix(".away"))
    expected = looked(by_traces)
    for path in tmp_path.glob("*.away"):
        path.rename(path.with_suffix(".summary"))
    state = looked(by_hosts)
    assert by_hosts._job is not None
    assert sorted(by_hosts._job.tails) == list(range(PER_HOST))
    assert state.late == expected.late
    assert state.late is not None
    assert state.late.rank == 3
    assert len(state.ranks) == len(expected.ranks) == 3 * PER_HOST
    for rank, known in zip(state.ranks, expected.ranks, strict=True):
        assert (rank.rank, rank.host, rank.step) == (known.rank, known.host, known.step)
        assert rank.waited_for_s == pytest.approx(known.waited_for_s)
        assert rank.arrivals == known.arrivals
        for part in ("total", "recent"):
            ours, theirs = getattr(rank, part), getattr(known, part)
            for field in fields(theirs):
                a, b = getattr(ours, field.name), getattr(theirs, field.name)
                assert a == pytest.approx(b, rel=1e-5, nan_ok=True), field.name
        assert rank.operations["all_reduce"].recent_p50_s == pytest.approx(
            known.operations["all_reduce"].recent_p50_s, rel=1e-5
        )
    assert not state.missing_hosts
    found = exposed(state)
    assert found["commprof_host_missing[('host', 'node0002')]"] == 0
    assert found["commprof_waited_for_seconds_total[('rank', '3')]"] == pytest.approx(
        11 * 20 * 0.16
    )


def test_a_report_of_a_running_job_has_the_figures_of_all_traces_without_reading_them(
    tmp_path: Path,
) -> None:
    for host in simulated(tmp_path, 3)[:1]:
        host.publish(600)
    expected = analyse_summaries(read_world(tmp_path, 3 * PER_HOST))
    result = analyse_hosts(running_hosts(tmp_path))
    assert expected is not None
    assert result is not None
    same = replace(expected, cross_checks=(), apart=None, problems=())
    for field in fields(same):
        assert repr(getattr(result, field.name)) == repr(getattr(same, field.name)), field.name


def test_ranks_without_figures_of_their_own_wait_for_the_late_rank_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_module, "MOST_LISTED", 2)
    simulated(tmp_path, 3)[0].publish(600)
    listed = [host.summary.listed for host in running_hosts(tmp_path) if host.summary]
    assert listed == [(0, 3), (4,), (8,)]
    expected = analyse_summaries(read_world(tmp_path, 3 * PER_HOST))
    result = analyse_hosts(running_hosts(tmp_path))
    assert expected is not None
    assert result is not None
    assert result.late_rank is not None
    assert result.late_rank == expected.late_rank
    assert result.late_rank.waiting_ranks == 11


def test_the_report_command_reads_summaries_while_the_job_runs_and_traces_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = simulated(tmp_path, 2)
    hosts[0].publish(600)
    read: list[Path] = []
    original = run_directory.read_trace

    def noted(path: Path, *others: Any, **options: Any) -> Any:
        read.append(path)
        return original(path, *others, **options)

    monkeypatch.setattr(run_directory, "read_trace", noted)
    assert main(["report", str(tmp_path), "--all"]) == 0
    text = capsys.readouterr().out
    text = " ".join(text.split())
    assert "2 hosts of the job wrote these figures 0 to " in text
    assert "still runs" not in text  # The job may have been killed since.
    assert "rank 3 is late" in " ".join(text.split())
    assert not read
    for host in hosts:
        host.write(2, closed=True)
        host.publish(600)
    assert main(["report", str(tmp_path), "--all"]) == 0
    text = capsys.readouterr().out
    assert "hosts of the job wrote" not in text
    assert "rank 3 is late" in " ".join(text.split())
    assert len(read) == 2 * PER_HOST


@pytest.mark.parametrize("left", ["no file", "an old file"])
def test_a_report_of_a_running_job_reads_the_traces_if_a_host_has_no_new_figures(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    left: str,
) -> None:
    monkeypatch.setattr(host_summary, "_LATENESS_S", 0.0)
    simulated(tmp_path, 3)[0].publish(600)
    if left == "no file":
        summary_paths(tmp_path)[1].unlink()
    else:
        SimulatedHost(tmp_path, 1, 3, PER_HOST).publish(0.0)
    assert running_hosts(tmp_path)
    assert main(["report", str(tmp_path), "--all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "hosts of the job wrote" not in text
    assert "rank 3 is late" in text
    missing = "Host node0001 (ranks 4-7) is missing: no figures since "
    assert (missing in text) == (left == "an old file")
    (summary,) = analyse_in_detail(tmp_path)[0].summaries
    assert summary.ranks == tuple(range(12))


def test_a_report_has_both_lines_of_one_version_of_a_hosts_file(tmp_path: Path) -> None:
    """A code can stand for different operations in two versions of the file."""
    hosts = simulated(tmp_path, 2)
    hosts[0].publish(600)
    before = running_hosts(tmp_path)
    expected = analyse_hosts(before)
    path = summary_paths(tmp_path)[1]
    first, operations = values_in(path)
    for entry in operations:
        entry["op"] = len(first["ops"]) - 1 - entry["op"]
    first["ops"].reverse()
    replace_file(path, encoded(first, operations))
    found = analyse_hosts(before)
    assert expected is not None
    assert found is not None
    assert repr(found.operations) == repr(expected.operations)


_MONITOR = """
import sys, time
from pathlib import Path
from tests.support.builders.simulated_hosts import SimulatedHost
host = SimulatedHost(Path(sys.argv[1]), 1, 3, 4)
for sequence in range(10_000):
    host.write(sequence)
    host.publish(0.2)
    print(sequence, flush=True)
    time.sleep(0.2)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_frozen_host_costs_its_own_figures_only(
    tmp_path: Path,
    watching: list[Observer],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    monkeypatch.setattr(host_summary, "_LATENESS_S", 1.0)
    simulated(tmp_path, 3)
    monitor = subprocess.Popen(
        [sys.executable, "-c", _MONITOR, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert monitor.stdout is not None
        monitor.stdout.readline()
        observer = Observer(tmp_path, is_monitor=True)
        watching.append(observer)
        state = looked(observer)
        assert not state.missing_hosts
        assert [rank.status for rank in state.ranks] == ["running"] * 12
        os.kill(monitor.pid, number)
        state = _until(observer, lambda state: bool(state.missing_hosts))
        (host,) = state.missing_hosts
        assert (host.name, host.described) == ("node0001", "host node0001 (ranks 4-7)")
        assert "node0001 (ranks 4-7) is missing: no figures since " in "\n".join(
            frame(state, "run", 200)
        )
        found = exposed(state)
        assert found["commprof_host_missing[('host', 'node0001')]"] == 1
        assert found["commprof_host_missing[('host', 'node0002')]"] == 0
        assert found["commprof_host_summary_age_seconds[('host', 'node0001')]"] > 1
        assert [rank.status for rank in state.ranks] == [
            *["running"] * 4,
            *[""] * 4,
            *["running"] * 4,
        ]
        assert state.late is not None
        assert state.late.rank == 3
        if number == signal.SIGSTOP:
            os.kill(monitor.pid, signal.SIGCONT)
            state = _until(observer, lambda state: not state.missing_hosts)
            assert state.ranks[4].status == "running"
    finally:
        monitor.kill()
        monitor.communicate()


def _without_summaries(run: Path, away: Path) -> JobState:
    away.mkdir()
    for trace in run.glob("*.trace"):
        (away / trace.name).write_bytes(trace.read_bytes())
    observer = Observer(away)
    state = looked(observer)
    observer.close()
    return state


@pytest.mark.parametrize("most_followed", [256, 0])
@pytest.mark.parametrize("is_monitor", [True, False])
def test_a_host_whose_monitor_was_killed_falsifies_nothing(
    tmp_path: Path,
    watching: list[Observer],
    monkeypatch: pytest.MonkeyPatch,
    most_followed: int,
    is_monitor: bool,
) -> None:
    monkeypatch.setattr(host_summary, "_LATENESS_S", 0.0)
    monkeypatch.setattr(hosts_module, "_MOST_FOLLOWED", most_followed)
    run = tmp_path / "run"
    hosts = simulated(run, 3)
    hosts[1].publish(0.0)
    for host in hosts:
        host.write(401)
    for host in (hosts[0], hosts[2]):
        host.publish(600)
    observer = Observer(run, is_monitor=is_monitor)
    watching.append(observer)
    state, expected = looked(observer, 3), _without_summaries(run, tmp_path / "traces")
    assert [host.name for host in state.missing_hosts] == ["node0001"]
    assert state.late is not None
    assert expected.late is not None
    assert state.late.rank == 3
    assert state.late.wait_s == pytest.approx(expected.late.wait_s)
    assert state.late.waiting_ranks == (11 if most_followed else 7)
    behind = set(range(4, 8)) if not most_followed else set()
    assert {rank.rank for rank in state.ranks if rank.step == 401} == behind
    assert all(not math.isnan(rank.waited_for_s) for rank in state.ranks)


def test_a_job_ends_for_watchers_if_a_monitor_was_killed(
    tmp_path: Path, watching: list[Observer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_summary, "_LATENESS_S", 0.0)
    hosts = simulated(tmp_path, 3)
    hosts[0].publish(600)
    hosts[1].publish(0.0)
    watching += [Observer(tmp_path), Observer(tmp_path, is_monitor=True)]
    assert not any(looked(observer, 3).finished for observer in watching)
    for host in hosts:
        host.write(2, closed=True)
    for host in (hosts[0], hosts[2]):
        host.publish(600)
    for observer in watching:
        state = looked(observer)
        assert [host.name for host in state.missing_hosts] == ["node0001"]
        assert state.finished


def test_recent_figures_go_on_if_a_host_becomes_missing(
    tmp_path: Path, watching: list[Observer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_summary, "_LATENESS_S", 0.0)
    hosts = simulated(tmp_path, 3)
    observer = Observer(tmp_path, is_monitor=True, patience_s=0.0)
    watching.append(observer)
    looked(observer)
    hosts[0].write(11)
    hosts[1].publish(0.0)
    recent = looked(observer, 3).ranks[0].recent
    assert recent is not None
    assert recent.steps == 10


@pytest.mark.parametrize("where", [0, 2])
def test_a_rank_that_begins_late_on_a_monitors_host_is_followed(
    tmp_path: Path, watching: list[Observer], where: int
) -> None:
    simulated(tmp_path, 3)
    late = tmp_path / f"rank_{PER_HOST * where + 3}.trace"
    content = late.read_bytes()
    late.unlink()
    with here_on(where) as here:
        observer = Observer(tmp_path, is_monitor=True, here=here)
        watching.append(observer)
        looked(observer)
        late.write_bytes(content)
        looked(observer)
        assert observer._job is not None
        assert sorted(observer._job.tails) == list(range(PER_HOST * where, PER_HOST * (where + 1)))


def test_a_rank_that_is_restarted_on_a_monitors_host_is_followed(
    tmp_path: Path, watching: list[Observer]
) -> None:
    """An elastic restart may give the ranks of one host to another host."""
    simulated(tmp_path, 3)
    with here_on(2) as here:
        observer = Observer(tmp_path, is_monitor=True, here=here)
        watching.append(observer)
        looked(observer)
        place = tmp_path / "begun"
        place.mkdir()
        for on, rank in ((2, 4), (2, 9), (1, 5)):
            host = SimulatedHost(place, on, 3, PER_HOST)
            host.ranks, host._heads = range(rank, rank + 1), {rank: host._head(rank)}
            host.write(1)
            (place / f"rank_{rank}.trace").rename(tmp_path / f"rank_{rank}.attempt_1.trace")
        looked(observer)
        assert observer._job is not None
        assert sorted(observer._job.tails) == [4, 8, 9, 10, 11]


def _until(observer: Observer, seen: Any, timeout_s: float = 20) -> JobState:
    end = time.monotonic() + timeout_s
    while True:
        state = observer.poll()
        assert state is not None
        if seen(state):
            return state
        assert time.monotonic() < end, "never came"
        time.sleep(0.05)


def values_in(path: Path) -> list[Any]:
    return [json.loads(line[9:]) for line in path.read_bytes().splitlines()]


def test_a_cut_file_keeps_the_last_figures_and_is_named(
    tmp_path: Path, watching: list[Observer]
) -> None:
    simulated(tmp_path, 3)
    observer = Observer(tmp_path, is_monitor=True)
    watching.append(observer)
    before = looked(observer)
    cut = summary_paths(tmp_path)[0]
    whole = cut.read_bytes()
    cut.write_bytes(whole[:1000])
    state = looked(observer)
    assert state.late == before.late
    assert len(state.ranks) == 12
    assert [host.problem != "" for host in state.hosts] == [True, False]
    assert "cannot be read: it ends within a line" in state.hosts[0].problem
    (damaged, sound) = HostSummaries(tmp_path).look()
    assert damaged.summary is None
    assert damaged.missing
    assert "is missing: no figures since" in damaged.sentence()
    assert (sound.missing, sound.problem) == (False, "")
    fresh = Observer(tmp_path, is_monitor=True)
    watching.append(fresh)
    state = looked(fresh)
    assert [rank.rank for rank in state.ranks] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert state.late is not None
    assert state.late.rank == 3
    assert running_hosts(tmp_path)
    assert analyse_hosts(running_hosts(tmp_path)) is None


def test_a_file_cut_within_its_operations_is_sound_for_top_and_not_for_a_report(
    tmp_path: Path, watching: list[Observer]
) -> None:
    simulated(tmp_path, 3)[0].publish(600)
    assert analyse_hosts(running_hosts(tmp_path)) is not None
    cut = summary_paths(tmp_path)[1]
    whole = cut.read_bytes()
    cut.write_bytes(whole[: whole.index(b"\n") + 100])
    observer = Observer(tmp_path, is_monitor=True)
    watching.append(observer)
    assert not looked(observer).missing_hosts
    assert analyse_hosts(running_hosts(tmp_path)) is None


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_of_hosts_never_stop_a_reader(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    simulated(tmp_path, 3)
    path = summary_paths(tmp_path)[0]
    whole = path.read_bytes()
    values, operations = values_in(path)
    for _ in range(12):
        if draw.random() < 0.5:
            damaged = bytearray(whole)
            for _ in range(draw.randrange(1, 4)):
                damaged[draw.randrange(len(damaged))] = draw.choice(b'0-e"[]{},:x')
            path.write_bytes(bytes(damaged))
        else:
            names = sorted(values.keys() - {"attempt"})
            name = draw.choice([*names, *(f"figures.{name}" for name in values["figures"])])
            value = draw.choice([None, -1, 2**70, 2**62, 1e300, "x", [], {}, [[1]], True])
            changed = json.loads(json.dumps(values))
            target, key = ("figures", name[8:]) if name.startswith("figures.") else ("", name)
            (changed[target] if target else changed)[key] = value
            path.write_bytes(encoded(changed, operations))
        observer = Observer(tmp_path, is_monitor=True)
        state = looked(observer)
        observer.close()
        assert {8, 9, 10, 11} <= {rank.rank for rank in state.ranks}
        exposed(state)
        assert frame(state, "run", 100)
        analyse_hosts(running_hosts(tmp_path))


def test_a_file_is_bounded_whatever_the_host_holds(tmp_path: Path) -> None:
    host = SimulatedHost(tmp_path, 0, 2, 1, operations=1)
    host.write(1)
    observer = Observer(tmp_path, is_monitor=True)
    observer.poll()
    assert observer._job is not None
    (one,) = rank_parts(observer._job.tails)
    observer.close()
    (operation,) = one.summary.operations
    many = [replace(operation, group=n // 60 + 1, size_class=n % 60) for n in range(255)]
    cells = one.summary.waited_for.cells
    parts: list[SummaryPart] = []
    for rank in range(4096):
        moved = cells + np.array([rank % 900, rank, 0])
        waits = replace(one.summary.waited_for, cells=moved)
        summary = replace(
            one.summary, waited_for=waits, operations=tuple(many[: 255 if rank < 8 else 1])
        )
        parts.append(replace(one, ranks=(rank,), summary=summary, listed=(rank,)))
    by = WrittenBy("n" * 500, 0, 1.0, 2.0, 2.0, 8192, "gloo", "always-on")
    states = [rank_state(rank) for rank in range(4096)]
    content = host_content(states, parts, by)
    assert len(content) <= MOST_BYTES
    path = tmp_path / "host_x.summary"
    path.write_bytes(content)
    found = read_host_summary(path)
    assert (found.rank_count, len(found.ranks)) == (4096, 4096)
    assert len(found.listed) <= 64
    assert found.waits.steps.count == 4096 * one.summary.steps.count
    _, whole = read_whole(path)
    assert sum(each.count for each in whole.operations) == 400 * (8 * 255 + 4088)
    odd = [rank_state(rank * rank) for rank in range(600)]
    path.write_bytes(host_content(odd, parts[:600], replace(by, world_size=600**2)))
    assert len(path.read_bytes()) <= MOST_BYTES
    assert read_host_summary(path).rank_count == 600


def test_hosts_without_a_summary_are_followed_by_their_traces(
    tmp_path: Path, watching: list[Observer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_module, "_GRACE_S", 0.0)
    simulated(tmp_path, 3)
    summary_paths(tmp_path)[0].unlink()
    observer = Observer(tmp_path, is_monitor=True)
    watching.append(observer)
    state = looked(observer, 3)
    assert observer._job is not None
    assert sorted(observer._job.tails) == list(range(8))
    assert [rank.rank for rank in state.ranks] == list(range(12))
    assert state.late is not None
    assert all(rank.waited_for_s == 0 for rank in state.ranks if rank.rank != 3)


def test_monitors_of_other_hosts_follow_their_own_ranks_alone(tmp_path: Path) -> None:
    simulated(tmp_path, 3)
    with here_on(2) as here:
        observer = Observer(tmp_path, is_monitor=True, here=here)
        state = looked(observer, 3)
        assert observer._job is not None
        assert sorted(observer._job.tails) == [8, 9, 10, 11]
        assert (state.hosts, state.late) == ((), None)
        assert all(math.isnan(rank.waited_for_s) for rank in state.ranks)
        observer.close()


def test_top_reads_hosts_and_one_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = simulated(tmp_path, 3)
    hosts[0].publish(600)
    assert main(["top", str(tmp_path), "--once"]) == 0
    text = capsys.readouterr().out
    assert "Late rank: 3" in text
    assert "Figures of 3 hosts from their monitors, up to " in text
    assert "12 ranks, gloo, always-on mode" in text


def test_a_monitor_that_is_started_again_does_not_read_its_own_file(
    tmp_path: Path, watching: list[Observer]
) -> None:
    hosts = simulated(tmp_path, 3)
    hosts[0].publish(600)
    for host in hosts:
        host.write(2)
    observer = Observer(tmp_path, is_monitor=True)
    watching.append(observer)
    state = looked(observer)
    assert [host.name for host in state.hosts] == ["node0001", "node0002"]
    assert [rank.step for rank in state.ranks] == [402] * PER_HOST + [401] * 2 * PER_HOST


def test_hosts_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    """Prometheus refuses all samples if two have the same labels."""
    simulated(tmp_path, 3)
    for path in summary_paths(tmp_path):
        first, operations = values_in(path)
        path.write_bytes(encoded({**first, "host": "localhost"}, operations))
    names = [host.name for host in HostSummaries(tmp_path).look()]
    assert names == ["localhost (00000001)", "localhost (00000002)"]


@pytest.mark.parametrize(
    ("by_its_clock_s", "by_the_file_s", "missing"),
    [(14, 0, False), (0, 14, False), (14, 14, True), (3600, 0, True), (-14, 0, False)],
)
def test_a_host_is_not_missing_because_its_clock_is_wrong(
    tmp_path: Path, by_its_clock_s: float, by_the_file_s: float, missing: bool
) -> None:
    """A file that is an hour newer than its content is a copy of an old file."""
    simulated(tmp_path, 2, next_s=2)
    (path,) = summary_paths(tmp_path)
    first, operations = values_in(path)
    now_s = time.time()
    changed = {"time_s": now_s - by_its_clock_s, "began_s": now_s - 7200}
    path.write_bytes(encoded({**first, **changed}, operations))
    os.utime(path, (now_s, now_s - by_the_file_s))
    (host,) = HostSummaries(tmp_path).look()
    assert host.missing == missing


def test_summaries_of_an_earlier_attempt_or_job_are_not_read(tmp_path: Path) -> None:
    simulated(tmp_path, 4)
    earlier, older, newest = summary_paths(tmp_path)
    for path, changes in (
        (earlier, {"time_s": time.time() - 4000, "began_s": time.time() - 5000}),
        (older, {}),
        (newest, {}),
    ):
        first, operations = values_in(path)
        path.write_bytes(encoded({**first, **changes}, operations))
    assert [host.name for host in HostSummaries(tmp_path).look()] == ["node0002", "node0003"]
    first, operations = values_in(newest)
    newest.write_bytes(encoded({**first, "attempt": 1}, operations))
    assert [host.name for host in HostSummaries(tmp_path).look()] == ["node0003"]


def test_neither_a_single_host_nor_a_job_in_full_mode_writes_a_summary(
    tmp_path: Path, watching: list[Observer]
) -> None:
    alone, full = tmp_path / "alone", tmp_path / "full"
    simulated(alone, 1)
    run = GrowingRun(full, ranks_of(2, 12))
    run.begin()
    run.until(2**62)
    for directory in (alone, full):
        observer = Observer(directory, is_monitor=True)
        watching.append(observer)
        looked(observer)
        observer.publish(2.0)
        assert not summary_paths(directory)
        assert observer._job is not None
        assert len(observer._job.tails) == (PER_HOST if directory is alone else 2)


def test_ranks_of_a_missing_host_do_not_hold_up_lines_by_step(tmp_path: Path) -> None:
    simulated(tmp_path, 2)
    (host,) = HostSummaries(tmp_path).look()
    steps = {"ranks": tuple(rank_state(rank, step=9 if rank > 3 else 12) for rank in range(8))}
    assert step_of(job_state(8, hosts=(host,), **steps)) == 9
    assert step_of(job_state(8, hosts=(replace(host, missing=True),), **steps)) == 12


def test_of_many_ranks_top_shows_those_that_cost_most(tmp_path: Path) -> None:
    costs = {70: 500.0, 3: 400.0}
    ranks = tuple(
        rank_state(rank, waited_for_s=costs.get(rank, 1.0), failed=rank == 90)
        for rank in range(100)
    )
    shown = [line.split()[0] for line in frame(job_state(100, ranks=ranks), "run", 200)[4:20]]
    assert len(shown) == 16
    assert {"3", "70", "90"} <= set(shown)
    text = "\n".join(frame(job_state(100, ranks=ranks), "run", 200))
    assert "16 of 100 ranks: those that failed, and those for which the others wait long" in text
    none_failed = tuple(replace(rank, failed=False) for rank in ranks)
    text = "\n".join(frame(job_state(100, ranks=none_failed), "run", 200))
    assert "16 of 100 ranks: those for which the others wait longest" in text
    few = frame(job_state(64, ranks=ranks[:64]), "run", 200)
    assert "of 64 ranks" not in "\n".join(few)
