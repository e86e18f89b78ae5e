from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from commprof.analysis.late.incidents import StackFile, find_incidents, read_events, read_hangs
from commprof.analysis.late.standing import PendingOperation
from commprof.analysis.late.standstill import Accused
from commprof.analysis.step.measured import measured_world
from commprof.monitor.watchdog import py_spy
from commprof.monitor.watchdog.feed import ProcessWatch, RankFeed
from commprof.monitor.watchdog.hang import Hang, HungProcess
from commprof.monitor.watchdog.hang_files import HangFile
from commprof.monitor.watchdog.tasks import Log
from commprof.report import table
from commprof.report.sections import incidents as incidents_table
from commprof.report.sections.caveats import caveats
from tests.support.builders import results
from tests.support.builders.results import hang_report, incidents
from tests.support.builders.traces import MS, Rank, world_run

SECOND = 1_000_000_000
OPERATION = PendingOperation("all_reduce", "0", 7, -1, 4_000_000, 4_000_000, SECOND, 1, True)
HANG = Hang(
    "absent",
    (Accused(1, "was last seen in step 3", "were last seen in step 3"),),
    OPERATION,
    5.0,
    (0,),
    5.5,
    3,
    "backward",
)


def test_a_hang_is_written_and_read_again(tmp_path: Path) -> None:
    rank = Rank(0, 2, pid=os.getpid())
    rank.step(0, 100 * MS)
    rank.collective(7, 150 * MS, 0, bytes=8, graph_task=1)
    rank.write(tmp_path / "rank_0.trace")
    feed = RankFeed(tmp_path / "rank_0.trace")
    feed.poll()
    feed.process = HungProcess(os.getpid(), "running")
    file = HangFile(tmp_path, HANG, [feed], 10 * SECOND)
    file.set_threshold("5 s, as asked for")
    # The file is written at once: the watchdog may be killed before a stack is read.
    assert json.loads((tmp_path / "hang_1.json").read_text())["threshold"] == "5 s, as asked for"
    assert "Threshold: 5 s, as asked for" in (tmp_path / "hang_1.txt").read_text()
    file.add_stack(1, "", "Thread 1\n    f (a.py:1)", "")
    file.add_stack(0, "", "", py_spy.MISSING)
    (found,) = read_hangs(tmp_path)
    assert (found.number, found.accused, found.ended_after_s) == (1, (1,), None)
    assert found.sentence == HANG.sentence
    assert [(one.rank, one.file, bool(one.problem)) for one in found.stacks] == [
        (1, "hang_1_rank_1.stack.txt", False),
        (0, "", True),
    ]
    assert (tmp_path / "hang_1_rank_1.stack.txt").read_text().startswith("Thread 1")
    assert file.end(13 * SECOND) == 3.0
    assert read_hangs(tmp_path)[0].ended_after_s == 3.0
    (state,) = json.loads((tmp_path / "hang_1.json").read_text())["ranks"]
    assert (state["step"], state["step_s"], state["phase"]) == (1, 9.9, "backward")
    assert (state["pending"][0]["seq"], state["pending"][0]["pending_s"]) == (7, 9.85)
    text = (tmp_path / "hang_1.txt").read_text()
    assert "Threshold: 5 s, as asked for" in text
    assert "pending for 9.8 s: all_reduce 7 of group '0', bucket 0, 8 bytes" in text
    assert HangFile(tmp_path, HANG, [feed], 0).number == 2
    feed.close()


def test_control_characters_are_escaped_in_a_hang_s_text_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host\x1b[2J")
    file = HangFile(tmp_path, HANG, [], 10 * SECOND)
    file.add_stack(0, "", "", "py-spy said\x1b[31m\nno")
    text = (tmp_path / "hang_1.txt").read_text()
    assert "\x1b" not in text
    assert "Hang 1 on host\\x1b[2J" in text
    assert "Stacks of rank 0: py-spy said\\x1b[31m no\n" in text


def test_writing_to_a_missing_directory_raises_nothing_and_leaves_no_files(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    file = HangFile(gone, HANG, [], 0)
    file.add_stack(0, "", "text", "")
    Log(gone, quiet=True).say("hello")
    assert not gone.exists()
    assert read_hangs(gone) == read_events(gone) == ()


def test_events_are_written_and_read_again(tmp_path: Path) -> None:
    log = Log(tmp_path, quiet=True)
    log.event("anomaly", "step time rose\x1b[31m", incidents().anomalies[0][1])
    log.event("mismatch", "not the same", incidents().mismatches[0])
    one, other = read_events(tmp_path)
    assert (one.kind, other.kind, other.sentence) == ("anomaly", "mismatch", "not the same")
    (text,) = tmp_path.glob("watchdog_*.log")
    assert "\x1b" not in text.read_text()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema_version": 1}', "[" * 10_000, '{"schema_version": 1, "number": "x"}'],
)
def test_invalid_hang_and_event_files_are_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "hang_1.json").write_text(text)
    (tmp_path / "hang_2.json").mkdir()
    (tmp_path / "watchdog_h.jsonl").write_text(text)
    assert read_hangs(tmp_path) == read_events(tmp_path) == ()


def test_sentences_describe_hangs_mismatches_and_anomalies() -> None:
    assert incidents_table.sentences([incidents()]) == [
        "3 ranks: hang 1, 2026-11-01T12:00:00.000+00:00: rank 1 did not arrive; over 2.5 s "
        "later. Stacks: hang_1_rank_1.stack.txt. All ranks: hang_1.json.",
        "3 ranks: the job hung: ranks 0, 2 had waited for rank 1.",
        "3 ranks: Collective 3 of group '0' is not the same on all ranks: rank 1 issued an "
        "all_reduce(sum) of 16 bytes as Float where ranks 0, 2 issued an all_reduce(sum) of 8 "
        "bytes as Float; rank 1 differs from the majority.",
        "3 ranks: 4 more collectives after these differ between ranks.",
        "3 ranks: 2026-11-01T12:00:05+00:00: Rank 1's own work rose from 20 to 30 ms (+50%) at "
        "step 120, most of it in backward.",
        "3 ranks: 2026-11-01T12:01:00+00:00: step time rose.",
    ]
    without = hang_report(ended_after_s=None, stacks=(StackFile(1, "", "ptrace is not allowed"),))
    (line,) = incidents_table.sentences(
        [
            replace(
                incidents(last_wait=None, mismatches=(), events=(), anomalies=()),
                hangs=(without,),
                mismatch_count=0,
            )
        ]
    )
    assert line.endswith(
        "it did not end. No stacks: ptrace is not allowed. All ranks: hang_1.json."
    )


def test_the_terminal_report_begins_with_incidents() -> None:
    text = table.render(results.run_result(results.world(2), incidents=(incidents(),)), 100)
    blocks = text.split("\n\n")
    assert blocks[1].startswith(f"{incidents_table.TITLE}:\n* 3 ranks: hang 1")
    assert incidents_table.TITLE not in table.render(results.run_result(results.world(2)), 100)


@pytest.mark.parametrize(("trial_began", "sought"), [(1, True), (2 * MS, False)])
def test_changes_of_speed_are_sought_unless_a_trial_began_in_the_trace(
    trial_began: int, sought: bool
) -> None:
    """A trace keeps the metadata of a trial from an earlier capture of the same process."""
    trial = {"plan": "", "first_step": 0, "begin_monotonic_ns": trial_began, "left_out": {}}
    rank, now = Rank(trial=trial), MS
    for step in range(120):
        length = (100 if step < 60 else 150) * MS
        rank.step(now, now + length)
        now += length
    run = world_run([rank])
    assert bool(find_incidents(run, measured_world(run)).anomalies) == sought


def test_a_level_change_that_ended_is_a_note_and_no_incident() -> None:
    found = incidents(hangs=(), mismatches=(), mismatch_count=0, events=(), last_wait=None)
    ((time, change),) = found.anomalies
    ended = replace(found, anomalies=((time, replace(change, last_step=150)),))
    assert len(incidents_table.sentences([found])) == 1
    assert incidents_table.sentences([ended]) == incidents_table.ended_changes([found]) == []
    run = results.run_result(results.world(3), incidents=(ended,))
    assert caveats(run) == [
        "3 ranks: Rank 1's own work rose from 20 to 30 ms (+50%) from step 120 to 150, most of it "
        "in backward; then the former level returned. The means include these steps."
    ]
    assert incidents_table.TITLE not in table.render(run, 100)


def test_a_process_with_a_reused_id_is_reported_dead() -> None:
    watch = ProcessWatch(os.getpid())
    assert watch.poll() == HungProcess(os.getpid(), "running")
    watch._started += 1
    gone = watch.poll()
    assert (gone.state, gone.held_up) == ("dead", True)
    assert "is gone" in gone.sentence


@pytest.mark.skipif(py_spy.find_py_spy() is None, reason="needs py-spy")
def test_py_spy_reads_python_and_native_stacks_of_a_process() -> None:
    program = "import time\ndef guilty_nap():\n    time.sleep(60)\nguilty_nap()"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            deadline = time.monotonic() + 30
            while "guilty_nap (<string>" not in py_spy.dump(process.pid).text:
                assert time.monotonic() < deadline
            native = py_spy.NativeDump(process.pid)
            while (read := native.poll()) is None:
                time.sleep(0.05)
            assert read.problem == ""
            assert "guilty_nap (<string>" in read.text
            assert ("nanosleep" if sys.version_info >= (3, 11) else "select") in read.text
            assert ProcessWatch(process.pid).poll().state == "running"
        finally:
            process.kill()


def test_py_spy_errors_are_explained_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = tmp_path / "ptrace_scope"
    monkeypatch.setattr(py_spy, "_YAMA", scope)
    denied = "Permission Denied: Try running again with elevated permissions"
    assert "add CAP_SYS_PTRACE" in py_spy.explained(denied, 7)
    scope.write_text("1\n")
    assert "ptrace_scope is 1; start the job with commprof run" in py_spy.explained(denied, 7)
    scope.write_text("3\n")
    assert "ptrace_scope is 3" in py_spy.explained(denied, 7)
    assert py_spy.explained("\nError: no Python\nmore", 7) == "py-spy: Error: no Python"
    monkeypatch.setattr(py_spy, "find_py_spy", lambda: None)
    assert py_spy.dump(os.getpid()).problem == py_spy.MISSING
