from __future__ import annotations

import gzip
import json
import random
import shutil
import tarfile
import time
import urllib.request
from pathlib import Path

import pytest

from commprof.analysis.inspector import live
from commprof.analysis.inspector.live import InspectorState, LiveLogs, logs_in
from commprof.analysis.inspector.result import inspector_result
from commprof.commands import main
from commprof.errors import UsageError
from commprof.monitor.metrics.inspector import inspector_samples
from commprof.monitor.metrics.outputs import exposition
from commprof.monitor.monitor import Monitor, address_file
from commprof.monitor.settings import Settings
from commprof.recordings import inspector_tail
from commprof.recordings.inspector import read_logs
from commprof.report.inspector_frame import inspector_frame
from tests.support.builders.inspector_logs import SimulatedJob, simulate


class _Growing:
    def __init__(self, whole: Path, folder: Path, seed: int = 0) -> None:
        self.folder, self._draw = folder, random.Random(seed)
        self.left = {file.name: file.read_bytes() for file in sorted(whole.iterdir())}
        folder.mkdir()
        for name in self.left:
            (folder / name).touch()

    def grow(self, most_bytes: int, without: str = "") -> bool:
        for name, data in self.left.items():
            if name != without:
                size = self._draw.randint(0, most_bytes)
                with (self.folder / name).open("ab") as file:
                    file.write(data[:size])
                self.left[name] = data[size:]
        return any(data for name, data in self.left.items() if name != without)


def test_split_logs_of_any_size_are_counted_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspector_tail, "_BYTES_PER_LOOK", 40_000)
    monkeypatch.setattr(inspector_tail, "_BYTES_PER_LOG", 5_000)
    job = simulate(2, 4, 2, steps=80, late_us={5: 1500.0}, seed=1)
    calls, waited_s = [], []
    for parts in (1, 2):
        folder = tmp_path / str(parts)
        job.write(folder, records_a_dump=7)
        for file in list(folder.iterdir()):
            lines = file.read_text().splitlines(keepends=True)
            middle = len(lines) // 2
            if parts == 2:
                file.with_name(f"{file.name}.1").write_text("".join(lines[:middle]))
                file.write_text("".join(lines[middle:]))
        logs = LiveLogs(folder)
        state = logs.look()
        while not logs.caught_up:
            state = logs.look()
        assert state is not None
        assert (state.lost_records, state.problems) == (0, ())
        calls.append(state.calls)
        waited_s.append(sum(_by_pid(state, "waited_s").values()))
    assert calls == [calls[0]] * 2
    assert waited_s[1] == pytest.approx(waited_s[0])
    assert waited_s[0] > 0


def _by_pid(state: InspectorState, name: str) -> dict[int, float]:
    return {one.process.pid: getattr(one, name) for one in state.processes}


@pytest.mark.parametrize(("version", "seed"), [("v4.0", 1), ("v4.3", 2)])
def test_figures_of_growing_logs_are_those_of_the_whole(
    tmp_path: Path, version: str, seed: int
) -> None:
    job = simulate(2, 4, 2, steps=80, late_us={5: 1500.0}, seed=seed)
    job.write(tmp_path / "whole", version, records_a_dump=7)
    growing = _Growing(tmp_path / "whole", tmp_path / "logs", seed)
    logs, caused, most_kept = LiveLogs(growing.folder), 0.0, 0
    more = True
    while more:
        more = growing.grow(6000)
        state = logs.look()
        if state is None:
            continue
        now = sum(one.caused_s for one in state.processes)
        assert now >= caused
        caused = now
        kept = [
            count
            for log in logs._tail.logs.values()
            for member in log.log.members
            for count, _ in member.kinds.values()
        ]
        most_kept = max(most_kept, sum(kept))
    assert state is not None
    whole = inspector_result(tmp_path / "whole")
    assert (state.lost_records, state.is_lower_bound) == (0, False)
    assert sum(_by_pid(state, "waited_s").values()) == pytest.approx(
        whole.mean.wait_s * 16, rel=1e-3
    )
    assert sum(_by_pid(state, "time_s").values()) == pytest.approx(whole.mean.time_s * 16, rel=1e-3)
    assert 0.6 * whole.mean.wait_s * 16 < caused <= 1.001 * whole.mean.wait_s * 16
    assert [late.process.pid for late in state.late] == [1005]
    assert state.calls == sum(row.calls for row in whole.communicators)
    assert most_kept < len(job.records) / 2


@pytest.mark.parametrize("seed", range(3))
def test_a_neighbour_of_the_late_process_is_never_named(tmp_path: Path, seed: int) -> None:
    """Process 4 waits for process 5 in one part of the run, and is late in the next part."""
    job = simulate(2, 4, 1, steps=80, late_us={5: 2000.0}, seed=seed)
    job.write(tmp_path / "whole", "v4.3", records_a_dump=7)
    growing = _Growing(tmp_path / "whole", tmp_path / "logs", seed)
    logs, named = LiveLogs(growing.folder), set[tuple[int, ...]]()
    while growing.grow(3000):
        state = logs.look()
        named.add(() if state is None else tuple(late.process.pid for late in state.late))
    assert named == {(), (1005,)}


def test_compressed_logs_are_followed_as_far_as_they_are_flushed(tmp_path: Path) -> None:
    job = simulate(1, 8, 1, steps=60, late_us={5: 2000.0}, seed=5)
    job.write(tmp_path / "whole", "v4.3", records_a_dump=7)
    packed = tmp_path / "packed"
    packed.mkdir()
    for file in (tmp_path / "whole").iterdir():
        data = file.read_bytes()
        pieces = [data[begin : begin + 3000] for begin in range(0, len(data), 3000)]
        members = b"\0\0".join(gzip.compress(piece) for piece in pieces)
        (packed / f"{file.name}.gz").write_bytes(members)
    growing = _Growing(packed, tmp_path / "logs")
    logs = LiveLogs(growing.folder)
    states = []
    while growing.grow(300):
        states.append(logs.look())
    state = logs.look()
    assert state is not None
    whole = inspector_result(tmp_path / "whole")
    assert (state.problems, state.lost_records) == ((), 0)
    assert sum(_by_pid(state, "time_s").values()) == pytest.approx(whole.mean.time_s * 8, rel=1e-6)
    assert [late.process.pid for late in state.late] == [1005]
    calls = [one.calls for one in states if one is not None]
    assert len({*calls}) > 3


def test_a_log_that_became_shorter_is_not_read_again(tmp_path: Path) -> None:
    simulate(1, 2, 1, steps=30, seed=1).write(tmp_path)
    log = min(tmp_path.iterdir())
    whole = log.read_bytes()
    logs = LiveLogs(tmp_path)
    logs.look()
    log.write_bytes(whole[: len(whole) // 2])
    logs.look()
    log.write_bytes(whole + whole)
    logs.look()
    assert logs.problems == [f"{log.name} became shorter; its rest is not read"]


def test_compressed_logs_that_cannot_be_followed_are_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(1, 4, 1, steps=30, seed=1).write(tmp_path / "logs")
    plain, damaged, other, archived = sorted((tmp_path / "logs").iterdir())
    (tmp_path / "logs" / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    data = bytearray(gzip.compress(damaged.read_bytes()))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    (tmp_path / "logs" / f"{damaged.name}.gz").write_bytes(data)
    other.unlink()
    (tmp_path / "logs" / f"{other.name}.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(range(99)))
    with tarfile.open(tmp_path / "logs" / "old.tar.gz", "w:gz") as archive:
        archive.add(archived, archived.name)
    damaged.unlink()
    archived.unlink()
    logs = LiveLogs(tmp_path / "logs", is_snapshot=True)
    for _ in range(3):
        logs.look()
    found = sorted(logs.problems)
    assert [text.split(" is left out: ")[0] for text in found if "left out: " in text] == [
        f"{plain.name}.gz",
        f"{other.name}.zst",
        "old.tar.gz",
    ]
    assert any(text.startswith(f"{damaged.name}.gz: its compressed data is dam") for text in found)
    assert len(found) == 4
    assert main(["top", str(tmp_path / "logs"), "--once"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "an archive does not grow; unpack it" in shown
    (caveat,) = (text for text in read_logs(tmp_path / "logs").problems if ".zst" in text)
    assert "only gzip, zip and tar are unpacked" in caveat


def test_a_process_that_stops_writing_is_no_longer_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(1, 4, 1, steps=60, seed=4).write(tmp_path / "whole", records_a_dump=7)
    growing = _Growing(tmp_path / "whole", tmp_path / "logs")
    logs, silent = LiveLogs(growing.folder), "host000-pid1002.log"
    for _ in range(3):
        growing.grow(4000)
    before = logs.look()
    assert before is not None
    while growing.grow(20000, without=silent):
        logs.look()
    after = logs.look()
    assert after is not None
    assert after.lost_records == 0
    monkeypatch.setattr(live, "_PATIENCE_S", -1.0)
    monkeypatch.setattr(live, "_GAPS", -1.0)
    for log in logs._tail.logs.values():
        log.grew_s += 0.0 if log.path.name == silent else 1.0
    state = logs.look()
    assert state is not None
    assert {one.process.pid for one in state.processes if not one.writes} >= {1002}
    assert state.calls > after.calls
    assert state.lost_records > 0
    assert any("missing" in problem for problem in state.problems)


@pytest.mark.parametrize("records_a_dump", [7, 10_000])
def test_copies_count_once_at_every_look(tmp_path: Path, records_a_dump: int) -> None:
    job = simulate(2, 2, 2, steps=20, seed=1)
    job.write(tmp_path / "whole", records_a_dump=records_a_dump)
    folder = tmp_path / "logs"
    shutil.copytree(tmp_path / "whole", folder / "first")
    logs = LiveLogs(folder)
    states = [logs.look()]
    for name in ("second", "third"):
        shutil.copytree(tmp_path / "whole", folder / name)
        states += [logs.look(), logs.look()]
    calls = [state.calls for state in states if state is not None]
    assert calls == [calls[0]] * 5
    assert calls[0] > 0
    assert states[-1] is not None
    assert states[-1].lost_records == 0
    assert any("overlap" in problem for problem in logs.problems)


def test_a_process_whose_log_was_split_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(1, 4, 1, steps=60, seed=4).write(tmp_path / "whole", records_a_dump=7)
    growing = _Growing(tmp_path / "whole", tmp_path / "logs")
    split = "host000-pid1002.log"
    lines = growing.left[split].splitlines(keepends=True)
    growing.left[split] = b"".join(lines[len(lines) // 2 :])
    (growing.folder / f"{split}.1").write_bytes(b"".join(lines[: len(lines) // 2]))
    logs = LiveLogs(growing.folder)
    while growing.grow(4000):
        logs.look()
    monkeypatch.setattr(live, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(live, "_GAPS", 0.0)
    now_s = time.monotonic()
    for log in logs._tail.logs.values():
        log.grew_s = now_s + (0.0 if log.path.name.endswith(".1") else 1.0)
    state = logs.look()
    assert state is not None
    assert all(one.writes for one in state.processes)
    assert state.lost_records == 0


@pytest.mark.parametrize("lost", [0.02, 0.3])
def test_messages_after_a_lost_one_count_as_in_the_report(tmp_path: Path, lost: float) -> None:
    job = simulate(1, 1, 3, steps=600, late_us={1: 1500.0}, seed=1)
    job.lose(lost)
    job.write(tmp_path / "whole", records_a_dump=50)
    whole = inspector_result(tmp_path / "whole")
    calls = sum(row.calls for row in whole.communicators)
    at_once = LiveLogs(tmp_path / "whole", is_snapshot=True).look()
    assert at_once is not None
    growing = _Growing(tmp_path / "whole", tmp_path / "logs")
    logs, behind = LiveLogs(growing.folder), []
    while growing.grow(1 << 14):
        state = logs.look()
        behind.append(0 if state is None else state.calls)
    state = logs.look()
    assert state is not None
    assert len({*behind}) > 5
    assert calls - 80 < state.calls <= calls == at_once.calls
    for live_state, within in ((state, 0.05), (at_once, 1e-9)):
        assert live_state.lost_records == pytest.approx(
            sum(row.lost_records for row in whole.communicators), rel=within
        )
        waited_s = sum(_by_pid(live_state, "waited_s").values())
        assert waited_s == pytest.approx(3 * whole.mean.wait_s, rel=within)
        assert [late.process.pid for late in live_state.late] == [1001]
        assert not any("without a match" in problem for problem in live_state.problems)


def test_a_lost_message_of_no_sequence_leaves_out_those_after_it(tmp_path: Path) -> None:
    draw = random.Random(1)
    job = SimulatedJob(pp=2)
    for _ in range(9000):
        stage = draw.randrange(2)
        job.work(300.0)
        job.send(stage, 1 - stage, 1 << 20, 40.0)
    del job.records[600]
    job.write(tmp_path / "whole")
    growing = _Growing(tmp_path / "whole", tmp_path / "logs")
    logs = LiveLogs(growing.folder)
    while growing.grow(1 << 19):
        logs.look()
    state = logs.look()
    assert state is not None
    assert state.calls == 300  # a call is a send and its recv
    left_out = 2 * 9000 - 1 - 2 * 300
    assert any(f"{left_out} records without a match" in text for text in state.problems)


def test_the_endpoint_gives_the_waiting_that_each_rank_caused(tmp_path: Path) -> None:
    simulate(1, 4, 1, steps=150, late_us={2: 2000.0}, seed=3).write(tmp_path / "whole")
    growing = _Growing(tmp_path / "whole", tmp_path / "logs")
    monitor = Monitor(growing.folder, Settings(address="127.0.0.1:0", interval_s=0.2))
    try:
        while growing.grow(9000):
            monitor._poll()
        url = json.loads(address_file(growing.folder).read_text())["url"]
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
    finally:
        monitor.close()
    values = {
        line.split("{")[1].split("}")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("commprof_nccl_wait_caused_seconds_total{")
    }
    assert len(values) == 4
    latest = max(values, key=lambda labels: values[labels])
    assert 'rank="2"' in latest
    assert 'pid="1002"' in latest
    assert 'commprof_nccl_late{host="host000",pid="1002",rank="2"} 1.0' in text


def test_outputs_of_steps_are_refused(tmp_path: Path) -> None:
    simulate(1, 2, 1, steps=3).write(tmp_path / "logs")
    with pytest.raises(UsageError, match="need step numbers"):
        Monitor(tmp_path / "logs", Settings(jsonl=tmp_path / "x.jsonl"))


def test_top_shows_who_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(2, 4, 1, steps=60, late_us={5: 2000.0}, seed=5).write(tmp_path / "logs", "v4.3")
    assert main(["top", str(tmp_path / "logs"), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "host000 pid 1005 makes the others wait: " in shown
    state = LiveLogs(tmp_path / "logs", is_snapshot=True).look()
    assert state is not None
    narrow = inspector_frame(state, "logs", 60)
    (late,) = state.late
    whole = f"It is late in {late.late_parts} of the {late.parts} parts of this time."
    assert whole in " ".join(narrow)
    assert all(len(line) <= 60 for line in narrow)
    assert main(["top", str(tmp_path / "logs"), "--once", "--profile", str(tmp_path)]) == 2


def test_top_names_the_setting_that_leaves_logs_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node-pid7.log").touch()
    assert main(["top", str(tmp_path), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "no operation is in the logs" in shown
    assert logs_in(tmp_path / "nowhere") is None
    logs = LiveLogs(tmp_path)
    assert logs.look() is None
    assert "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS" in " ".join(logs.problems)


def test_frames_and_metrics_hold_for_a_job_whose_calls_are_not_complete(tmp_path: Path) -> None:
    simulate(1, 4, 1, steps=30, seed=1).write(tmp_path / "logs")
    (tmp_path / "logs" / "host000-pid1001.log").unlink()
    state = LiveLogs(tmp_path / "logs", is_snapshot=True).look()
    assert state is not None
    assert state.is_lower_bound
    lines = inspector_frame(state, "logs", 60)
    assert all(len(line) <= 60 for line in lines)
    assert b"commprof_nccl_lost_records_total" in exposition(inspector_samples(state))
