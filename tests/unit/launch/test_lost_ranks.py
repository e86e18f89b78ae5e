"""Children of a launcher that torch forgot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from commprof.launch.elastic import kill_lost_ranks


def sleeper(**environment: str) -> subprocess.Popen[bytes]:
    """Says a line once it runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_ranks_are_ended_and_other_children_are_not() -> None:
    rank, other = sleeper(TORCHELASTIC_RUN_ID="none", RANK="0"), sleeper(RANK="0")
    try:
        kill_lost_ranks()
        assert rank.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        kill_lost_ranks()  # of what is gone there is nothing to end
    finally:
        for process in (rank, other):
            process.kill()
            process.communicate()
