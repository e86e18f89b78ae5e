"""Ctrl-C while a command loads, while it runs, and when it is done."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

#: WHEN the interrupt comes; what the command's own code sees of it is said on stdout.
SCRIPT = """
import signal, sys
from commprof.entry_point import enter
when = sys.argv[1]
def interrupted(now):
    if now == when:
        signal.raise_signal(signal.SIGINT)
class Late:
    def __del__(self):
        interrupted("at the end")
kept = Late()
def load():
    interrupted("loading")
    return main
def main():
    try:
        interrupted("running")
    except KeyboardInterrupt:
        print("seen")
        return 130
    return 7
enter(load)
"""


@pytest.mark.parametrize(
    ("when", "code", "said"),
    [
        ("never", 7, ""),
        ("loading", -signal.SIGINT, ""),
        ("running", 130, "seen\n"),
        ("at the end", -signal.SIGINT, ""),
    ],
)
def test_an_interrupt_leaves_no_traceback(when: str, code: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, when], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")


def test_an_ignored_interrupt_stays_ignored() -> None:
    """As nohup starts a command."""
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{SCRIPT}"
    for when in ("loading", "running", "at the end"):
        done = subprocess.run(
            [sys.executable, "-c", ignoring, when], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (7, "")
