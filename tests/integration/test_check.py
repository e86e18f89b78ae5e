"""`commprof check` with real ranks: a sound host, and planted faults."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys

import pytest

from tests.support.ranks import run_module

pytestmark = pytest.mark.once_per_change(
    "commprof/health", "commprof/analysis/health.py", "commprof/commands/check.py"
)


@pytest.fixture(scope="module")
def checked() -> subprocess.CompletedProcess[str]:
    """Two ranks that may open too few files."""

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


def test_a_limit_that_is_too_low_fails_and_the_rest_is_checked(
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


def test_ranks_of_another_launcher_check_themselves() -> None:
    first, second = run_module("commprof", ["check"], 2)
    assert re.search(r"^pass  gradients ", first, re.MULTILINE)
    assert re.search(r"^2 ranks: ", first, re.MULTILINE)
    assert second == ""


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("wrong_sums", "all-reduce", "rank 1: 1 of 1000 int64"),
        ("own_updates", "gradients", "rank 1 has another model than rank 0"),
        ("dies", "all-reduce", "broke off, as rank 0 saw it"),
    ],
)
def test_a_planted_fault_is_named(
    fault: str, check: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMPROF_CHECK_TIMEOUT_S", "30")
    output = run_module("tests.support.unhealthy", [fault], 2)[0]
    outcomes = {
        name: (status, figure) for name, status, figure in json.loads(output.splitlines()[-1])
    }
    assert outcomes["ring"][0] == "pass"
    assert outcomes[check][0] == "fail"
    assert words in outcomes[check][1]
