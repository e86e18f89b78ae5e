from __future__ import annotations

import math
import os
import pty
import subprocess
import sys
import termios
import time
from datetime import datetime
from pathlib import Path

import pytest

from commprof.commands import main, top
from commprof.monitor.state import ArrivalState, Late, MonitorState
from commprof.report.live_frame import frame, waiting_frame
from tests.support.builders.live_states import job_state, rank_state
from tests.support.builders.run_directories import HOSTILE, ranks_of, write_run
from tests.support.builders.traces import MS, GrowingRun

AT = datetime.fromtimestamp(1_700_000_000).strftime("%H:%M:%S")


def test_a_wide_frame_shows_all_columns_and_the_late_rank() -> None:
    ranks = (rank_state(0), rank_state(1, recent=None, total=None, operations={}, status=""))
    lines = frame(job_state(ranks=ranks), "run", 200)
    assert lines[0] == f"2 ranks, gloo, full mode, at {AT}: run"
    titles, _, first, second = (line.split() for line in lines[2:6])
    assert titles[:6] == ["rank", "host", "state", "step", "ago", "steps/s"]
    assert first == [
        "0",
        "node-1",
        "running",
        "249",
        "0",
        "s",
        "10",
        "100",
        "10",
        "50",
        "4",
        "6",
        "30",
        "12",
        "15",
        "25",
        "9",
        "20",
        "10",
        "4x",
    ]
    assert second[:4] == ["1", "node-1", "-", "249"]
    assert second[6:9] == ["-", "-", "-"]
    text = "\n".join(lines)
    assert "Late rank: 1, in backward; each of the other ranks waits 12 ms per step for it." in text
    assert "all_reduce: bus bandwidth 1.25 GB/s, 50% of the machine profile's bandwidth." in text


@pytest.mark.parametrize(
    ("width", "said"),
    [(60, ""), (100, "waited for: summed"), (200, "all steps. all_reduce: times of the latest")],
)
def test_a_frame_says_which_columns_are_no_means_of_the_recent_steps(width: int, said: str) -> None:
    lines = frame(job_state(), "run", width)
    at = next(i for i, line in enumerate(lines) if line.startswith("Times in ms, means of the"))
    assert said in lines[at + 1]
    assert bool(lines[at + 1]) == bool(said)
    assert ("waited for" in lines[2]) == bool(said)


def test_a_frame_says_that_one_other_rank_waits_for_the_late_rank() -> None:
    late = Late(1, 0.012, "backward", waiting_ranks=1)
    text = "\n".join(frame(job_state(world_size=4, late=late), "run", 200))
    assert "Late rank: 1, in backward; one other rank waits 12 ms per step for it." in text


def test_a_frame_names_a_host_pause_of_the_late_rank() -> None:
    text = "\n".join(frame(job_state(late=Late(1, 0.012, "host pause")), "run", 200))
    assert "Late rank: 1, its process did not run (host pause); each of the other ranks" in text


@pytest.mark.parametrize("width", [20, 60, 80, 100, 140])
def test_no_line_of_a_frame_is_wider_than_the_terminal(width: int) -> None:
    lines = frame(job_state(8), "a/very/long/run/directory", width)
    assert max(map(len, lines)) <= width
    if width >= 60:
        assert all(title in lines[2] for title in ("rank", "steps/s", "exposed"))


def test_control_characters_in_names_do_not_reach_the_terminal() -> None:
    hostile = HOSTILE + "\x1b[2J\x07"
    ranks = (rank_state(0, host=hostile),)
    state = job_state(1, ranks=ranks, backend=hostile, monitor=MonitorState(0, 0, 0, 7, (hostile,)))
    lines = frame(state, hostile, 200)
    assert all(line.isprintable() for line in lines)
    assert any(line.startswith("7 records were left out") for line in lines)


def test_a_frame_says_that_a_run_has_ended_or_not_begun() -> None:
    assert "has ended; its last steps" in frame(job_state(finished=True, late=None), "run", 120)[0]
    assert "no rank records in run yet" in waiting_frame("run", 120)[0]


def test_unknown_figures_of_a_frame_are_dashes() -> None:
    state = job_state(1, ranks=(rank_state(0, waited_for_s=math.nan, since_step_s=math.nan),))
    row = frame(state, "run", 200)[4].split()
    assert row[4] == "-"
    assert row[-2] == "-"


def test_top_once_shows_the_means_of_a_run_that_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run = GrowingRun(tmp_path / "world_3", ranks_of(3, 40, late_ms=20))
    run.begin()
    run.end()
    assert main(["top", str(tmp_path), "--once"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "3 ranks, gloo, full mode, has ended" in out
    assert "Late rank: 2, in backward; each of the other ranks waits 20 ms per step for it." in out
    assert "means of the last 40 steps" in out


def test_top_reports_a_directory_without_records_and_refuses_a_missing_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path), "--once"]) == 0
    assert "no rank records" in capsys.readouterr().out
    assert main(["top", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["top", str(tmp_path), "--refresh", "0"]) == 2


def test_top_in_a_pipe_reports_once_that_it_waits_for_records(tmp_path: Path) -> None:
    watched, made = tmp_path / "run", tmp_path / "made"
    watched.mkdir()
    command = [sys.executable, "-m", "commprof", "top", str(watched), "--refresh", "0.1"]
    env = {**os.environ, "COLUMNS": "300"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"no rank records in {watched} yet; waiting\n"
        time.sleep(1)
        run = GrowingRun(made, ranks_of(2, 20))
        run.begin()
        run.until(1_500 * MS)
        made.rename(watched / "world_2")
        lines = [process.stdout.readline() for _ in range(2)]
        process.terminate()
    assert lines[0] == "\n"
    assert lines[1].startswith("2 ranks, gloo")


def test_top_in_a_pipe_ends_after_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "_NEXT_JOB_S", 0.5)
    assert main(["top", str(write_run(tmp_path, ranks_of(2, 5))), "--refresh", "0.1"]) == 0
    assert capsys.readouterr().out.count("has ended") == 1


def test_top_in_a_pipe_ends_though_the_time_since_a_killed_rank_s_step_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_NEXT_JOB_S", 0.3)
    frames = iter([([f"{number} s ago"], number > 0) for number in range(10)])
    monkeypatch.setattr(top._Watched, "lines", lambda _: next(frames))
    assert main(["top", str(tmp_path), "--refresh", "0.1"]) == 0


def test_top_restores_the_terminal_when_it_quits(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "world_2", ranks_of(2, 20))
    run.begin()
    run.until(1_500 * MS)
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", "commprof", "top", str(tmp_path), "--refresh", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    shown = b""
    while b"the job continues." not in shown:
        shown += os.read(ours, 65536)
    os.write(ours, b"q")
    while not shown.endswith(b"\x1b[?25h\x1b[?1049l"):
        shown += os.read(ours, 65536)
    assert process.wait(timeout=10) == 0
    assert b"2 ranks, gloo, full mode" in shown
    assert shown.startswith(b"\x1b[?1049h\x1b[H\x1b[?25l")
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_collectives_whose_last_rank_is_not_surely_known_are_counted() -> None:
    known = job_state(ranks=tuple(rank_state(r, arrivals=ArrivalState(9, 0, 0)) for r in (0, 1)))
    assert not any("came last" in line for line in frame(known, "run", 200))
    ranks = (
        rank_state(0, arrivals=ArrivalState(90, 4, 6)),
        rank_state(1, arrivals=ArrivalState(100, 0, 0)),
    )
    said = (
        "Rank that came last: not known for 6 of 200 collectives; for 4 of 200 known only among "
        "the hosts that were heard from."
    )
    assert said in frame(job_state(ranks=ranks), "run", 200)
