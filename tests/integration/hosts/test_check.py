from __future__ import annotations

import json
import re
import resource
import subprocess
import sys

import pytest

from tests.support.machines.ranks import run_module

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checked() -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (260, hard))

    return subprocess.run(
        [sys.executable, "-m", "commprof", "check", "--nproc", "2"],
        capture_output=True,
        text=True,
        timeout=240,
        preexec_fn=limit,
    )


def test_a_low_open_file_limit_fails_and_the_other_checks_still_run(
    checked: subprocess.CompletedProcess[str],
) -> None:
    assert checked.returncode == 1, checked.stderr
    status = {
        line[6:18].strip(): line[:4] for line in checked.stdout.splitlines() if line[4:6] == "  "
    }
    assert status["open files"] == "fail"
    assert [status[name] for name in ("ring", "all-reduce", "gradients")] == ["pass"] * 3
    assert status["pairs"] == "pass"
    assert status["clocks"] == "skip"
    assert "limit 260" in checked.stdout
    assert "ulimit -n 4096" in checked.stdout


def test_check_runs_on_ranks_started_by_another_launcher() -> None:
    first, second = run_module("commprof", ["check"], 2)
    assert re.search(r"^pass  gradients ", first, re.MULTILINE)
    assert re.search(r"^2 ranks: ", first, re.MULTILINE)
    assert second == ""


def outcomes_of(fault: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    monkeypatch.setenv("COMMPROF_CHECK_TIMEOUT_S", "30")
    output = run_module("tests.support.ranks.unhealthy", [fault], 2)[0]
    return {name: (status, figure) for name, status, figure in json.loads(output.splitlines()[-1])}


def test_wrong_sums_and_a_diverging_model_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = outcomes_of("wrong", monkeypatch)
    assert [status for status, _ in outcomes.values()] == ["pass", "fail", "fail", "pass"]
    assert "rank 1: 1 of 1000 int64" in outcomes["all-reduce"][1]
    assert "the model of rank 1 differs from that of rank 0" in outcomes["gradients"][1]
    assert outcomes["copies"][1] == "[((), (1,)), ((), (1,))]"


def test_a_rank_that_dies_ends_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = outcomes_of("dies", monkeypatch)
    assert [status for status, _ in outcomes.values()] == ["pass", "fail"]
    assert "ended with this error on rank 0" in outcomes["all-reduce"][1]
