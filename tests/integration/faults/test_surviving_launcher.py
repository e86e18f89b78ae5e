from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from commprof import _native
from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.machines.commands import RUN, TORCHRUN, call, fork
from tests.support.machines.faults import interrupts
from tests.support.machines.faults.faults import SCRIPT, report_on
from tests.support.machines.faults.launcher_faults import no_cgroup, out_of_memory
from tests.support.machines.launched import Launched, launch, run_of, steps_in
from tests.support.machines.processes import await_gone, gone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the C++ module"),
]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Launched]:
    job = launch(run_of(tmp_path), tmp_path)
    try:
        job.await_steps()
        yield job
    finally:
        job.end()


def test_ranks_outlive_a_killed_launcher_and_the_report_names_the_kill(running: Launched) -> None:
    ranks = running.pids()
    running.process.kill()
    running.process.wait()
    running.await_growth()
    assert not any(gone(pid) for pid in ranks)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    assert await_gone(ranks) == []
    assert running.rings() != []
    report = " ".join(report_on(running.run).split())
    killed = f"the launcher (process {running.process.pid}) was killed before its ranks had ended"
    assert killed in report
    assert "ranks 0, 1 never closed their traces: their processes" in report
    assert running.rings() == []
    assert steps_in(running.world / "rank_0.trace") > 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_that_gets_sigint_or_sigterm_ends_its_ranks(
    running: Launched, number: signal.Signals
) -> None:
    ranks = running.pids()
    running.process.send_signal(number)
    code = 130 if number is signal.SIGINT else -signal.SIGTERM
    assert running.process.wait(60) == code
    assert ("2 ranks: interrupted" if number is signal.SIGINT else "") in running.err
    assert await_gone(ranks) == []
    assert running.rings() == []
    errors = json.loads((running.run / "run.json").read_text())["errors"]
    assert errors == {
        "2": "interrupted" if number is signal.SIGINT else "the launcher was ended by SIGTERM"
    }


def test_sigusr2_of_the_launcher_changes_the_mode_of_its_ranks(running: Launched) -> None:
    ranks = running.pids()
    running.process.send_signal(signal.SIGUSR2)
    control = running.run / "control"
    limit = time.monotonic() + 20
    while not control.exists():
        assert running.process.poll() is None, running.err
        assert time.monotonic() < limit, "no change of mode"
        time.sleep(0.1)
    assert control.read_text() == "off\n"
    time.sleep(2)
    assert control.read_text() == "off\n"
    assert running.process.poll() is None
    assert not any(gone(pid) for pid in ranks)


def test_a_launcher_leaves_no_rank_if_ranks_die_of_sigusr1(running: Launched) -> None:
    ranks = running.pids()
    running.process.send_signal(signal.SIGUSR1)
    assert running.process.wait(60) > 0, "the launcher is not killed by the signal itself"
    assert await_gone(ranks) == []
    errors = json.loads((running.run / "run.json").read_text())["errors"]
    assert "SIGUSR1" in errors["2"], errors


def test_after_an_out_of_memory_kill_records_are_kept_and_the_cause_is_named(
    tmp_path: Path,
) -> None:
    if reason := no_cgroup():
        pytest.skip(reason)
    found = out_of_memory(tmp_path, random.Random(1))
    told = found.unharmed, found.records_kept, found.cause_named
    assert told == (True, True, True), found.said


def test_two_jobs_with_one_output_directory_record_separately(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = (*TORCHRUN, "-m", "commprof.wrap", str(SCRIPT), "none", "30")
    jobs = [fork(*command, COMMPROF_OUT=str(out), OMP_NUM_THREADS="1") for _ in range(2)]
    for job in jobs:
        said, complaints = job.communicate(timeout=90)
        assert job.returncode == 0, complaints
        assert said.count("done ") == 2
    for place in (out, out / "job_2"):
        for rank in (0, 1):
            trace = read_trace(place / f"rank_{rank}.trace")
            assert trace.complete
            assert len(columns.steps(trace)) == 30
    refused = call(*RUN, "--nproc", "1", "--output", str(out), str(SCRIPT), "none", "3")
    assert refused.returncode == 2
    assert "is not empty" in refused.stderr


PARTS = 4


@pytest.fixture(scope="module")
def lengths_s(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    places = {kind: tmp_path_factory.mktemp(kind) for kind in interrupts.KINDS}
    return {kind: interrupts.length_s(kind, place) for kind, place in places.items()}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", list(interrupts.KINDS))
def test_ctrl_c_at_any_moment_leaves_no_harm_and_is_named(
    kind: str, part: int, lengths_s: dict[str, float], tmp_path: Path
) -> None:
    chance = random.Random(f"{kind} {part}")
    after_s = interrupts.moment_s(lengths_s[kind], part, PARTS, chance)
    assert interrupts.interrupt(kind, after_s, tmp_path).complaint() == ""


@pytest.mark.parametrize("number", [0, 1])
def test_ctrl_c_while_a_rank_is_forked_leaves_no_process(number: int, tmp_path: Path) -> None:
    program = "tests.support.machines.faults.interrupted_start"
    with subprocess.Popen(
        [sys.executable, "-m", program, str(tmp_path / "logs"), str(number)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(timeout=60)
            assert process.returncode == -signal.SIGINT, said
            assert "KeyboardInterrupt" in said
            assert await_gone(members(process.pid)) == []
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def members(group: int) -> list[int]:
    shown = subprocess.run(["ps", "-e", "-o", "pid=,pgid="], capture_output=True, text=True)
    pairs = (map(int, line.split()) for line in shown.stdout.splitlines())
    return [pid for pid, of in pairs if of == group]


def test_own_tracebacks_are_distinguished_from_those_of_the_script() -> None:
    script = 'Traceback (most recent call last):\n  File "{}", line 1\nKeyboardInterrupt\n'
    theirs = script.format(interrupts.SCRIPT)
    ours = script.format(f"{interrupts._PACKAGE}commands/run.py")
    assert interrupts.own_tracebacks(f"before\n{theirs}{ours}after\n") == [f"{ours}after\n"]
